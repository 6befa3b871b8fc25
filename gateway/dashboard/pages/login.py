"""`/dashboard/login` and `/dashboard/logout`: a key becomes a session, and a session ends.

A key with the scope `read` or `admin` signs in. What is wrong with a key is told in one line for all keys that are not
valid; attempts from one address that fail are counted and slowed.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from gateway.auditing import audited
from gateway.auth import digest
from gateway.dashboard.access import SCOPES, Viewer, find_viewer, sessions_of
from gateway.dashboard.forms import FormOf, parse_form, read_body, refuse_foreign
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.session import COOKIE, LIFE_S
from gateway.dashboard.signing import HOME, LOGIN, next_page
from gateway.dependencies import Services
from gateway.routes.access import ServicesOf
from gateway.routes.bodies import decode_strictly
from tracker.errors import BadRequest, Forbidden, HoneError, TooManyRequests, Unauthorized
from tracker.types import Key

router = APIRouter(prefix="/dashboard")
NOT_VALID: Final = "This key is not valid. Paste the whole key, as it was shown when it was made."
NO_SCOPE: Final = "This key may not look at the dashboard: it needs the scope read or admin."
ROTATED: Final = "This key was rotated. Sign in with the new one."


@router.get("/login")
async def sign_in_page(
    request: Request, viewer: Annotated[Viewer | None, Depends(find_viewer)], next: Annotated[str, Query()] = HOME
) -> Response:
    """The form; whoever is signed in goes on."""
    if viewer is not None:
        return RedirectResponse(next_page(next), 303)
    return page(request, None, "login.html", next=next_page(next), told="")


@router.post("/login")
async def sign_in(request: Request, services: ServicesOf) -> Response:
    """Check the key, and begin a session."""
    refuse_foreign(request)
    fields = await _fields(request)
    target = next_page(fields.get("next", HOME))
    address = request.client.host if request.client else ""
    try:
        request.app.state.limiter.check(address)
        key = await _key_of(services, fields.get("key", ""))
    except (Unauthorized, Forbidden, TooManyRequests) as error:
        if not isinstance(error, TooManyRequests):
            request.app.state.limiter.failed(address)
        return _refused(request, services, error, target)
    answer = RedirectResponse(target, 303)
    begin_session(answer, request, services, key)
    return answer


@router.post("/logout")
async def sign_out(form: FormOf) -> Response:
    """End the session: the browser forgets its cookie."""
    del form
    answer = RedirectResponse(LOGIN, 303)
    answer.delete_cookie(COOKIE, path=ROOT, httponly=True, samesite="strict")
    return answer


def begin_session(answer: Response, request: Request, services: Services, key: Key) -> None:
    """Give the browser the cookie of a session with this key."""
    answer.set_cookie(
        COOKIE,
        sessions_of(request).begin(key),
        max_age=LIFE_S,
        path=ROOT,
        secure=services.settings.base_url.startswith("https:"),
        httponly=True,
        samesite="strict",
    )


async def _fields(request: Request) -> dict[str, str]:
    """Of a form, or of a JSON object."""
    raw = await read_body(request)
    if not request.headers.get("content-type", "").startswith("application/json"):
        return parse_form(raw)
    told = decode_strictly(raw)
    if not isinstance(told, dict):
        raise BadRequest('Send {"key": "…"}.')
    return {str(name): str(value) for name, value in cast("dict[Any, Any]", told).items()}


async def _key_of(services: Services, secret: str) -> Key:
    """The key that signs in; raises `Unauthorized` or `Forbidden`. Who may not is in the audit log too."""
    if not secret.strip() or not secret.isascii():
        raise Unauthorized(NOT_VALID)
    try:
        caller = await services.keys.authenticate(f"Bearer {secret.strip()}", None)
    except Unauthorized as error:
        raise Unauthorized(NOT_VALID) from error
    async with audited(services, caller, "dashboard.sign_in", caller.key_id):
        if not caller.may(*SCOPES):
            raise Forbidden(NO_SCOPE)
        key = await services.ledger.get_key(caller.tenant, caller.key_id)
        if not hmac.compare_digest(digest(secret.strip()), key.digest):
            raise Unauthorized(ROTATED)
    return key


def _refused(request: Request, services: Services, error: HoneError, target: str) -> Response:
    """The form again, with what was wrong."""
    services.metrics.refused(error.status, error.code)
    answer = page(request, None, "login.html", status=error.status, next=target, told=error.message)
    if isinstance(error, TooManyRequests):
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer
