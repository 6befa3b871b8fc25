"""`/health` and `/metrics`, `/openapi.json` and `/docs`: open, so that a machine can ask before it has a key.

Off loopback whoever asks without a key learns of readiness which parts are not ready and nothing else, and needs the
scope `read` for the rest: words name addresses, and numbers tell how much is going on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from gateway.answers import JsonResponse
from gateway.gauges import show_now
from gateway.metrics import CONTENT_TYPE
from gateway.readiness import parts_of
from gateway.routes.access import ServicesOf, caller_of, services_of
from gateway.routes.reference import POLICY, reference_page
from tracker.errors import HoneError
from tracker.types import Scope

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live() -> Any:
    """The process answers."""
    return JsonResponse({"status": "live"})


@router.get("/health/ready", responses={503: {"description": "Which part is not ready"}})
async def ready(request: Request, services: ServicesOf) -> Any:
    """Whether calls can be served and recorded, and if not, which part is not ready; why, for those who may read."""
    parts = await parts_of(services)
    may_read = await _may_read(request)
    shown = {
        name: {"ready": part.ready, "detail": part.detail} if may_read else {"ready": part.ready}
        for name, part in parts.items()
    }
    is_ready = all(part.ready for part in parts.values())
    answer: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "parts": shown}
    if may_read:
        states = services.engines.states()
        answer["engines"] = [{"url": it.url, "fitness": it.fitness, "detail": it.detail} for it in states]
    return JsonResponse(answer, status_code=200 if is_ready else 503)


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request, services: ServicesOf) -> Any:
    """What this gateway counted, of all its workers, for Prometheus."""
    await _check_may_read(request)
    await show_now(services)
    return Response(await asyncio.to_thread(services.metrics.page), headers={"content-type": CONTENT_TYPE})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Any:
    """What can be asked here."""
    await _check_may_read(request)
    return JsonResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Any:
    """The same, for a browser."""
    await _check_may_read(request)
    return HTMLResponse(reference_page(request.app.openapi()), headers={"content-security-policy": POLICY})


async def _may_read(request: Request) -> bool:
    try:
        await _check_may_read(request)
    except HoneError:
        return False
    return True


async def _check_may_read(request: Request) -> None:
    """Open on loopback; elsewhere a key with `read` is needed."""
    if not services_of(request).settings.is_loopback:
        (await caller_of(request)).require(Scope.READ)
