"""`/dashboard/audit`: what administrators did, for administrators."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.dashboard.access import AdminOf
from gateway.dashboard.frame import ROOT, page
from gateway.routes.access import ServicesOf

router = APIRouter(prefix=f"{ROOT}/audit")
LISTED: Final = 50
Cursor = Annotated[str | None, Query(max_length=512, pattern=r"^[^\x00]*$")]


@router.get("")
async def list_acts(request: Request, viewer: AdminOf, services: ServicesOf, cursor: Cursor = None) -> Response:
    """Administrative acts of the tenant, newest first."""
    acts, after = await services.ledger.list_acts(viewer.tenant, LISTED, cursor)
    return page(
        request,
        viewer,
        "audit.html",
        acts=acts,
        first=f"{ROOT}/audit" if cursor else None,
        next=f"{ROOT}/audit?{urlencode({'cursor': after})}" if after else None,
    )
