"""`/dashboard/training`: how the steps of a policy go, and what one of them was trained on.

Batches are of no tenant, their groups and episodes are: a viewer sees those of his own, and how many there are of
others. To check a batch again reads every archive of it, so that is for administrators. What is drawn is worked out in
`curves.py`, what a check finds in `gateway/verify.py`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.dashboard.access import AdminOf, Viewer, ViewerOf
from gateway.dashboard.charts import legend, line_chart
from gateway.dashboard.curves import StepView, figures, read_step
from gateway.dashboard.forms import FormOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.steps import Span, StepPage, chosen_policy, finding_view, manifest_page, step_page
from gateway.dependencies import Services
from gateway.routes.access import ServicesOf
from gateway.verify import Asked, verify_stored
from tracker.manifests import Manifest, readable_manifest
from tracker.types import Batch

router = APIRouter(prefix=f"{ROOT}/training")
DRAWN: Final = 120
"""How many steps the curves show, the newest."""
LISTED: Final = 25
SPANS: Final = 50
"""Trained spans of a manifest on one page."""
Cursor = Annotated[str | None, Query(max_length=512, pattern=r"^[^\x00]*$")]
Place = Annotated[int, Query(ge=0, lt=2**31)]


@router.get("")
async def training(
    request: Request, viewer: ViewerOf, services: ServicesOf, policy: Cursor = None, cursor: Cursor = None
) -> Response:
    """The curves and the steps of one policy."""
    names = await policy_names(services)
    name = chosen_policy(names, policy)
    newest, _ = await services.batches.steps(name, DRAWN, None) if name else ([], None)
    listed, after = await services.batches.steps(name, LISTED, cursor) if name else ([], None)
    views = [read_step(told) for told in newest]
    here = f"{ROOT}/training?{urlencode({'policy': name})}"
    return page(
        request,
        viewer,
        "training.html",
        names=names,
        policy=name,
        figures=await asyncio.to_thread(_drawn, views) if views else [],
        num_drawn=len(views),
        steps=[read_step(told) for told in listed],
        first=here if cursor else None,
        next=f"{here}&{urlencode({'cursor': after})}" if after else None,
    )


@router.get("/{batch_id}")
async def batch(request: Request, viewer: ViewerOf, services: ServicesOf, batch_id: str, spans: Place = 0) -> Response:
    """One step: what it did, its groups, its checks and its manifest."""
    found = await _page_of(services, viewer, batch_id, spans)
    return page(request, viewer, "batch.html", **found, finding=None)


@router.post("/{batch_id}/verify")
async def verify(request: Request, viewer: AdminOf, services: ServicesOf, form: FormOf, batch_id: str) -> Response:
    """Check the batch against what is stored, as `hone verify` does."""
    del form
    asked = Asked(batch_ids=(batch_id,))
    answer = await verify_stored(services.ledger, services.batches, services.settings.stores, asked)
    (finding,) = answer.findings
    named = {fault.episode_id for fault in finding.faults if fault.episode_id}
    own = await services.batches.own_episodes(viewer.tenant, named)
    found = await _page_of(services, viewer, batch_id, 0)
    told = finding_view(finding, next(answer.lines()), own, services.clock.now_ms())
    return page(request, viewer, "batch.html", **found, finding=told)


async def policy_names(services: Services) -> list[str]:
    """The policies of the settings, and those that only the ledger knows any more."""
    names = [policy.name for policy in services.settings.stores.policies]
    stored = [policy.policy for policy in await services.ledger.list_policies()]
    return list(dict.fromkeys([*names, *stored]))


def _drawn(views: list[StepView]) -> list[dict[str, Any]]:
    return [
        {"title": one.chart.title, "how": one.how, "svg": line_chart(one.chart), "legend": legend(one.chart)}
        for one in figures(views)
    ]


async def _page_of(services: Services, viewer: Viewer, batch_id: str, start: int) -> dict[str, Any]:
    (found,) = await services.batches.list_batches(batch_ids=[batch_id])
    groups, num_foreign = await services.batches.groups_of_batch(viewer.tenant, batch_id)
    told, manifest, spans = await asyncio.to_thread(_read, found, start)
    own = await services.batches.own_episodes(viewer.tenant, {span.episode_id for span in spans})
    total = len(manifest.spans) if manifest is not None else 0
    here = f"{ROOT}/training/{batch_id}"
    return {
        "step": told,
        "groups": groups,
        "num_foreign": num_foreign,
        "manifest": manifest,
        "spans": [span.seen_by(own) for span in spans],
        "span_start": start,
        "num_spans": total,
        "first": f"{here}#manifest" if start else None,
        "next": f"{here}?spans={start + SPANS}#manifest" if start + SPANS < total else None,
    }


def _read(found: Batch, start: int) -> tuple[StepPage, Manifest | None, list[Span]]:
    """What takes long with a large manifest."""
    manifest = readable_manifest(found.manifest)
    return step_page(found, manifest), manifest, manifest_page(manifest, start, SPANS)
