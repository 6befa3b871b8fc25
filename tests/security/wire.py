"""A server with the gateway's HTTP protocol in the test's own loop, and raw bytes to it, as no client library sends."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn

from gateway.connections import ConnectionLimits, HttpProtocol

HOST = b"Host: x\r\n"
PATIENCE_S = 30.0


@asynccontextmanager
async def served(app: Any, limits: ConnectionLimits | None = None, **options: Any) -> AsyncIterator[int]:
    """Serve until the block ends; the port."""
    async with running(app, limits, **options) as (port, _):
        yield port


@asynccontextmanager
async def running(
    app: Any, limits: ConnectionLimits | None = None, **options: Any
) -> AsyncIterator[tuple[int, set[Any]]]:
    """Serve until the block ends; the port, and the connections that are open."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    protocol = partial(HttpProtocol, limits=limits or ConnectionLimits())
    config = uvicorn.Config(
        app,
        http=protocol,
        lifespan="off",
        log_config=None,
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        **options,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listener.getsockname()[1], server.server_state.connections
    finally:
        server.should_exit = True
        await task
        listener.close()


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Send, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await until_closed(reader)
    finally:
        writer.close()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Everything that comes; a reset is an end too."""
    parts: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        try:
            while part := await reader.read(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
    return b"".join(parts)


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of an answer in OpenAI's form."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer[:300]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error
