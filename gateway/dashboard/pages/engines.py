"""`/dashboard/engines`: which engines are fit for calls and why others are not, their load, what each has loaded."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.dashboard.access import ViewerOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.health import engine_view
from gateway.routes.access import ServicesOf

router = APIRouter(prefix=f"{ROOT}/engines")


@router.get("")
async def list_engines(request: Request, viewer: ViewerOf, services: ServicesOf) -> Response:
    """Every engine, as this process last saw it."""
    engines = services.engines
    active = {row.policy: row.active for row in await services.ledger.list_policies()}
    views = [engine_view(state, engines.num_in_flight_at(state.url)) for state in engines.states()]
    most = max((view.num_in_flight for view in views), default=0)
    return page(
        request,
        viewer,
        "engines.html",
        engines=views,
        active=active,
        most_in_flight=most,
        num_workers=services.settings.workers,
    )
