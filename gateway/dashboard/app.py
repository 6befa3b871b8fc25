"""The dashboard as an application of its own beside the API's: its errors are pages, and every answer has its headers.

What runs, loads and is sent is named here for all pages: our own files and nothing else, no script and no style inside
a page, no frame around it. It is read by nobody's cache. Which pages there are is in `routes.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from gateway.dashboard.access import NotSignedIn, find_viewer
from gateway.dashboard.frame import ROOT, error_page, templates
from gateway.dashboard.glance import Outlines
from gateway.dashboard.limiter import SignInLimiter
from gateway.dashboard.pieces import Pieces
from gateway.dashboard.routes import ROUTERS
from gateway.dashboard.session import SECRET, Sessions
from gateway.dashboard.signing import sign_in_path
from gateway.dependencies import Services
from tracker.errors import HoneError

LOG: Final = logging.getLogger("hone.dashboard")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}
NO_STORE: Final = "no-store"
TITLES: Final[Mapping[int, str]] = {
    400: "That was not understood",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    409: "It has changed meanwhile",
    410: "Gone",
    413: "Too large",
    429: "Wait a moment",
    503: "Not available",
}
FAILED: Final = "Something went wrong"


class Dashboard:
    """Every answer of the pages, with its headers."""

    def __init__(self) -> None:
        self.pages = _pages()

    async def open(self, services: Services) -> None:
        """Give the pages what they read; called in the lifespan."""
        state = self.pages.state
        state.services = services
        state.sessions = Sessions(await services.ledger.secret(SECRET), services.clock)
        state.limiter = SignInLimiter(services.clock)
        state.outlines = Outlines()
        state.pieces = Pieces(services.engines, services.clock)

    async def refuse(self, error: HoneError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused before it has reached a page."""
        scope["app"] = self.pages
        answer = await _refused(Request(scope, receive), error)
        await answer(scope, receive, _secured(send))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.pages(scope, receive, _secured(send))


def belongs_here(path: str) -> bool:
    """Whether a path is the dashboard's, however many slashes it has."""
    return path.lstrip("/").split("/", 1)[0] == ROOT.lstrip("/")


def _secured(send: Send) -> Send:
    """Each answer begins with the headers of all."""

    async def begin(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("Cache-Control", NO_STORE)
        await send(message)

    return begin


def _pages() -> FastAPI:
    pages = FastAPI(redirect_slashes=False, openapi_url=None, docs_url=None, redoc_url=None)
    pages.state.templates = templates()
    for router in ROUTERS:
        pages.include_router(router)
    pages.add_exception_handler(HoneError, _on_error)
    pages.add_exception_handler(HTTPException, _on_http_error)
    pages.add_exception_handler(RequestValidationError, _on_invalid)
    pages.add_exception_handler(Exception, _on_bug)
    return pages


async def _refused(request: Request, error: HoneError) -> Response:
    """The answer to a request that was refused on purpose."""
    if isinstance(error, NotSignedIn):
        return _to_sign_in(request)
    answer = await _told(request, error.status, error.message)
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoneError)
    request.app.state.services.metrics.refused(error.status, error.code)
    return await _refused(request, error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        answer = await _told(request, 405, f"{request.method} is not what this page takes.")
        answer.headers.update(error.headers or {})
        return answer
    return await _told(request, 404, f"There is no page {request.url.path}.")


async def _on_invalid(request: Request, error: Exception) -> Response:
    """A part of the address that does not fit."""
    assert isinstance(error, RequestValidationError)
    item = error.errors()[0]
    return await _told(request, 400, f"{item['loc'][-1]}: {item['msg']}.")


async def _on_bug(request: Request, error: Exception) -> Response:
    """The answer to a bug, which asks no store for anything; the middleware raises it again."""
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    answer = error_page(request, None, 500, FAILED, "The gateway's log says more. Other pages go on as before.")
    answer.headers["Connection"] = "close"
    return answer


async def _told(request: Request, status: int, message: str) -> Response:
    """In the frame of whoever is signed in, where the database still says who that is."""
    try:
        viewer = await find_viewer(request)
    except HoneError:
        viewer = None
    return error_page(request, viewer, status, TITLES.get(status, FAILED), message)


def _to_sign_in(request: Request) -> Response:
    """A page that htmx asked for in part is left as a whole."""
    to = sign_in_path(request)
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Redirect": to})
    return RedirectResponse(to, 303)
