"""`DELETE /v1/keys/{key_id}/data`: everything that was recorded with one key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.answers import JsonResponse
from gateway.auditing import audited
from gateway.erasure import delete_of_key
from gateway.routes.access import Admin, ServicesOf
from tracker.errors import NotFound

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.delete("/{key_id}/data")
async def delete_data(caller: Admin, services: ServicesOf, key_id: str) -> Any:
    """Delete every episode that the key opened or made a call in. Where `done` is false, ask again."""
    if key_id not in {key.key_id for key in await services.ledger.list_keys(caller.tenant)}:
        raise NotFound(f"There is no key {key_id!r} of this tenant; `hone keys list` shows them.", param="key_id")
    async with audited(services, caller, "key.erase", key_id) as told:
        erased = await delete_of_key(services, caller.tenant, key_id)
        told.update(deleted=erased.deleted, done=erased.done)
    return JsonResponse(erased)
