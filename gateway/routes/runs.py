"""`/v1/runs`: the settings of training and evaluation campaigns."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from gateway.answers import JsonResponse, plain
from gateway.auditing import act_of, attempted
from gateway.routes.access import Admin, Reader, ServicesOf
from gateway.routes.bodies import REPEATED, read_object
from tracker.settings import parse_run
from tracker.shares import shares_of, total
from tracker.types import Batch

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.post("", status_code=201, responses=REPEATED)
async def put_run(caller: Admin, services: ServicesOf, fields: Annotated[dict[str, Any], Depends(read_object)]) -> Any:
    """Create a run, or change one that has no episode yet: settings freeze at the first."""
    run = parse_run(fields)
    known = {stored.run for stored in await services.ledger.list_runs(caller.tenant)}
    act = act_of(services, caller, "run.change" if run.run in known else "run.create", run.run, plain(run))
    async with attempted(services.ledger, act):
        stored = await services.ledger.put_run(caller.tenant, run, act)
    return JsonResponse(stored, status_code=200 if run.run in known else 201)


@router.get("")
async def list_runs(caller: Reader, services: ServicesOf) -> Any:
    """Every run of the tenant."""
    return JsonResponse({"data": await services.ledger.list_runs(caller.tenant), "next_cursor": None})


@router.get("/{run}")
async def get_run(caller: Reader, services: ServicesOf, run: str) -> Any:
    """One run: its settings, and for each policy what of it was trained and how much of that was proven."""
    settings = await services.ledger.get_run(caller.tenant, run)
    batches = await services.batches.list_batches(run=(caller.tenant, run))
    trained = [batch for batch in batches if batch.state == "trained"]
    training = await asyncio.to_thread(_training, trained)
    skipped = await services.batches.skipped_groups((caller.tenant, run))
    return JsonResponse({**plain(settings), "training": training, "skipped_groups": skipped})


def _training(batches: list[Batch]) -> dict[str, Any]:
    """policy -> the shares over its batches, as they were checked before each step."""
    policies = dict.fromkeys(batch.policy for batch in batches)
    return {
        policy: total(shares_of(batch) for batch in batches if batch.policy == policy).view() for policy in policies
    }
