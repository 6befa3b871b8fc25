"""Who may come in: the caller of a request, and the scope each route asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from gateway.auditing import refused
from gateway.auth import Caller
from gateway.dependencies import Services
from gateway.refused_acts import ACTING, act_named
from tracker.errors import BadRequest, Forbidden
from tracker.types import MAX_TASK_CHARS, Record, Scope

MAX_PAGE: Final = 200
DEFAULT_PAGE: Final = 50
MAX_TARGET_CHARS: Final = 128


def services_of(request: Request) -> Services:
    """The services that the app's lifespan built."""
    services = request.app.state.services
    if not isinstance(services, Services):
        raise TypeError("the app answers requests outside its lifespan")
    return services


async def caller_of(request: Request) -> Caller:
    """Whoever sent the request; raises `Unauthorized`."""
    headers, client = request.headers, request.client
    address = None if client is None else client.host
    return await services_of(request).keys.authenticate(headers.get("authorization"), headers.get("x-api-key"), address)


def needs(*scopes: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, who must hold one of these scopes."""

    async def check(request: Request) -> Caller:
        caller = await caller_of(request)
        try:
            caller.require(*scopes)
        except Forbidden as error:
            if ACTING.intersection(scopes):
                await note_refused(request, caller, error)
            raise
        return caller

    return check


async def note_refused(request: Request, caller: Caller, error: Forbidden) -> None:
    """Have it in the audit log that a caller may not do what was asked for, if that was an act."""
    act = act_named(request.method, request.scope["route"].path)
    if act is not None:
        target = str(next(iter(request.path_params.values()), ""))[:MAX_TARGET_CHARS]
        await refused(services_of(request), caller, act, "".join(filter(str.isprintable, target)), error)


class Page(Record, frozen=True):
    """Which part of a list is asked for."""

    limit: int
    cursor: str | None


async def page_of(
    limit: Annotated[str | None, Query()] = None,
    cursor: Annotated[str | None, Query(max_length=512, pattern=r"^[^\x00]*$")] = None,
) -> Page:
    """The page that a request asks for: the first, unless it brings the `next_cursor` of another."""
    return Page(limit=_size(limit), cursor=cursor or None)


async def _services(request: Request) -> Services:
    """`services_of` as a dependency: FastAPI would run a plain function in a thread."""
    return services_of(request)


ServicesOf = Annotated[Services, Depends(_services)]
Reader = Annotated[Caller, Depends(needs(Scope.READ))]
Admin = Annotated[Caller, Depends(needs(Scope.ADMIN))]
Agent = Annotated[Caller, Depends(needs(Scope.AGENT))]
Rewarder = Annotated[Caller, Depends(needs(Scope.REWARD))]
Publisher = Annotated[Caller, Depends(needs(Scope.TRAINER))]
Anyone = Annotated[Caller, Depends(caller_of)]
PageOf = Annotated[Page, Depends(page_of)]
Filter = Annotated[str | None, Query(max_length=MAX_TASK_CHARS, pattern=r"^[^\x00]*$")]


def _size(limit: str | None) -> int:
    if limit is None:
        return DEFAULT_PAGE
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_PAGE:
        raise BadRequest(f"limit is a number from 1 to {MAX_PAGE}.", param="limit")
    return int(limit)
