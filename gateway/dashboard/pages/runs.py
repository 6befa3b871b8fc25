"""`/dashboard/runs`: the runs of a tenant, and one of them: its settings as in force, its groups, and what they wait
for."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answers import plain
from gateway.dashboard.access import ViewerOf
from gateway.dashboard.frame import ROOT, fragment, page
from gateway.dashboard.groups import group_view
from gateway.dashboard.progress import DEFAULT_SUCCESS, policy_progress
from gateway.routes.access import ServicesOf
from tracker.overview import RunCounts
from tracker.types import GroupState, RunSettings

router = APIRouter(prefix=f"{ROOT}/runs")
OPEN_SHOWN: Final = 20
NONE: Final = RunCounts(episodes={}, groups={})


@router.get("")
async def list_runs(request: Request, viewer: ViewerOf, services: ServicesOf) -> Response:
    """Every run of the tenant, the one with the newest episode first."""
    runs, counts = await asyncio.gather(
        services.ledger.list_runs(viewer.tenant), services.ledger.run_counts(viewer.tenant)
    )
    rows = [(run, counts.get(run.run, NONE)) for run in runs]
    rows.sort(key=lambda row: row[1].newest_ms or 0, reverse=True)
    return page(request, viewer, "runs.html", rows=rows)


@router.get("/{run}")
async def show_run(request: Request, viewer: ViewerOf, services: ServicesOf, run: str) -> Response:
    """One run, or the part of the page that is asked for."""
    settings = await services.ledger.get_run(viewer.tenant, run)
    told: dict[str, Any] = {"run": settings}
    part = fragment(request, "state")
    if part in (None, "state"):
        counts = (await services.ledger.run_counts(viewer.tenant)).get(run, NONE)
        waiting, _ = await services.ledger.list_groups(
            viewer.tenant, run=run, task=None, limit=OPEN_SHOWN, cursor=None, state=GroupState.OPEN
        )
        now_ms = services.clock.now_ms()
        skipped = await services.batches.skipped_groups((viewer.tenant, run))
        told |= {"counts": counts, "skipped": sorted(skipped.items())}
        told["waiting"] = [group_view(group, (), settings, now_ms) for group in waiting]
    if part is None:
        progress = await services.ledger.progress(viewer.tenant, run, DEFAULT_SUCCESS)
        told |= {"policies": policy_progress(progress), "settings": setting_rows(settings)}
    return page(request, viewer, "run.html", **told)


def setting_rows(run: RunSettings) -> list[tuple[str, Any, bool]]:
    """(name, value, whether somebody chose it) of each setting."""
    usual = plain(RunSettings(run=run.run))
    return [(name, value, value != usual[name]) for name, value in plain(run).items() if name != "run"]
