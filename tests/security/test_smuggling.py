"""Bytes that two servers in a row could read differently are refused, or are one request and its body: never a second.

Each case hides `GET /smuggled` where a careless parser would begin to read the next request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.connections import ConnectionLimits
from tests.security.wire import HOST, error_of, exchange, served

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
END = b"Connection: close\r\n\r\n"
POST = b"POST /first HTTP/1.1\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(HIDDEN)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EMPTY_CHUNK = b"0\r\n\r\n"

REFUSED: dict[str, bytes] = {
    "both lengths, chunked last": POST + HOST + LENGTH + CHUNKED + b"\r\n" + EMPTY_CHUNK + HIDDEN,
    "both lengths, chunked first": POST + HOST + CHUNKED + LENGTH + b"\r\n" + EMPTY_CHUNK + HIDDEN,
    "two lengths": POST + HOST + b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "a list of lengths": POST + HOST + b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "a signed length": POST + HOST + b"Content-Length: +5\r\n\r\n" + HIDDEN,
    "a length in hex": POST + HOST + b"Content-Length: 0x5\r\n\r\n" + HIDDEN,
    "a length beyond 64 bits": POST + HOST + b"Content-Length: 18446744073709551621\r\n\r\n" + HIDDEN,
    "a space before the colon": POST + HOST + b"Transfer-Encoding : chunked\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "a folded header": POST + HOST + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n" + HIDDEN,
    "bare line feeds": b"POST /first HTTP/1.1\nHost: x\nContent-Length: 0\n\n" + HIDDEN,
    "a bare carriage return": POST + HOST + b"X: y\rContent-Length: 0\r\n\r\n" + HIDDEN,
    "a NUL in a value": POST + HOST + b"X: y\x00z\r\n\r\n" + HIDDEN,
    "a coding nobody knows": POST + HOST + b"Transfer-Encoding: xchunked\r\n\r\n" + EMPTY_CHUNK + HIDDEN,
    "chunked, then another coding": POST
    + HOST
    + b"Transfer-Encoding: chunked, identity\r\n\r\n"
    + EMPTY_CHUNK
    + HIDDEN,
    "a chunk size with a sign": POST + HOST + CHUNKED + b"\r\n-1\r\n" + HIDDEN,
    "a chunk size with 0x": POST + HOST + CHUNKED + b"\r\n0x0\r\n\r\n" + HIDDEN,
    "a chunk size beyond 64 bits": POST + HOST + CHUNKED + b"\r\nfffffffffffffffff0\r\n" + HIDDEN,
    "a chunk without its line end": POST + HOST + CHUNKED + b"\r\n1\r\nAB" + HIDDEN,
    "a chunk ended by a line feed": POST + HOST + CHUNKED + b"\r\n1\nA\n0\n\n" + HIDDEN,
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "HTTP/0.9": b"GET /first\r\n" + HIDDEN,
    "a second request in the target": b"GET /first\r\nX: y HTTP/1.1\r\n" + HOST + b"\r\n",
    "a length in a trailer": POST + HOST + CHUNKED + END + b"1\r\nA\r\n0\r\nContent-Length: 99\r\n\r\n",
    "an upgrade nobody offers": POST + HOST + LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + HIDDEN,
    "a method with a space": b"PO ST /first HTTP/1.1\r\n" + HOST + b"\r\n",
}


async def test_what_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read() -> None:
    async with recording() as (port, seen):
        for case, raw in REFUSED.items():
            answer = await exchange(port, raw)
            assert "/smuggled" not in {path for path, _ in seen}, case
            assert b"HTTP/1.1 400 Bad Request" in answer, case


BODIES: dict[str, tuple[bytes, bytes]] = {
    "a body by its length": (POST + HOST + LENGTH + END + HIDDEN, HIDDEN),
    "a body in chunks": (POST + HOST + CHUNKED + END + b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n", HIDDEN),
    "chunk extensions": (
        POST
        + HOST
        + CHUNKED
        + END
        + b'%x;a="GET /smuggled HTTP/1.1"\r\n' % len(HIDDEN)
        + HIDDEN
        + b"\r\n0;b=c\r\n\r\n",
        HIDDEN,
    ),
}


async def test_a_request_inside_a_body_is_a_body() -> None:
    async with recording() as (port, seen):
        for case, (raw, body) in BODIES.items():
            seen.clear()
            assert (await exchange(port, raw)).startswith(b"HTTP/1.1 200"), case
            assert seen == [("/first", body)], case


async def test_a_trailer_is_no_header() -> None:
    named: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        named.extend(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with served(app) as port:
        trailers = b"1\r\nA\r\n0\r\nAuthorization: Bearer x\r\nX-Hone-Episode: y\r\n\r\n"
        assert (await exchange(port, POST + HOST + CHUNKED + END + trailers)).startswith(b"HTTP/1.1 200")
    assert sorted(named) == [b"connection", b"host", b"transfer-encoding"]


@pytest.mark.parametrize("framing", [b"1;" + b"x" * 5000, b"1\r\nA\r\n0\r\nX: " + b"y" * 5000])
async def test_what_frames_a_body_is_bounded_too(framing: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with served(app, ConnectionLimits(max_body_bytes=1000)) as port:
        status, error = error_of(await exchange(port, POST + HOST + CHUNKED + b"\r\n", framing))
    assert (status, error["code"]) == (413, "too_large")


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[int, list[tuple[str, bytes]]]]:
    """A server's port, and the requests that reach its application, each as path and body."""
    seen: list[tuple[str, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message["body"])
            more = message["more_body"]
        seen.append((scope["path"], b"".join(parts)))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with served(app) as port:
        yield port, seen
