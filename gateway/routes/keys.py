"""`/v1/keys`: keys made, listed, limited, rotated and revoked, each by an administrator of the same tenant.

A key is in an answer once, when it is made or rotated. What is done, and what is written down of it, is in
`key_acts.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import Field

from gateway import key_acts
from gateway.answers import JsonResponse
from gateway.key_making import MAX_CONCURRENT, MAX_GRACE_S, MAX_LIFE_S, MAX_LIMIT, MAX_RATE, Wanted, key_view
from gateway.routes.access import Admin, PageOf, Reader, ServicesOf
from gateway.routes.bodies import Body, Text, body_of, documented
from tracker.quotas import day_of
from tracker.types import KeyLimits, Scope

router = APIRouter(prefix="/v1/keys", tags=["keys"])
NO_STORE: Final = {"Cache-Control": "no-store"}
Rate = Annotated[int, Field(ge=1, le=MAX_RATE)]
Concurrent = Annotated[int, Field(ge=1, le=MAX_CONCURRENT)]
Tokens = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class LimitsBody(Body):
    """The limits of a key."""

    requests_per_minute: Rate | None = None
    max_concurrent: Concurrent | None = None
    token_budget: Tokens | None = None
    token_budget_per_day: Tokens | None = None

    @property
    def limits(self) -> KeyLimits:
        """As they are stored."""
        return KeyLimits(**{name: getattr(self, name) for name in LimitsBody.model_fields})


class KeyBody(LimitsBody):
    """What `POST /v1/keys` takes."""

    scopes: Annotated[list[Annotated[Scope, Field(strict=False)]], Field(min_length=1, max_length=len(Scope))]
    label: Text = ""
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_LIFE_S)] | None = None


class RotateBody(Body):
    """What `POST /v1/keys/{key_id}/rotate` takes."""

    grace_s: Annotated[float, Field(ge=0, le=MAX_GRACE_S)] = 0.0
    """How long the old secret still works."""


@router.post("", status_code=201, openapi_extra=documented(KeyBody))
async def create_key(caller: Admin, services: ServicesOf, body: Annotated[KeyBody, Depends(body_of(KeyBody))]) -> Any:
    """Make a key in the caller's tenant. The key is in this answer, and nowhere else."""
    wanted = Wanted(
        scopes=tuple(body.scopes),
        tenant=caller.tenant,
        label=body.label,
        expires_in_s=body.expires_in_s,
        limits=body.limits,
    )
    secret, key = await key_acts.create_key(services, caller, wanted)
    return JsonResponse({"key": secret, **key_view(key)}, status_code=201, headers=NO_STORE)


@router.get("")
async def list_keys(caller: Reader, services: ServicesOf, page: PageOf) -> Any:
    """The tenant's keys, newest first, and what calls with them took; never a key or a digest."""
    await services.meters.flush()
    keys, next_cursor = await services.ledger.key_page(caller.tenant, page.limit, page.cursor)
    usage = await services.ledger.key_usage([key.key_id for key in keys], day_of(services.clock.now_ms()))
    shown = [key_view(key, usage[key.key_id]) for key in keys]
    return JsonResponse({"data": shown, "next_cursor": next_cursor})


@router.post("/{key_id}/rotate", openapi_extra=documented(RotateBody, required=False))
async def rotate_key(
    caller: Admin,
    services: ServicesOf,
    key_id: str,
    body: Annotated[RotateBody, Depends(body_of(RotateBody, required=False))],
) -> Any:
    """Give a key another secret; the old one works until the grace is over."""
    secret, key, until_ms = await key_acts.rotate_key(services, caller, key_id, body.grace_s)
    return JsonResponse({"key": secret, "old_until_ms": until_ms, **key_view(key)}, headers=NO_STORE)


@router.patch("/{key_id}", openapi_extra=documented(LimitsBody))
async def limit_key(
    caller: Admin, services: ServicesOf, key_id: str, body: Annotated[LimitsBody, Depends(body_of(LimitsBody))]
) -> Any:
    """Change the limits in the body: a number for another, null for none; what is left out stays."""
    key = await key_acts.limit_key(services, caller, key_id, body.model_dump(exclude_unset=True))
    return JsonResponse(key_view(key))


@router.delete("/{key_id}")
async def revoke_key(caller: Admin, services: ServicesOf, key_id: str) -> Any:
    """Make a key, and the session keys of what it opened, good for nothing."""
    key = await key_acts.revoke_key(services, caller, key_id)
    return JsonResponse(key_view(key))
