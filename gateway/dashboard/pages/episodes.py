"""`/dashboard/episodes`: all episodes of the tenant, by what they are, page by page in both directions."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.dashboard.access import ViewerOf
from gateway.dashboard.frame import ROOT, page
from gateway.routes.access import PageOf, ServicesOf
from gateway.routes.finding import FilterOf
from tracker.types import EpisodeFilter, EpisodeState, EpisodeStatus

router = APIRouter(prefix=f"{ROOT}/episodes")
LISTED: Final = 50


@router.get("")
async def episodes(
    request: Request, viewer: ViewerOf, services: ServicesOf, asked: PageOf, wanted: FilterOf
) -> Response:
    """The list."""
    found = await services.ledger.find_episodes(viewer.tenant, wanted, LISTED, asked.cursor)
    fields = fields_of(wanted)
    return page(
        request,
        viewer,
        "episodes.html",
        wanted=fields,
        runs=[known.run for known in await services.ledger.list_runs(viewer.tenant)],
        policies=[policy.policy for policy in await services.ledger.list_policies()],
        statuses=[one.value for one in (*EpisodeStatus, *EpisodeState)],
        rows=found.rows,
        base_url=services.settings.base_url,
        is_filtered=any(value != "" for value in fields.values()),
        newest=_address(fields) if asked.cursor else None,
        newer=_address(fields, found.newer) if found.newer else None,
        older=_address(fields, found.older) if found.older else None,
    )


def fields_of(wanted: EpisodeFilter) -> dict[str, Any]:
    """What the form shows of a filter; empty where it asks for nothing."""
    values = {name: getattr(wanted, name) for name in EpisodeFilter.__struct_fields__}
    return {name: "" if value is None else value for name, value in values.items()}


def _address(fields: dict[str, Any], cursor: str | None = None) -> str:
    asked = {name: value for name, value in fields.items() if value != ""}
    told = urlencode(asked | ({"cursor": cursor} if cursor else {}), errors="replace")
    return f"{ROOT}/episodes?{told}" if told else f"{ROOT}/episodes"
