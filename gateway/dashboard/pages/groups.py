"""`/dashboard/groups`: which episodes are compared with each other, how they stand, and why a group is not trained."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.dashboard.access import ViewerOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.groups import GroupView, group_view
from gateway.dependencies import Services
from gateway.routes.access import Filter, PageOf, ServicesOf
from gateway.routes.groups import standing_of
from tracker.types import Group, GroupState

router = APIRouter(prefix=f"{ROOT}/groups")
LISTED = 25


@router.get("")
async def groups(  # noqa: PLR0913 - each is a part of the address
    request: Request,
    viewer: ViewerOf,
    services: ServicesOf,
    asked: PageOf,
    run: Filter = None,
    task: Filter = None,
    state: Filter = None,
) -> Response:
    """The list."""
    wanted = {"run": run or "", "task": task or "", "state": state or ""}
    found, after = await services.ledger.list_groups(
        viewer.tenant, run=run or None, task=task or None, state=state or None, limit=LISTED, cursor=asked.cursor
    )
    here = f"{ROOT}/groups?{urlencode({name: value for name, value in wanted.items() if value})}"
    return page(
        request,
        viewer,
        "groups.html",
        wanted=wanted,
        runs=[known.run for known in await services.ledger.list_runs(viewer.tenant)],
        states=[one.value for one in GroupState],
        groups=await _views(services, viewer.tenant, found),
        first=here if asked.cursor else None,
        next=f"{here}&{urlencode({'cursor': after})}" if after else None,
    )


@router.get("/{group_id}")
async def group(request: Request, viewer: ViewerOf, services: ServicesOf, group_id: str) -> Response:
    """One group with its members."""
    found = await services.ledger.get_group(viewer.tenant, group_id)
    (view,) = await _views(services, viewer.tenant, [found])
    return page(request, viewer, "group.html", group=view)


async def _views(services: Services, tenant: str, found: list[Group]) -> list[GroupView]:
    shares = await services.ledger.group_shares([one.group_id for one in found])
    now_ms = services.clock.now_ms()
    return [
        group_view(
            await standing_of(services, tenant, one),
            shares.get(one.group_id, ()),
            await services.runs.get(tenant, one.run),
            now_ms,
        )
        for one in found
    ]
