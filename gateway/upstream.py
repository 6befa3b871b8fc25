"""The way to an engine for agents' calls: one pool of connections, answers as batches of events, failures named.

A whole answer comes out as one event, so that what follows has one path. Leaving `ask` closes the connection of an
answer that was not read to its end, which is how an engine is told to stop. The caller's headers and key never pass;
an engine's messages do, its address never. Which engine and what to ask is left to `proxy.py`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, cast

import aiohttp
import msgspec

from gateway.context import CURRENT
from gateway.deadlines import Deadlines
from gateway.dialects.base import Json
from gateway.dialects.openai_form import MAX_MESSAGE_CHARS
from gateway.message_fold import decode_json_value
from gateway.sse import MAX_EVENT_BYTES, SseEvent, SseParser
from tracker.errors import UpstreamFailed

LOG: Final = logging.getLogger("hone.upstream")
CONNECT_TIMEOUT_S: Final = 5.0
KEEPALIVE_S: Final = 3.0
"""Shorter than engines keep an idle connection (uvicorn: 5 s): a request on one just closed would fail for nothing."""
DRAIN_S: Final = 0.5
MAX_ERROR_BYTES: Final = 64 * 1024
PASSED_HEADERS: Final = ("retry-after",)
OVERFLOW_MARKS: Final = ("context length", "context_length", "context window", "max_model_len", "maximum model length")
ENGINE: Final = "The engine"
BUSY: Final = 503


class EngineRefused(UpstreamFailed):
    """The engine answered with an error of its own, in words that are passed on."""

    def __init__(self, message: str, *, status: int, kind: str, headers: Mapping[str, str]) -> None:
        passes = 400 <= status < 500 or status == BUSY
        super().__init__(message, status=status if passes else 502)
        self.kind = kind
        self.headers = dict(headers)
        self.is_context_overflow = 400 <= status < 500 and any(mark in message.lower() for mark in OVERFLOW_MARKS)
        if self.is_context_overflow:
            self.code = "context_length_exceeded"


class EngineGone(UpstreamFailed):
    """The engine cannot be reached, or its connection broke: it said nothing about the call itself."""

    def __init__(self, message: str, *, was_reached: bool) -> None:
        super().__init__(message)
        self.was_reached = was_reached


class Upstream:
    """Connections to all engines, or to one other server; `who` is how its failures name it."""

    def __init__(
        self,
        key: str | None,
        timeout_s: float,
        who: str = ENGINE,
        *,
        idle_s: float | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._who = who
        self._key = key
        self._idle_s = idle_s or timeout_s
        """How long a stream that has begun may be silent."""
        self._deadlines = deadlines or Deadlines()
        self._headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def ask(self, url: str, body: bytes, request_id: str, *, streams: bool) -> AsyncGenerator[Answer]:
        """Send a request; the answer's first bytes have come when this returns. Raises `UpstreamFailed`."""
        headers = {**self._headers, "x-request-id": request_id}
        call = CURRENT.get()
        if call is not None and call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        try:
            response = await self._pool().post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error, url, self._who) from error
        try:
            if response.status != 200:
                raise await _refusal(response, self._who)
            if streams and response.content_type != "text/event-stream":
                raise UpstreamFailed(f"{self._who} did not answer with a stream.")
            yield Answer(response, self._who, self._deadlines, self._idle_s if streams else None)
        except EngineRefused as refused:
            if self._key:
                refused.message = refused.message.replace(self._key, "***")  # as servers quote a key they do not take
            raise
        finally:
            response.close()  # of an answer that was read to its end the connection went back to the pool already

    def _pool(self) -> aiohttp.ClientSession:
        """The session; made at the first request, since it belongs to the running loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=60)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent",),
                trust_env=False,
                read_bufsize=2**18,
            )
        return self._session


class Answer:
    """The events of an answer, in batches as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse, who: str, deadlines: Deadlines, idle_s: float | None) -> None:
        """`idle_s` is how long a stream that has begun may be silent; `None` if it is none."""
        self._response = response
        self._who = who
        self._deadlines = deadlines
        self._idle_s = idle_s

    async def batches(self) -> AsyncGenerator[list[SseEvent]]:
        """Events that came together, up to the end mark or the transport's end."""
        if self._idle_s is None:
            raw = await self.whole()
            yield [SseEvent(raw=raw, data=raw)]
            return
        parser, now_s = SseParser(), asyncio.get_running_loop().time
        read, idle_s = self._response.content.readany, self._idle_s
        with self._failures(), self._deadlines.within(math.inf) as silence:
            while chunk := await read():
                silence.until_s = math.inf
                if events := parser.feed(chunk):
                    yield events
                    if events[-1].is_done:
                        await self._drain()
                        return
                silence.until_s = now_s() + idle_s
        if events := parser.close():
            yield events

    async def whole(self) -> bytes:
        """The body of an answer that is no stream."""
        parts: list[bytes] = []
        size = 0
        with self._failures():
            while chunk := await self._response.content.readany():
                size += len(chunk)
                if size > MAX_EVENT_BYTES:
                    raise UpstreamFailed(f"{self._who} sent an answer of more than {MAX_EVENT_BYTES} bytes.")
                parts.append(chunk)
        return b"".join(parts)

    def _failures(self) -> _Failures:
        return _Failures(self._who, self._response)

    async def _drain(self) -> None:
        """Let the transport's end arrive behind the end mark, so that the connection can be used again."""
        content = self._response.content
        if content.at_eof():
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                while await content.readany():
                    pass
        except (aiohttp.ClientError, OSError) as error:
            LOG.info("%s: after its end mark: %r", self._response.url, error)


