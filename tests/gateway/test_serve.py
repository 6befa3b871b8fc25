"""How the gateway is served: what is no HTTP is refused like everything else."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.responses import Response

from gateway.connections import HttpProtocol

NO_HTTP = [
    b"garbage\r\n\r\n",
    b"NOSUCH /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/reward HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/reward HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Response(), http=HttpProtocol, lifespan="off", log_config=None, ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    await task
    listener.close()


@pytest.mark.parametrize("request_bytes", NO_HTTP)
async def test_what_is_no_http_is_refused_in_openais_form(port: int, request_bytes: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_http"
