"""`/health`, `/openapi.json` and `/docs`: open, so that a machine can ask before it has a key."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from gateway.answers import JsonResponse
from gateway.engines import Fitness
from gateway.routes.access import ServicesOf, caller_of, services_of
from gateway.routes.reference import POLICY, reference_page
from tracker.errors import HoneError
from tracker.types import Scope

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live() -> Any:
    """The process answers."""
    return JsonResponse({"status": "live"})


@router.get("/health/ready")
async def ready(services: ServicesOf) -> Any:
    """Whether calls can be served and recorded: both stores answer and at least one engine is fit."""
    redis = await _found(services.store.ping())
    sql = await _found(services.ledger.ping())
    engines = services.engines.states()
    stopped = services.duties.stopped()
    is_ready = redis == sql == "ok" and not stopped and any(state.fitness is Fitness.READY for state in engines)
    answer = {
        "status": "ready" if is_ready else "not ready",
        "redis": redis,
        "sql": sql,
        "stopped": stopped,
        "engines": [{"url": state.url, "fitness": state.fitness, "detail": state.detail} for state in engines],
    }
    return JsonResponse(answer, status_code=200 if is_ready else 503)


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


async def _found(ping: Awaitable[None]) -> str:
    try:
        await ping
    except HoneError as error:
        return error.message
    return "ok"


async def _check_may_read(request: Request) -> None:
    """Open on loopback; elsewhere a key with `read` is needed."""
    if not services_of(request).settings.is_loopback:
        (await caller_of(request)).require(Scope.READ)
