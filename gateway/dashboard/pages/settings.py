"""`/dashboard/settings`: what this gateway was told, as in force, for administrators; secrets are not shown."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.dashboard.access import AdminOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.masking import settings_told
from gateway.routes.access import ServicesOf

router = APIRouter(prefix=f"{ROOT}/settings")


@router.get("")
async def show_settings(request: Request, viewer: AdminOf, services: ServicesOf) -> Response:
    """Every setting."""
    told = settings_told(services.settings)
    return page(request, viewer, "settings.html", settings=told, base_url=services.settings.base_url)
