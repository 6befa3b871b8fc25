"""`GET /v1/engines` and `GET /v1/batches`: what serves, and what was trained."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from gateway.answers import JsonResponse, plain
from gateway.routes.access import PageOf, Reader, ServicesOf
from gateway.routes.views import batch_view, episodes_of_batch
from tracker.errors import NotFound
from tracker.manifests import readable_manifest

router = APIRouter(prefix="/v1", tags=["engines"])


@router.get("/engines")
async def list_engines(caller: Reader, services: ServicesOf) -> Any:
    """Every engine, whether it is fit for calls, and the adapters it lists."""
    del caller
    engines = services.engines
    shown = [{**plain(state), "num_in_flight": engines.num_in_flight_at(state.url)} for state in engines.states()]
    return JsonResponse({"data": shown, "next_cursor": None})


@router.get("/batches")
async def list_batches(caller: Reader, services: ServicesOf, page: PageOf, policy: str | None = None) -> Any:
    """The newest training batches, of one policy or of all, and how much of each was proven before its step; of their
    episodes those of the caller's tenant."""
    names = [known.name for known in services.settings.stores.policies]
    if policy is not None and policy not in names:
        raise NotFound(f"There is no policy {policy!r}; there is {', '.join(names)}.", param="policy")
    batches = [
        batch
        for name in ([policy] if policy is not None else names)
        for batch in await services.batches.last_batches(name, page.limit)
    ]
    batches.sort(key=lambda batch: batch.created_ms, reverse=True)
    read = await asyncio.to_thread(lambda: [(one, readable_manifest(one.manifest)) for one in batches[: page.limit]])
    named = set[str]().union(*(episodes_of_batch(batch, manifest) for batch, manifest in read))
    own = await services.batches.own_episodes(caller.tenant, named)
    shown = await asyncio.to_thread(lambda: [batch_view(batch, manifest, own) for batch, manifest in read])
    return JsonResponse({"data": shown, "next_cursor": None})
