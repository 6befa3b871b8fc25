"""One HTTP connection, bounded: what the server underneath leaves open to whoever can reach the port.

uvicorn parses and answers; here stand the limits that it does not have. A request's head has a size, a number of
headers and a deadline; a client that does not read what it is sent is cut off; connections beyond the limit are told
so in the form of every other error. What is no HTTP at all is refused before any application sees it. Whose address a
request has is told here too, where trusted proxies stand between. Bodies are bounded by whoever reads them.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.addresses import TrustedProxies
from gateway.answers import JSON, error_answer, form_of
from gateway.dialects.openai_form import error_body
from gateway.replies import DEPARTURE, Departure
from gateway.settings import GatewaySettings
from tracker.errors import BadRequest, HoneError, TooLarge, Unavailable
from tracker.types import Record

MAX_REQUEST_LINE_BYTES: Final = 64 * 1024
SURPLUS: Final = 64
"""Connections over the limit that are still heard, so that they can be told; those beyond are closed unheard."""
LOOKS: Final = 4
"""How often a connection is looked at within its shortest limit."""
RETRY_AFTER_S: Final = 2
FRAMING: Final = 4
"""A body may come in so many times its bytes: chunks have sizes, extensions and trailers, which nobody counts else."""
FORWARDED: Final = b"x-forwarded-for"
VERSIONS: Final = ("1.1", "1.0")
ONLY_HTTP_1: Final = "This is HTTP/1.1 alone: leave out the header Upgrade (clients have a setting for the version)."


class HeadTooLarge(TooLarge):
    """The head of a request is over a limit."""

    status = 431
    code = "headers_too_large"


class SlowHead(BadRequest):
    """The head of a request did not come in time."""

    status = 408
    code = "header_timeout"


class ConnectionLimits(Record, frozen=True):
    """What one client may take."""

    header_timeout_s: float = 20.0
    write_timeout_s: float = 60.0
    max_connections: int = 8192
    max_header_bytes: int = 64 * 1024
    max_headers: int = 200
    max_body_bytes: int = 32 * 2**20
    trusted_proxies: tuple[str, ...] = ()


DEFAULTS: Final = ConnectionLimits()


def limits_of(settings: GatewaySettings) -> ConnectionLimits:
    """The limits as the settings have them."""
    return ConnectionLimits(**{name: getattr(settings, name) for name in ConnectionLimits.__struct_fields__})


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's own, with deadlines, limits and errors of ours.

    One timer a connection, none a request: it is looked at a few times within its shortest limit, so a limit may be
    overdrawn by a quarter.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        limits: ConnectionLimits = DEFAULTS,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._proxies = TrustedProxies(limits.trusted_proxies)
        self._knows_peer = True
        """Whether the peer is the client; else it is a trusted proxy, which says whom it speaks for."""
        self._is_surplus = False
        self._served_app = self.app
        self._inspection: asyncio.TimerHandle | None = None
        self._head_since: float | None = None
        """Since when the head of a request is awaited; `None` while none is."""
        self._head_bytes = 0
        """Of the head that is awaited, as they came."""
        self._header_bytes = 0
        """Of its headers that are complete."""
        self._body_bytes = 0
        """What came since the newest head, however it is framed."""
        self._excess: HoneError | None = None
        """Why the request whose head is being read will be refused."""
        self._departure = Departure()
        self._unsent = 0
        self._stuck_since = 0.0

    # what the transport says

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch; a connection far over the limit is not even heard."""
        super().connection_made(transport)
        num_surplus = len(self.connections) - self._limits.max_connections
        if num_surplus > SURPLUS:
            transport.abort()
            return
        self._is_surplus = num_surplus > 0
        self._knows_peer = self.client is None or not self._proxies.trusts(self.client[0])
        self._head_since = self._stuck_since = self.loop.time()
        self._inspect_later()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._departure.tell()
        if self._inspection is not None:
            self._inspection.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse; bytes that complete no head are counted, and what is sent between two requests starts a deadline."""
        is_in_head, before = self._head_since is not None, self._newest
        super().data_received(data)
        if self._head_since is not None:
            if is_in_head and self._newest is before:  # else most of the bytes may be a body's
                self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_header_bytes + MAX_REQUEST_LINE_BYTES:
                self._refuse(self._too_large())
            return
        self._body_bytes += len(data)
        if self._body_bytes > FRAMING * self._limits.max_body_bytes:
            self._refuse(TooLarge("The body is larger than its limit (HONE_MAX_BODY_BYTES)."))
        elif (cycle := self._newest) is not None and cycle.response_complete:
            self._head_since = self.loop.time()

    # what the parser says

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_since = self.loop.time()
        self._head_bytes = self._header_bytes = self._body_bytes = 0
        self._excess = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, up to the limit; a trailer is none, since the request has been judged by its headers."""
        if self._excess is None and self._head_since is not None:
            self._header_bytes += len(name) + len(value)
            if self._header_bytes > self._limits.max_header_bytes or len(self.headers) >= self._limits.max_headers:
                self._excess = self._too_large()
                return
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Have the request answered: by the application, or with what is wrong with it."""
        self._head_since = None
        self.scope[DEPARTURE] = self._departure  # type: ignore[typeddict-unknown-key]
        if not self._knows_peer:
            self._name_client()
        if self._excess is None:
            self._excess = self._objection()
        if self._excess is not None:
            answer = error_answer(self._excess, form_of(self.url.decode("latin-1")))
            answer.headers["Connection"] = "close"
            self.app = answer
        super().on_headers_complete()
        self.app = self._served_app

    def _objection(self) -> HoneError | None:
        """Why this request is not handed on, if it is not."""
        if self._is_surplus:
            told = f"The gateway has all {self._limits.max_connections} connections it may have (HONE_MAX_CONNECTIONS)."
            return Unavailable(told, retry_after_s=RETRY_AFTER_S, code="too_many_connections")
        parser = self.parser
        assert parser is not None  # it is what calls this
        if parser.get_http_version() not in VERSIONS:
            return BadRequest("The HTTP version is neither 1.1 nor 1.0.", code="invalid_http")
        if parser.should_upgrade() and any(_announces_body(*header) for header in self.headers):
            return BadRequest(ONLY_HTTP_1, code="invalid_http")  # the parser would take the body for another protocol
        return None

    def send_400_response(self, msg: str) -> None:
        """Refuse and close: where the next request would begin is not known."""
        self._refuse(BadRequest(msg, code="invalid_http"))

    # the watch

    def _inspect(self) -> None:
        now = self.loop.time()
        self._inspect_reader(now)
        if self._head_since is not None and not self.transport.is_closing():
            if self._is_answering():
                self._head_since = now
            elif now - self._head_since > self._limits.header_timeout_s:
                self._close_slow()
        self._inspect_later()

    def _inspect_later(self) -> None:
        shortest_s = min(self._limits.header_timeout_s, self._limits.write_timeout_s)
        self._inspection = self.loop.call_later(shortest_s / LOOKS, self._inspect)

    def _inspect_reader(self, now: float) -> None:
        """Cut off a client that takes nothing of what waits for it, neither while it is sent nor after the end."""
        unsent = self.transport.get_write_buffer_size()
        is_waiting = self.flow.write_paused or self.transport.is_closing()
        if not unsent or not is_waiting or unsent < self._unsent:
            self._stuck_since = now
        elif now - self._stuck_since > self._limits.write_timeout_s:
            self.transport.abort()
        self._unsent = unsent

    def _close_slow(self) -> None:
        """Say why, if anything of a request came; one that was opened ahead of its use is closed without a word."""
        if self._newest is None and not self._head_bytes:
            self.transport.close()
            return
        limit_s = self._limits.header_timeout_s
        self._refuse(SlowHead(f"The head of the request did not come within {limit_s:g} s (HONE_HEADER_TIMEOUT_S)."))

    def _refuse(self, error: HoneError) -> None:
        """Answer in place of the application, and close; without a word where an answer is on its way already."""
        if self._is_answering():
            if self.cycle.response_started or self.pipeline:
                self.transport.abort()
                return
            self.cycle.disconnected = True  # what the application says from here on is dropped
            self.cycle.message_event.set()
            self._departure.tell()
        if not self.transport.is_closing():
            body = msgspec.json.encode(error_body(error))
            phrase = HTTPStatus(error.status).phrase
            head = f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
            self.transport.close()

    @property
    def _newest(self) -> RequestResponseCycle | None:
        """The newest request, if there was one yet; uvicorn's own types leave that out."""
        return self.cycle

    def _is_answering(self) -> bool:
        return (cycle := self._newest) is not None and not cycle.response_complete

    def _too_large(self) -> HeadTooLarge:
        limits = self._limits
        return HeadTooLarge(
            f"The request has more than {limits.max_headers} headers or {limits.max_header_bytes} bytes of them "
            "(HONE_MAX_HEADERS, HONE_MAX_HEADER_BYTES)."
        )

    def _name_client(self) -> None:
        """Put the client's address in place of the proxy's, which is the one that sends."""
        assert self.client is not None
        said = [value.decode("latin-1") for name, value in self.headers if name == FORWARDED]
        if said:
            address = self._proxies.client_of(self.client[0], said)
            self.scope["client"] = (address, 0)


def _announces_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0") != b"")
