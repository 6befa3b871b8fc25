"""A door on a real port, in the test's own loop: real sockets in front and behind, memory and SQLite for stores."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import uvicorn

from gateway.auth import KeyRing, mint
from gateway.background import duties
from gateway.dependencies import Services
from gateway.door import Door
from gateway.engine_api import EngineApi
from gateway.engines import EnginePool
from gateway.hotswap import HotSwap
from gateway.lookups import RunCache, VersionBook
from gateway.meters import Meters
from gateway.metrics import Metrics
from gateway.releasing import Releasing
from gateway.settings import load
from gateway.shadows import Shadows
from gateway.tracing import Tracing
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.memory_store import MemoryStore
from tracker.store import EpisodeStore, EpisodeView
from tracker.types import Call, EpisodeHead, Key, Scope
from tracker.vault import Vault

Json = dict[str, Any]
BODY: Json = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
STREAM: Json = {**BODY, "stream": True}


@dataclass(frozen=True, slots=True)
class RunningDoor:
    """Where a door listens, what stands behind it, and a client for it."""

    url: str
    key: str
    services: Services
    engine: ScriptedEngine
    client: aiohttp.ClientSession
    store: EpisodeStore

    async def open_episode(self, run: str = "default", tenant: str = "default") -> str:
        head, _ = await self.services.ledger.create_episode(
            EpisodeHead(episode_id=f"ep-{secrets.token_hex(16)}", tenant=tenant, run=run, task="t"), None, ""
        )
        await self.store.open(head)
        return head.episode_id

    def headers(self, episode_id: str | None = None, **more: str) -> dict[str, str]:
        named = {"X-Hone-Episode": episode_id} if episode_id else {}
        return {"Authorization": f"Bearer {self.key}", **named, **more}

    async def chat(self, episode_id: str, body: Json | bytes, **headers: str) -> Answered:
        """One call, read to its end."""
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.client.post(
            f"{self.url}/v1/chat/completions", headers=self.headers(episode_id, **headers), **data
        ) as response:
            headers_in = {name.lower(): value for name, value in response.headers.items()}
            return Answered(response.status, headers_in, await response.read())

    def stream(self, episode_id: str, **headers: str) -> Any:
        """A streamed call, to be read or left by the test."""
        return self.client.post(
            f"{self.url}/v1/chat/completions",
            headers=self.headers(episode_id, **headers),
            json={**BODY, "stream": True},
        )

    async def calls(self, episode_id: str) -> tuple[Call, ...]:
        return (await self.view(episode_id)).calls

    async def view(self, episode_id: str) -> EpisodeView:
        return await self.store.view(episode_id)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it came over the wire."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def events(self) -> list[bytes]:
        """The data of each event of a stream."""
        return [part.removeprefix(b"data: ") for part in self.raw.split(b"\n\n") if part]


@asynccontextmanager
async def running_door(
    engine: ScriptedEngine,
    tmp_path: Path,
    *,
    store: EpisodeStore | None = None,
    policies: str = "solver=base",
    env: Mapping[str, str] | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[RunningDoor]:
    """Serve agents before this engine until the context ends."""
    clock = SystemClock()
    settings = load(
        {"HONE_ENGINES": engine.url, "HONE_POLICIES": policies, "HONE_DATA_DIR": str(tmp_path), **(env or {})}, tmp_path
    )
    store = store if store is not None else MemoryStore(clock)
    ledger = await SqlLedger.connect(settings.stores.database_url, clock, Vault(settings.stores.encryption_key))
    key, digest = mint()
    await ledger.add_key(Key(key_id="k1", digest=digest, scopes=(Scope.AGENT,)))
    async with httpx.AsyncClient() as http, duties() as running:
        engines = EnginePool(settings.engines, settings.stores.policies, EngineApi(http, settings.engine_key))
        versions, metrics = VersionBook(ledger, tmp_path / "adapters"), Metrics()
        services = Services(
            settings=settings,
            store=store,
            ledger=ledger,
            batches=ledger,
            keys=KeyRing(ledger, b"s" * 32, clock),
            meters=Meters(store, ledger, clock, "w1", settings.call_timeout_s),
            engines=engines,
            runs=RunCache(ledger),
            versions=versions,
            swap=(swap := HotSwap(settings.stores, store, ledger, engines, clock)),
            releasing=Releasing(settings.stores, ledger, swap, clock),
            shadows=Shadows(ledger, engines, versions, metrics),
            metrics=metrics,
            duties=running,
            clock=clock,
            worker_id="w1",
            tracing=tracing,
        )
        await engines.look([])
        door = Door(services)
        async with serving(door) as url, aiohttp.ClientSession() as client:
            yield RunningDoor(url, key, services, engine, client, store)
        await door.close()
    await ledger.close()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])


async def until(predicate: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(timeout_s):
        while not predicate():
            await asyncio.sleep(0.005)


__all__ = ["BODY", "STREAM", "Answered", "RunningDoor", "running_door", "serving", "until"]
