"""`/dashboard/keys`: a tenant's keys, what calls with them took, and for administrators: making, rotating, limiting and
revoking them.

A key is on a page once, in the answer to the form that made it; that answer is kept nowhere. What is done and written
down is `key_acts.py`'s, as over REST.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from gateway import key_acts
from gateway.dashboard.access import AdminOf, Viewer, ViewerOf
from gateway.dashboard.forms import FormOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.key_forms import NAMES, KeyRow, grace_of, key_row, limits_of, wanted_of
from gateway.dashboard.pages.login import begin_session
from gateway.dependencies import Services
from gateway.routes.access import ServicesOf
from tracker.errors import BadRequest, Forbidden
from tracker.quotas import day_of
from tracker.types import Key, Scope

KEYS: Final = f"{ROOT}/keys"
router = APIRouter(prefix=KEYS)
LISTED: Final = 50
Cursor = Annotated[str | None, Query(max_length=512, pattern=r"^[^\x00]*$")]


@router.get("")
async def list_keys(request: Request, viewer: ViewerOf, services: ServicesOf, cursor: Cursor = None) -> Response:
    """The tenant's keys, newest first."""
    await services.meters.flush()
    keys, after = await services.ledger.key_page(viewer.tenant, LISTED, cursor)
    return page(
        request,
        viewer,
        "keys.html",
        keys=await _rows(services, keys),
        first=KEYS if cursor else None,
        next=f"{KEYS}?{urlencode({'cursor': after})}" if after else None,
    )


@router.get("/new")
async def new_key(request: Request, viewer: AdminOf) -> Response:
    """The form for a new key."""
    return _form(request, viewer, {}, "")


@router.post("")
async def create_key(request: Request, viewer: AdminOf, services: ServicesOf, form: FormOf) -> Response:
    """Make a key, and show it this once."""
    try:
        secret, key = await key_acts.create_key(services, viewer.caller, wanted_of(form, viewer.tenant))
    except (BadRequest, Forbidden) as error:
        return _form(request, viewer, form, error.message, error.status)
    return page(request, viewer, "key_made.html", status=201, secret=secret, key=key, what="made", old_until_ms=None)


@router.get("/{key_id}")
async def show_key(request: Request, viewer: ViewerOf, services: ServicesOf, key_id: str) -> Response:
    """One key, and what can be done with it."""
    return await _key_page(request, viewer, services, key_id)


@router.post("/{key_id}/rotate")
async def rotate_key(request: Request, viewer: AdminOf, services: ServicesOf, form: FormOf, key_id: str) -> Response:
    """Give the key another secret, and show it this once. Whoever rotates his own key stays signed in with it."""
    try:
        grace_s = grace_of(form)
    except BadRequest as error:
        return await _key_page(request, viewer, services, key_id, error)
    secret, key, until_ms = await key_acts.rotate_key(services, viewer.caller, key_id, grace_s)
    old_until_ms = until_ms if grace_s else None
    answer = page(request, viewer, "key_made.html", secret=secret, key=key, what="rotated", old_until_ms=old_until_ms)
    if key.key_id == viewer.key_id:
        begin_session(answer, request, services, key)
    return answer


@router.post("/{key_id}/limits")
async def limit_key(request: Request, viewer: AdminOf, services: ServicesOf, form: FormOf, key_id: str) -> Response:
    """Set all limits of the key; an empty field is no limit."""
    try:
        limits = limits_of(form)
    except BadRequest as error:
        return await _key_page(request, viewer, services, key_id, error)
    key = await key_acts.limit_key(services, viewer.caller, key_id, limits)
    return RedirectResponse(f"{KEYS}/{key.key_id}", 303)


@router.post("/{key_id}/revoke")
async def revoke_key(viewer: AdminOf, services: ServicesOf, form: FormOf, key_id: str) -> Response:
    """Make the key good for nothing."""
    del form
    key = await key_acts.revoke_key(services, viewer.caller, key_id)
    return RedirectResponse(f"{KEYS}/{key.key_id}", 303)


async def _rows(services: Services, keys: list[Key]) -> list[KeyRow]:
    now_ms = services.clock.now_ms()
    usage = await services.ledger.key_usage([key.key_id for key in keys], day_of(now_ms))
    return [key_row(key, usage[key.key_id], now_ms) for key in keys]


async def _key_page(
    request: Request, viewer: Viewer, services: Services, key_id: str, error: BadRequest | None = None
) -> Response:
    key = await services.ledger.get_key(viewer.tenant, key_id)
    await services.meters.flush()
    (row,) = await _rows(services, [key])
    told = "" if error is None else error.message
    return page(request, viewer, "key.html", status=200 if error is None else error.status, row=row, told=told)


def _form(request: Request, viewer: Viewer, form: dict[str, str], told: str, status: int = 200) -> Response:
    given: dict[str, Any] = {name: form.get(name, "") for name in ("label", "expires_in_days", *NAMES)}
    scopes = set(form.get("scopes", "").split(","))
    offered = [(scope.value, scope.value in scopes) for scope in Scope]
    return page(request, viewer, "key_new.html", status=status, given=given, offered=offered, told=told)
