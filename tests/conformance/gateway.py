"""The gateway under test and the engine behind it, as other processes reach them: HTTP, and bare sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.conformance.forms import Answered, Json
from tests.fakes.engine_control import script_json
from tests.fakes.scripted_answers import Script

SCOPES = ("agent", "reward", "read", "trainer", "admin")


@dataclass(frozen=True, slots=True)
class Keys:
    """A key for each thing that is done. `other` belongs to another tenant."""

    agent: str
    reward: str
    read: str
    trainer: str
    admin: str
    other: str | None = None

    @classmethod
    def parse(cls, text: str) -> Keys:
        """`agent=K,reward=K,…`, or one key for all; what is not named is done with the admin key."""
        named = dict(part.split("=", 1) for part in text.split(",") if "=" in part and part.split("=")[0] in _NAMES)
        if not named:
            return cls(*[text] * len(SCOPES))
        rest = named.get("admin") or next(iter(named.values()))
        return cls(*[named.get(scope, rest) for scope in SCOPES], other=named.get("other"))


_NAMES = (*SCOPES, "other")


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where it listens, and what else was said about it."""

    url: str
    keys: Keys
    client: aiohttp.ClientSession
    model: str = "solver"
    data_dir: Path | None = None
    session_header: str | None = None
    """A header that it was told to take for an agent's session (`episode_from`)."""
    capabilities: frozenset[str] = field(default_factory=frozenset)

    async def send(
        self, method: str, path: str, body: Json | bytes | None = None, *, key: str | None = None, **headers: str
    ) -> Answered:
        data: Json = {} if body is None else {"data": body} if isinstance(body, bytes) else {"json": body}
        sent = {"Content-Type": "application/json", **headers}
        if key:
            sent = {"Authorization": f"Bearer {key}", **sent}
        async with self.client.request(
            method, self.url + path, headers=sent, allow_redirects=False, **data
        ) as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answered(response.status, names, await response.read())

    async def raw(self, head: str, body: bytes = b"", declared: int | None = None) -> tuple[int, bytes]:
        """A request as bytes (its first line and headers), for what no client library would send; status and all."""
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        size = len(body) if declared is None else declared
        lines = [*head.split("\n"), f"Host: {parts.netloc}", "Connection: close", f"Content-Length: {size}"]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        try:
            answer = await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
        return int(answer.split(b" ", 2)[1]), answer


@dataclass(frozen=True, slots=True)
class Received:
    """One request as the engine got it. Times are on the engine's clock."""

    method: str
    path: str
    body: Json
    headers: dict[str, str]
    raw: str
    arrived_s: float
    num_sent: int
    ended_s: float | None
    disconnected_s: float | None


@dataclass(frozen=True, slots=True)
class Engine:
    """The scripted engine behind the gateway, by its control surface."""

    url: str
    client: aiohttp.ClientSession

    async def script(self, contains: str, scripts: Sequence[Script], gate: str | None = None) -> None:
        said = {"contains": contains, "scripts": [script_json(script) for script in scripts], "gate": gate}
        await self._post("script", said)

    async def by_adapter(self, contains: str) -> None:
        """Let answers to these words follow from the adapter's files."""
        await self._post("script", {"contains": contains, "scripts": [{"by_adapter": True}]})

    async def open_gate(self, gate: str) -> None:
        await self._post("gate", {"gate": gate})

    async def settings(self, **fields: Any) -> None:
        await self._post("settings", fields)

    async def received(self, contains: str = "", path: str = "") -> list[Received]:
        return [Received(**one) for one in (await self._get(contains, path))["received"]]

    async def models(self) -> Json:
        return (await self._get("no such words", ""))["models"]

    async def _get(self, contains: str, path: str) -> Json:
        query = {"contains": contains, "path": path}
        async with self.client.get(f"{self.url}/control/received", params=query) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def _post(self, what: str, said: Json) -> None:
        async with self.client.post(f"{self.url}/control/{what}", json=said) as response:
            assert response.status == 200, await response.text()
