"""What the door sends back: whole answers, streams, errors in the dialect's form; and how it learns that clients left.

A reply has not begun until its first byte is ready, so every failure before that is a real status. After it, one error
event ends the stream: never an end mark, never a made-up finish reason. When to send what is left to `proxy.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
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
        self.headers: Headers = []
        """Sent with whatever the answer turns out to be."""
        self.form: ErrorForm = OpenAIForm()
        """How errors are told; the dialect's, once it is known."""

    def add_header(self, name: str, value: str) -> None:
        """Send a header, in place of one of this name that was to be sent."""
        key = name.encode("latin-1")
        self.headers[:] = [header for header in self.headers if header[0] != key]
        self.headers.append((key, value.encode("latin-1", "replace")))

    async def whole(self, body: bytes, *, status: int = 200, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """One JSON answer."""
        headers = [JSON_TYPE, (b"content-length", str(len(body)).encode()), *self.headers, *extra]
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, data: bytes, *, last: bool = False) -> None:
        """A piece of a stream, which begins with the first."""
        if not self.status:
            self.first_event_s = perf_counter()
            await self._start(200, [*STREAM_HEADERS, *self.headers])
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

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


class ClientWatch:
    """Knows when the client has left: servers drop what is sent after that without a word.

    Used as a context around a request whose body was read. `guard` marks the part of the work that is given up at
    once when the client leaves; outside of it `is_gone` is only noted.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self._guarded: asyncio.Task[Any] | None = None
        self.is_gone = False

    async def __aenter__(self) -> ClientWatch:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])

    @asynccontextmanager
    async def guard(self) -> AsyncGenerator[None]:
        """Raise `ClientGone` inside as soon as the client has left."""
        if self.is_gone:
            raise ClientGone
        self._guarded = task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if self.is_gone and task is not None and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            self._guarded = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        if self._guarded is not None:
            self._guarded.cancel()


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
