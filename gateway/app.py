"""The gateway as one ASGI application: agents' paths go to the door, pages to the dashboard, all else to FastAPI.

The dispatcher decides on the path that is really routed, before any framework has touched the request. Every answer
that is no success is JSON in OpenAI's form (in Anthropic's on its paths): an unknown path, a wrong method, a body that
does not fit, and a bug, which is logged with its trace and leaves the next request alone. Nothing is ever redirected.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.answers import error_answer, form_of
from gateway.dashboard.app import Dashboard, belongs_here
from gateway.door import PATH, Door, normalise
from gateway.metrics import METHODS, NONE, OTHER
from gateway.routes import (
    audit,
    data,
    engines,
    episodes,
    groups,
    health,
    keys,
    parity,
    policies,
    releases,
    rewards,
    runs,
)
from gateway.settings import GatewaySettings, load
from gateway.startup import open_services
from tracker.clock import Clock
from tracker.errors import BadRequest, HoneError, NotFound

GC_THRESHOLDS: Final = (50_000, 20, 20)
LOG: Final = logging.getLogger("hone.app")
ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": told, "content": {"application/json": {"schema": ERROR}}}
    for status, told in (("default", "What went wrong"), (422, "No value that can be stored"))
}
"""What every route may answer; FastAPI would describe a 422 of its own, which nobody ever sees."""
WHERE: Final = "GET /openapi.json lists what there is"


class WrongMethod(BadRequest):
    """The path is there, under another method."""

    status = 405
    code = "method_not_allowed"


class Gateway:
    """Dispatches requests; the lifespan belongs to FastAPI's application."""

    def __init__(self, api: FastAPI, dashboard: Dashboard) -> None:
        self._api = api
        self._dashboard = dashboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, partial(self._tell, send))
            return
        try:
            path = normalise(scope.get("raw_path") or scope["path"].encode())
        except HoneError as error:
            self._api.state.services.metrics.answered(OTHER, OTHER, NONE, error.status)
            await self._refuse(error, scope, receive, send)
            return
        if path is not None:
            scope[PATH] = path
            await self._api.state.door(scope, receive, send)
        else:
            await self._ask(scope, receive, send)

    async def _tell(self, send: Send, message: Message) -> None:
        """Leave out the trace of a start that was refused on purpose: it has been told in one line already."""
        if message["type"] == "lifespan.startup.failed" and getattr(self._api.state, "is_refused", False):
            message = {"type": message["type"]}
        await send(message)

    async def _refuse(self, error: HoneError, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer to a path that means nothing certain."""
        if belongs_here(scope["path"]):
            await self._dashboard.refuse(error, scope, receive, send)
        else:
            await error_answer(error, form_of(scope["path"]))(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The API answers, or the dashboard, with slashes and versions too many taken out of the path; the answer is
        counted."""
        segments = [part for part in scope["path"].split("/") if part]
        while segments[:2] == ["v1", "v1"]:
            segments = segments[1:]
        scope["path"] = "/" + "/".join(segments)
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = status or message.get("status", 0)
            await send(message)

        app = self._dashboard if belongs_here(scope["path"]) else self._api
        try:
            await app(scope, receive, noting)
        finally:
            route: str = getattr(scope.get("route"), "path", OTHER)
            method = scope["method"] if scope["method"] in METHODS else OTHER
            self._api.state.services.metrics.answered(route, method, NONE, status)


def create_app(settings: GatewaySettings, clock: Clock | None = None) -> ASGIApp:
    """The application; its services are built in its lifespan, and closed at its end. The clock is the machine's unless
    another is given."""
    dashboard = Dashboard()
    api = FastAPI(
        title="Hone",
        lifespan=partial(_lifespan, settings, clock, dashboard),
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    for module in (runs, episodes, data, rewards, groups, policies, releases, parity, engines, health, keys, audit):
        api.include_router(module.router)
    api.add_exception_handler(HoneError, _on_error)
    api.add_exception_handler(HTTPException, _on_http_error)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(Exception, _on_bug)  # FastAPI would answer in plain text before ours is asked
    return Gateway(api, dashboard)


def spare_the_collector() -> None:
    """Look for cycles less often, in a process that only serves: answers in flight are thousands of small objects that
    reference counting frees, and at every 700th of them none would be found."""
    gc.set_threshold(*GC_THRESHOLDS)


def create_app_of_environment() -> ASGIApp:
    """What each process of several workers runs."""
    spare_the_collector()
    return create_app(load(os.environ, Path.cwd()))


@asynccontextmanager
async def _lifespan(
    settings: GatewaySettings, clock: Clock | None, dashboard: Dashboard, api: FastAPI
) -> AsyncGenerator[None]:
    try:
        async with open_services(settings, clock) as services:
            api.state.services = services
            await dashboard.open(services)
            api.state.door = door = Door(services)
            try:
                yield
            finally:
                await door.close()
    except HoneError as error:
        api.state.is_refused = True
        LOG.error("the gateway does not start: %s", error.message)
        raise


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoneError)
    request.app.state.services.metrics.refused(error.status, error.code)
    return error_answer(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router refuses."""
    assert isinstance(error, HTTPException)
    where, form = f"{request.method} {request.url.path}", form_of(request.url.path)
    if error.status_code == 405:
        answer = error_answer(WrongMethod(f"{where} is not allowed; {WHERE}."), form)
        answer.headers["Allow"] = ", ".join(sorted(_allowed(request)))
        return answer
    return error_answer(NotFound(f"There is no {where}; {WHERE}.", code="unknown_path"), form)


def _allowed(request: Request) -> set[str]:
    """The methods of every route at this path; the router names those of the first one alone."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or set() for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return set[str]().union(*found)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """A parameter that does not fit; bodies are read in `routes/bodies.py`."""
    del request
    assert isinstance(error, RequestValidationError)
    item = error.errors()[0]
    name = str(item["loc"][-1])
    return error_answer(BadRequest(f"{name}: {item['msg']}.", param=name))


async def _on_bug(request: Request, error: Exception) -> Response:
    """The answer to a bug; the middleware raises it again, and the server logs its trace."""
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    answer = error_answer(HoneError("The gateway failed."), form_of(request.url.path))
    answer.headers["Connection"] = "close"  # as the server does after a bug: a client's next request would be reset
    return answer
