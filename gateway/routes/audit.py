"""`GET /v1/audit`: what administrators did."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.answers import JsonResponse
from gateway.routes.access import Admin, PageOf, ServicesOf

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("")
async def list_acts(caller: Admin, services: ServicesOf, page: PageOf) -> Any:
    """Administrative acts in the key's tenant, newest first."""
    acts, next_cursor = await services.ledger.list_acts(caller.tenant, page.limit, page.cursor)
    return JsonResponse({"data": acts, "next_cursor": next_cursor})
