"""`/dashboard/policies`: what is trained, how good each version is, and which one agents get.

Policies and versions are of no tenant; rewards, episodes and lineage are told of the viewer's own. To move a policy is
for administrators, has a page that says what will happen, and is done and audited by the code that REST uses. What is
shown is worked out in `versions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import RedirectResponse, Response

from gateway.dashboard.access import AdminOf, Viewer, ViewerOf
from gateway.dashboard.charts import interval, line_chart, sparkline
from gateway.dashboard.curves import read_step
from gateway.dashboard.forms import FormOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.releases import view_of
from gateway.dashboard.versions import (
    Known,
    VersionView,
    base_view,
    gaps_by_version,
    reach_of,
    reward_chart,
    version_views,
    what_rollback_does,
)
from gateway.dependencies import Services
from gateway.routes.access import ServicesOf
from gateway.routes.policies import go_back
from tracker.errors import BadRequest, NotFound, Unavailable
from tracker.types import Policy, Version

router = APIRouter(prefix=f"{ROOT}/policies")
LISTED: Final = 30
"""Versions on one page, the newest first."""
SPARK: Final = 30
STEPS: Final = 60
"""Steps whose gaps are added up."""
LINEAGE: Final = 10
ALL_RUNS: Final = ""
Number = Annotated[int, Path(ge=0, lt=2**31)]
Name = Annotated[str | None, Query(max_length=512, pattern=r"^[^\x00]*$")]


@router.get("")
async def policies(request: Request, viewer: ViewerOf, services: ServicesOf) -> Response:
    """Every policy of the settings, and how its newest versions do."""
    rows = [await _row(services, viewer, settings.name) for settings in services.settings.stores.policies]
    return page(request, viewer, "policies.html", rows=rows, now_ms=services.clock.now_ms())


@router.get("/{name}")
async def policy(
    request: Request,
    viewer: ViewerOf,
    services: ServicesOf,
    name: str,
    run: Name = None,
    below: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """One policy: its versions and what they are worth."""
    row, versions = await _policy(services, name)
    shown = [version for version in reversed(versions) if below is None or version.version < below][:LISTED]
    is_last = not shown or shown[-1].version == versions[0].version
    known = await _known(services, viewer, name, shown, run or None)
    views = version_views(row, shown, known) + ([base_view(row, known)] if is_last else [])
    reach, chart = reach_of(views), reward_chart(views, name)
    here = f"{ROOT}/policies/{quote(name, safe='')}"
    asked = {"run": run} if run else {}
    return page(
        request,
        viewer,
        "policy.html",
        policy=row,
        settings=services.settings.stores.policy(name),
        **await _release(services, name, versions),
        lease_ms=await services.batches.lease_until(name),
        now_ms=services.clock.now_ms(),
        versions=[(view, _interval(view, reach)) for view in views],
        num_versions=len(versions),
        chart=line_chart(chart),
        has_mark=bool(chart.marks),
        runs=[(ALL_RUNS, "all runs"), *((one.run, one.run) for one in await services.ledger.list_runs(viewer.tenant))],
        run=run or ALL_RUNS,
        first=f"{here}?{urlencode(asked)}" if below is not None else None,
        next=None if is_last else f"{here}?{urlencode({**asked, 'below': shown[-1].version})}",
    )


@router.get("/{name}/versions/{version}")
async def version_page(
    request: Request, viewer: ViewerOf, services: ServicesOf, name: str, version: Number, cursor: Name = None
) -> Response:
    """One version: how it came about, and what it was trained on."""
    row, versions = await _policy(services, name)
    found = [one for one in versions if one.version == version]
    if version and not found:
        raise NotFound(f"Policy {name!r} has no version {version}.", param="version")
    known = await _known(services, viewer, name, found, None)
    view = version_views(row, found, known)[0] if found else base_view(row, known)
    lineage, after = await _lineage(services, viewer, name, version, cursor)
    here = f"{ROOT}/policies/{quote(name, safe='')}/versions/{version}"
    return page(
        request,
        viewer,
        "version.html",
        policy=row,
        view=view,
        metrics=found[0].metrics if found else None,
        lineage=lineage,
        first=here if cursor else None,
        next=f"{here}?{urlencode({'cursor': after})}" if after else None,
    )


@router.get("/{name}/rollback")
async def confirm_rollback(
    request: Request,
    viewer: AdminOf,
    services: ServicesOf,
    name: str,
    version: Annotated[int, Query(ge=0, lt=2**31)],
) -> Response:
    """What going back would do, and the button that does it."""
    row, versions = await _policy(services, name)
    known = await _known(services, viewer, name, [one for one in versions if one.version == version], None)
    found = [view for view in version_views(row, versions, known) if view.version == version]
    view = found[0] if found else base_view(row, known) if version == 0 else None
    if view is None:
        raise NotFound(f"Policy {name!r} has no version {version}.", param="version")
    told = what_rollback_does(row, versions, version, known.pins)
    return page(request, viewer, "rollback.html", policy=row, view=view, told=told)


@router.post("/{name}/rollback")
async def roll_back(viewer: AdminOf, services: ServicesOf, form: FormOf, name: str) -> Response:
    """Go back, as `POST /v1/policies/{name}/rollback` does."""
    asked = form.get("version", "")
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        raise BadRequest("version is a number.", param="version")
    await go_back(services, viewer.caller, name, int(asked))
    return RedirectResponse(f"{ROOT}/policies/{quote(name, safe='')}", 303)


async def _policy(services: Services, name: str) -> tuple[Policy, list[Version]]:
    """A policy that the settings or the ledger know; raises `NotFound`."""
    row = next((known for known in await services.ledger.list_policies() if known.policy == name), None)
    if row is None:
        if services.settings.stores.policy(name) is None:
            raise NotFound(f"There is no policy {name!r}.", param="policy")
        row = Policy(policy=name)
    return row, await services.ledger.list_versions(name)


async def _known(services: Services, viewer: Viewer, name: str, versions: Sequence[Version], run: str | None) -> Known:
    numbers = [0, *(version.version for version in versions)]
    within = range(min(numbers[1:], default=0), max(numbers) + 1)
    rewards = await services.batches.version_rewards(viewer.tenant, name, within, run)
    rewards |= await services.batches.version_rewards(viewer.tenant, name, range(1), run)
    steps, _ = await services.batches.steps(name, STEPS, None)
    return Known(
        rewards=rewards,
        gaps=gaps_by_version(read_step(step) for step in steps),
        pins=await _pins(services, name),
        has_trial=any(trial.policy == name for trial in await services.ledger.open_trials()),
    )


async def _pins(services: Services, name: str) -> dict[int, int] | None:
    """Versions, rewards and the way back are told also while Redis is gone."""
    try:
        return await services.store.pins(name)
    except Unavailable:
        return None


async def _release(services: Services, name: str, versions: Sequence[Version]) -> dict[str, Any]:
    """How the versions stand; nothing of a policy that the settings do not name any more."""
    if services.settings.stores.policy(name) is None:
        return {"release": None, "events": ()}
    release = await services.releasing.release(name)
    return {"release": view_of(release, versions), "events": release.events}


async def _row(services: Services, viewer: Viewer, name: str) -> dict[str, Any]:
    row, versions = await _policy(services, name)
    newest = [version for version in reversed(versions)][:SPARK]
    known = await _known(services, viewer, name, newest, None)
    views = [*version_views(row, newest, known), base_view(row, known)]
    means = [view.reward.mean if view.reward else None for view in reversed(views)]
    active = next((view for view in views if view.is_active), None)
    last, _ = await services.batches.steps(name, 1, None)
    return {
        "policy": row,
        "settings": services.settings.stores.policy(name),
        "active": active,
        "base": views[-1],
        "num_versions": len(versions),
        "last": last[0] if last else None,
        "lease_ms": await services.batches.lease_until(name),
        "spark": sparkline(means, f"Mean reward of the newest {len(means)} versions of {name}"),
    }


def _interval(view: VersionView, reach: tuple[float, float]) -> str:
    reward = view.reward
    if reward is None or reward.low is None or reward.high is None:
        return ""
    return interval(reward.mean, reward.low, reward.high, reach)


async def _lineage(
    services: Services, viewer: Viewer, name: str, version: int, cursor: str | None
) -> tuple[list[Any], str | None]:
    """What a version carries; nothing where it was never published."""
    if version == 0:
        return [], None
    try:
        return await services.batches.version_lineage(viewer.tenant, name, version, LINEAGE, cursor)
    except NotFound:
        return [], None
