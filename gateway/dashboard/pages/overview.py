"""`/dashboard`: is it learning, is it healthy, what does it cost.

Rewards, costs and alarms are of the viewer's tenant, the first two of one run's newest episodes; engines, policies and
trainers are of no tenant. Each of the three parts asks for itself anew while somebody looks, and only it is read then.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.dashboard.access import Viewer, ViewerOf
from gateway.dashboard.costs import DAYS, costs_of, day_bars
from gateway.dashboard.frame import ROOT, fragment, page
from gateway.dashboard.health import headline, part_views, trainer_views
from gateway.dashboard.progress import DEFAULT_SUCCESS, policy_progress
from gateway.dependencies import Services
from gateway.readiness import parts_of
from gateway.routes.access import ServicesOf
from tracker.outcomes import Progress
from tracker.quotas import day_of
from tracker.types import DEFAULT

router = APIRouter(prefix=ROOT)
MAX_SUCCESS: Final = 1e9
Run = Annotated[str | None, Query(max_length=128)]
Success = Annotated[float, Query(ge=-MAX_SUCCESS, le=MAX_SUCCESS, allow_inf_nan=False)]


@router.get("")
async def overview(
    request: Request, viewer: ViewerOf, services: ServicesOf, run: Run = None, success: Success = DEFAULT_SUCCESS
) -> Response:
    """The first page, or the part of it that is asked for."""
    part = fragment(request, "learning", "health", "costs")
    told: dict[str, Any] = {"base_url": services.settings.base_url}
    if part in (None, "learning", "costs"):
        chosen = run or await services.ledger.newest_run(viewer.tenant) or DEFAULT
        progress = await services.ledger.progress(viewer.tenant, chosen, success)
        told |= {"progress": progress, "query": urlencode({"run": chosen, "success": f"{success:g}"})}
        told |= await _learning(services, viewer, progress, part)
    if part in (None, "health"):
        told |= await _health(services, viewer)
    return page(request, viewer, "overview.html", **told)


async def _learning(services: Services, viewer: Viewer, progress: Progress, part: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if part is None:
        told["runs"] = sorted(stored.run for stored in await services.ledger.list_runs(viewer.tenant))
    if part != "costs":
        told["policies"] = policy_progress(progress)
    if part != "learning":
        today = day_of(services.clock.now_ms())
        usage = await services.ledger.usage_by_day(viewer.tenant, today - DAYS + 1)
        told |= {"costs": costs_of(progress.total), "days": day_bars(usage, today), "num_days": DAYS}
    return told


async def _health(services: Services, viewer: Viewer) -> dict[str, Any]:
    """As far as the database still tells: a page that says what is down is wanted most then."""
    parts = await parts_of(services)
    has_sql = parts["sql"].ready
    trainers = trainer_views(await services.ledger.overview(), services.clock.now_ms()) if has_sql else ()
    return {
        "alarms": await services.ledger.list_alarms(viewer.tenant) if has_sql else [],
        "headline": headline(parts),
        "is_ready": all(part.ready for part in parts.values()),
        "parts": part_views(parts),
        "trainers": trainers,
    }
