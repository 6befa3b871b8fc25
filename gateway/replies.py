"""What the door sends back: whole answers, streams, errors in the dialect's form; and how it learns that clients left.

A reply has not begun until its first byte is ready, so every failure before that is a real status. After it, one error
event ends the stream: never an end mark, never a made-up finish reason. When to send what is left to `proxy.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from time import perf_counter
from typing import Any, Final

import msgspec

from gateway.dialects.base import ErrorForm
from gateway.dialects.openai_form import OpenAIForm
from gateway.metrics import OTHER
from gateway.upstream import EngineRefused
from tracker.errors import BudgetExceeded, Gone, HoneError, TooManyRequests, Unavailable

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

DEPARTURE: Final = "hone.departure"
"""Where a server's scope has the `Departure` of the connection."""
NO_RETRY: Final = ((b"x-should-retry", b"false"),)
"""What SDKs would try again otherwise."""
JSON_TYPE: Final = (b"content-type", b"application/json")
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientGone(Exception):
    """The agent closed its connection."""


class Reply:
    """The answer to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """Of the answer, once it has begun."""
        self.first_event_s: float | None = None
        """When a stream began, by `time.perf_counter`."""
        self.route = self.dialect = OTHER
        """What was asked for, as it is counted."""
        self._headers: dict[bytes, bytes] = {}
        """Sent with whatever the answer turns out to be."""
        self.form: ErrorForm = OpenAIForm()
        """How errors are told; the dialect's, once it is known."""

    def add_header(self, name: str, value: str) -> None:
        """Send a header, in place of one of this name that was to be sent."""
        self._headers[name.encode("latin-1")] = value.encode("latin-1", "replace")

    async def whole(self, body: bytes, *, status: int = 200, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """One JSON answer."""
        headers = [JSON_TYPE, (b"content-length", str(len(body)).encode()), *self._headers.items(), *extra]
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    def events(self, data: bytes, *, last: bool = False) -> Awaitable[None]:
        """A piece of a stream, which begins with the first."""
        message = {"type": "http.response.body", "body": data, "more_body": not last}
        return self._send(message) if self.status else self._begin(message)

    async def _begin(self, message: Message) -> None:
        self.first_event_s = perf_counter()
        await self._start(200, [*STREAM_HEADERS, *self._headers.items()])
        await self._send(message)

    async def fail(self, error: HoneError) -> None:
        """A status if nothing was sent yet, else one error event and the end."""
        if self.status:
            await self.events(self.form.error_event(error), last=True)
        else:
            body = msgspec.json.encode(self.form.error_body(error))
            await self.whole(body, status=error.status, extra=error_headers(error))

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class Departure:
    """Whether a connection is gone: told by a server that knows, which spares every request a task that waits."""

    __slots__ = ("_watches", "is_gone")

    def __init__(self) -> None:
        self.is_gone = False
        self._watches: list[Callable[[], None]] = []

    def watch(self, told: Callable[[], None]) -> None:
        """Call this once the connection is gone."""
        self._watches.append(told)

    def forget(self, told: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._watches.remove(told)

    def tell(self) -> None:
        """The connection is gone."""
        self.is_gone = True
        for told in self._watches:
            told()


class ClientWatch:
    """Knows when the client has left: servers drop what is sent after that without a word.

    Used as a context around a request whose body was read. `guard` marks the part of the work that is given up at
    once when the client leaves; outside of it `is_gone` is only noted. Under a server that tells of no departure a task
    waits for the message of the protocol.
    """

    def __init__(self, scope: Message, receive: Receive) -> None:
        self._departure: Departure | None = scope.get(DEPARTURE)
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self._guarded: asyncio.Task[Any] | None = None
        self.is_gone = False

    async def __aenter__(self) -> ClientWatch:
        if self._departure is None:
            self._watcher = asyncio.create_task(self._watch())
        else:
            self.is_gone = self._departure.is_gone
            self._departure.watch(self._leave)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._departure is not None:
            self._departure.forget(self._leave)
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])

    def guard(self) -> ClientGuard:
        """A context that raises `ClientGone` as soon as the client has left."""
        return ClientGuard(self)

    def begin_guard(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel this task when the client leaves; raises `ClientGone` if it has."""
        if self.is_gone:
            raise ClientGone
        self._guarded = task

    def end_guard(self) -> None:
        """Only note it."""
        self._guarded = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.is_gone = True
        if self._guarded is not None:
            self._guarded.cancel()


class ClientGuard:
    """Part of the work for a client, which is of no use without it."""

    __slots__ = ("_client", "_task")

    def __init__(self, client: ClientWatch) -> None:
        self._client = client
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._client.begin_guard(self._task)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._client.end_guard()
        has_left = kind is asyncio.CancelledError and self._client.is_gone
        if has_left and self._task is not None and self._task.uncancel() == 0:
            raise ClientGone from None


def error_headers(error: HoneError) -> Headers:
    """What tells SDKs whether and when to try again."""
    if isinstance(error, Unavailable | TooManyRequests):
        return [(b"retry-after", str(error.retry_after_s).encode())]
    if isinstance(error, BudgetExceeded):
        wait_s = error.retry_after_s
        return [*NO_RETRY, *([] if wait_s is None else [(b"retry-after", str(wait_s).encode())])]
    if isinstance(error, Gone):
        return list(NO_RETRY)
    if isinstance(error, EngineRefused):
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in error.headers.items()]
    return []
