"""`/dashboard`: is it learning, is it healthy, what does it cost."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.dashboard.access import ViewerOf
from gateway.dashboard.frame import page
from gateway.routes.access import ServicesOf

router = APIRouter(prefix="/dashboard")


@router.get("")
async def overview(request: Request, viewer: ViewerOf, services: ServicesOf) -> Response:
    """The first page."""
    del services
    return page(request, viewer, "overview.html")