class _Failures:
    """A context in which what goes wrong with reading an answer is named."""

    __slots__ = ("_response", "_who")

    def __init__(self, who: str, response: aiohttp.ClientResponse) -> None:
        self._who = who
        self._response = response

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, TimeoutError):
            raise UpstreamFailed(f"{self._who} stopped answering.") from error
        if isinstance(error, aiohttp.ClientError | OSError):
            LOG.warning("%s broke off its answer: %r", self._response.url, error)
            raise EngineGone(f"{self._who} broke off its answer.", was_reached=True) from error


def error_in(event: Json) -> EngineRefused | None:
    """The error that an event is, where it is one: OpenAI's form, or vLLM's older `object: error`."""
    said = event.get("error")
    if said is None and event.get("object") != "error":
        return None
    return _refused(event if said is None else said, 500, {})


def engine_object(data: bytes, trouble: str) -> Json:
    """The JSON object that an engine sent; raises `UpstreamFailed`, which begins with the trouble that it is."""
    try:
        said: object = decode_json_value(data)
    except ValueError as error:
        raise UpstreamFailed(f"{trouble}: it is not JSON.") from error
    if not isinstance(said, dict):
        raise UpstreamFailed(f"{trouble}: it is no JSON object.")
    return cast("Json", said)


async def _refusal(response: aiohttp.ClientResponse, who: str) -> UpstreamFailed:
    """The engine's error answer in its own words."""
    raw = await response.content.read(MAX_ERROR_BYTES)
    headers = {name: response.headers[name] for name in PASSED_HEADERS if name in response.headers}
    if 300 <= response.status < 400:
        return UpstreamFailed(f"{who} answered with a redirect, which is never followed.")
    try:
        body: object = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        body = raw.decode(errors="replace").strip()
    return _refused(_unwrapped(body), response.status, headers, keeps_status=True)


def _unwrapped(body: object) -> object:
    """What stands under `error`, where something does."""
    inner: object = cast("Json", body).get("error") if isinstance(body, dict) else None
    return cast("object", body) if inner is None else inner


def _refused(said: object, status: int, headers: Mapping[str, str], *, keeps_status: bool = False) -> EngineRefused:
    fields: Json = cast("Json", said) if isinstance(said, dict) else {"message": said}
    code = fields.get("code")
    if not keeps_status and type(code) is int and 400 <= code < 600:
        status = code
    message = str(fields.get("message") or fields.get("detail") or f"The engine answered with status {status}.")
    kind = fields.get("type")
    return EngineRefused(
        message[:MAX_MESSAGE_CHARS],
        status=status,
        kind=kind if isinstance(kind, str) and kind else UpstreamFailed.kind,
        headers=headers,
    )


def _unreachable(error: Exception, url: str, who: str) -> UpstreamFailed:
    """Before any answer: a connection that was made and broke is told from one that was never made."""
    LOG.warning("%s: %r", url, error)
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return EngineGone(f"{who} cannot be reached.", was_reached=False)
    if isinstance(error, TimeoutError):
        return UpstreamFailed(f"{who} did not answer in time.")
    return EngineGone(f"{who} broke off its answer.", was_reached=True)
