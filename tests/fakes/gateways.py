"""A whole gateway in the test's own loop: real sockets, a real redis-server, SQLite, before a scripted engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gateway.app import create_app
from gateway.auth import mint
from gateway.connections import HttpProtocol, limits_of
from gateway.desk import open_ledger
from gateway.settings import GatewaySettings, load
from tests.fakes.adapter_files import is_safetensors, marked_weights
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.ledger import SqlLedger
from tracker.types import Key, Scope

Json = dict[str, Any]
PATIENCE_S = 60.0
"""For whatever a busy machine takes its time for; nothing that goes well waits for it."""
FAST = {"HONE_POLL_INTERVAL_S": "0.05", "HONE_SWEEP_INTERVAL_S": "0.05", "HONE_BEGIN_TIMEOUT_S": "10"}

CANARY = """
[[policies]]
name = "solver"
model = "base"
[policies.release]
mode = "canary"
"""
"""A `hone.toml` whose versions have to earn their traffic; further rules of the release may follow."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """Where it listens, and clients for it."""

    url: str
    settings: GatewaySettings
    admin: httpx.AsyncClient
    ledger: SqlLedger

    async def client(self, *scopes: Scope, tenant: str = "default") -> httpx.AsyncClient:
        """A client with a new key; closed by whoever asked."""
        key, digest = mint()
        await self.ledger.add_key(Key(key_id=f"k-{digest[:16]}", digest=digest, tenant=tenant, scopes=scopes))
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    async def open(self, **fields: Any) -> Json:
        response = await self.admin.post("/v1/episodes", json={"task": "t", **fields})
        assert response.is_success, response.text
        return response.json()

    async def chat(self, episode: Json) -> httpx.Response:
        """One call as an agent with that episode's key makes it."""
        return await self.admin.post(
            "/v1/chat/completions",
            headers={"Authorization": f"Bearer {episode['api_key']}"},
            json={"model": "solver", "messages": [{"role": "user", "content": "hi"}]},
        )

    async def until(self, path: str, **fields: Any) -> Json:
        """Wait until the answer has these fields."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = (await self.admin.get(path)).json()
                if all(answer.get(name) == value for name, value in fields.items()):
                    return answer
                await asyncio.sleep(0.02)

    def adapter(self, folder: str, weights: bytes = b"weights") -> str:
        """Write an adapter's folder, with real weights or such that these bytes tell apart; its digest."""
        if not is_safetensors(weights):
            weights = marked_weights(weights)
        path = self.settings.stores.adapters_dir / folder
        path.mkdir(parents=True)
        (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
        (path / "adapter_model.safetensors").write_bytes(weights)
        return hashlib.sha256(weights).hexdigest()

    async def publish(self, folder: str, digest: str, **more: Any) -> httpx.Response:
        return await self.admin.post("/v1/policies/solver/versions", json={"folder": folder, "digest": digest, **more})


@asynccontextmanager
async def running_gateway(
    engine: ScriptedEngine | str, data_dir: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[RunningGateway]:
    """Serve until the block ends; raises what the start refused."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    given = {
        "HONE_DATA_DIR": str(data_dir),
        "HONE_POLICIES": "solver=base",
        "HONE_ENGINES": engine if isinstance(engine, str) else engine.url,
        "HONE_PORT": str(port),
        **FAST,
        **(env or {}),
    }
    settings = load(given, data_dir)
    protocol = partial(HttpProtocol, limits=limits_of(settings))
    server = uvicorn.Server(
        uvicorn.Config(create_app(settings), http=protocol, lifespan="on", log_config=None, ws="none")
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{port}"
        key, digest = mint()
        authorization = {"Authorization": f"Bearer {key}"}
        async with (
            open_ledger(settings.stores) as ledger,
            httpx.AsyncClient(base_url=url, headers=authorization, timeout=PATIENCE_S) as admin,
        ):
            await ledger.add_key(Key(key_id=f"k-all-{port}", digest=digest, scopes=tuple(Scope)))
            yield RunningGateway(url, settings, admin, ledger)
    finally:
        server.should_exit = True
        await task
        listener.close()
