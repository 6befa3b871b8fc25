"""`GET /v1/groups`: which episodes are compared with each other, and where each group stands."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import APIRouter

from gateway.answers import JsonResponse
from gateway.dependencies import Services
from gateway.routes.access import Filter, PageOf, Reader, ServicesOf
from gateway.routes.views import group_view
from tracker.credit import member_standing
from tracker.types import Group, GroupState

router = APIRouter(prefix="/v1/groups", tags=["groups"])
PROVISIONAL: Final = frozenset({GroupState.OPEN, GroupState.READY, GroupState.SKIPPED})
"""States in which no trainer has frozen the members' credit."""


@router.get("")
async def list_groups(
    caller: Reader,
    services: ServicesOf,
    page: PageOf,
    run: Filter = None,
    task: Filter = None,
    state: Filter = None,
) -> Any:
    """Groups, newest first. Advantages are provisional until a trainer takes the group."""
    groups, next_cursor = await services.ledger.list_groups(
        caller.tenant, run=run, task=task, state=state, limit=page.limit, cursor=page.cursor
    )
    shown = [group_view(await standing_of(services, caller.tenant, group)) for group in groups]
    return JsonResponse({"data": shown, "next_cursor": next_cursor})


async def standing_of(services: Services, tenant: str, group: Group) -> Group:
    """The group with its members as they stand now, where no trainer has frozen that."""
    if group.state not in PROVISIONAL:
        return group
    run = await services.runs.get(tenant, group.run)
    return msgspec.structs.replace(group, members=member_standing(group.members, run.credit))
