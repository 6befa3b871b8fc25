"""`/v1/runs`: the settings of training and evaluation campaigns."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from gateway.answers import JsonResponse
from gateway.routes.access import Admin, Reader, ServicesOf
from gateway.routes.bodies import read_object
from tracker.settings import parse_run

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.post("", status_code=201)
async def put_run(caller: Admin, services: ServicesOf, fields: Annotated[dict[str, Any], Depends(read_object)]) -> Any:
    """Create a run, or change one that has no episode yet: settings freeze at the first."""
    run = parse_run(fields)
    known = {stored.run for stored in await services.ledger.list_runs(caller.tenant)}
    stored = await services.ledger.put_run(caller.tenant, run)
    return JsonResponse(stored, status_code=200 if run.run in known else 201)


@router.get("")
async def list_runs(caller: Reader, services: ServicesOf) -> Any:
    """Every run of the tenant."""
    return JsonResponse({"data": await services.ledger.list_runs(caller.tenant), "next_cursor": None})
