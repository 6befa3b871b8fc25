"""What an agent sends: a pass-through between agent and gateway that keeps every exchange.

It changes nothing but the Host header, streams as it reads, and hangs up where the agent does. Keys are blotted out of
what is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web
from yarl import URL

Json = dict[str, Any]
HOP: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive", "content-encoding"})
SECRET: Final = frozenset({"authorization", "x-api-key", "cookie"})
HELD: Final = "x-hone-"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request as the agent sent it, and how it was answered."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0
    hone: dict[str, str] = field(default_factory=dict)
    """The answer's headers `X-Hone-…`, in small letters."""
    answer: str = ""
    """Its body, as far as it came."""


class Wire:
    """The server: `exchanges` are all requests since `begin`, in order of arrival."""

    def __init__(self) -> None:
        self.target = ""
        """The gateway's root URL."""
        self.exchanges: list[Exchange] = []
        self._port = 0
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def begin(self) -> list[Exchange]:
        """A new list for what comes from now on."""
        self.exchanges = []
        return self.exchanges

    async def __aenter__(self) -> Wire:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{rest:.*}", self._pass)
        self._client = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        assert self._client is not None
        await self._runner.cleanup()
        await self._client.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        kept = Exchange(
            method=request.method, path=request.raw_path, headers=_shown(request.headers.items()), body=_parsed(raw)
        )
        self.exchanges.append(kept)
        assert self._client is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        async with self._client.request(
            request.method,
            URL(self.target + request.raw_path, encoded=True),
            data=raw,
            headers=headers,
            allow_redirects=False,
        ) as upstream:
            kept.status = upstream.status
            kept.hone = {n.lower(): v for n, v in upstream.headers.items() if n.lower().startswith(HELD)}
            passed = {n: v for n, v in upstream.headers.items() if n.lower() not in HOP - {"content-encoding"}}
            response = web.StreamResponse(status=upstream.status, headers=passed)
            await response.prepare(request)
            read = b""
            async for chunk in upstream.content.iter_any():
                read += chunk
                kept.answer = read.decode("utf-8", "replace")
                await response.write(chunk)
            await response.write_eof()
        return response


def _shown(headers: Any) -> dict[str, str]:
    return {name: "…" if name.lower() in SECRET else value for name, value in headers}


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw.decode("utf-8", "replace")
