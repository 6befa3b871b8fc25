"""A gateway as users start it: `hone gateway` in a process of its own, before an engine that runs already.

Embedded Redis, SQLite, keys made by `hone keys create`; everything goes over HTTP. For black-box tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.running import Answered
from tests.fakes.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Episode:
    """An open episode and its session key."""

    episode_id: str
    api_key: str
    base_url: str
    group_id: str | None


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A running gateway with one key of every kind that tests need."""

    url: str
    engine: ScriptedEngine
    client: aiohttp.ClientSession
    agent_key: str
    operator_key: str
    """May give rewards, read and administer."""
    data_dir: Path
    pid: int

    async def send(
        self, method: str, path: str, body: Json | bytes | None = None, *, key: str | None = None, **headers: str
    ) -> Answered:
        data: Json = {"data": body} if isinstance(body, bytes) else {"json": body}
        sent = {"Authorization": f"Bearer {key or self.operator_key}", "Content-Type": "application/json", **headers}
        url = path if path.startswith("http") else self.url + path
        async with self.client.request(method, url, headers=sent, **data) as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answered(response.status, names, await response.read())

    async def ask(self, method: str, path: str, body: Json | bytes | None = None) -> Any:
        """What a request that must succeed answers."""
        answered = await self.send(method, path, body)
        assert answered.status < 300, (method, path, answered.status, answered.raw)
        return json.loads(answered.raw)

    async def open_episode(self, task: str = "a task", **fields: Any) -> Episode:
        answered = await self.send("POST", "/v1/episodes", {"task": task, **fields}, key=self.agent_key)
        assert answered.status == 201, answered.raw
        said = json.loads(answered.raw)
        return Episode(said["episode_id"], said["api_key"], said["base_url"], said["group_id"])

    async def chat(self, episode: Episode, body: Json | bytes | None = None, **headers: str) -> Answered:
        sent = body if isinstance(body, bytes) else {"model": "solver", "messages": [HI], **(body or {})}
        path = f"{self.url}/v1/chat/completions"
        return await self.send("POST", path, sent, key=episode.api_key, **headers)

    async def reward(self, episode: Episode, reward: float) -> Any:
        return await self.ask("POST", "/v1/reward", {"episode_id": episode.episode_id, "reward": reward})

    async def samples(self, episode: Episode) -> Any:
        return await self.ask("GET", f"/v1/episodes/{episode.episode_id}/samples")

    async def calls(self, episode: Episode) -> list[Json]:
        return (await self.ask("GET", f"/v1/episodes/{episode.episode_id}/timeline"))["calls"]


HI: Json = {"role": "user", "content": "hi"}


@asynccontextmanager
async def gateway_process(data_dir: Path, **env: str) -> AsyncIterator[GatewayProcess]:
    """Start an engine and a gateway before it; both end with the context."""
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as client:
        port = free_port()
        settings = {
            "HONE_PORT": str(port),
            "HONE_ENGINES": engine.url,
            "HONE_POLICIES": "solver=base",
            "HONE_DATA_DIR": str(data_dir),
            "HONE_BEGIN_TIMEOUT_S": "10",
            **env,
        }
        log = data_dir.with_suffix(".log")
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *hone_program("gateway"), env=environment(settings), cwd=data_dir.parent, stdout=output, stderr=output
            )
        url = f"http://127.0.0.1:{port}"
        try:
            await until_ready(client, url, process, log)
            yield GatewayProcess(
                url=url,
                engine=engine,
                client=client,
                agent_key=await new_key(settings, data_dir, "agent"),
                operator_key=await new_key(settings, data_dir, "agent", "reward", "read", "admin"),
                data_dir=data_dir,
                pid=process.pid,
            )
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)


def hone_program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway.cli", *arguments]


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    return {**clean, "PYTHONPATH": str(ROOT), **settings}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def until_ready(client: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(180):
        while True:
            assert process.returncode is None, f"the gateway ended; see {log}"
            try:
                async with client.get(f"{url}/health/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass  # it does not listen yet
            await asyncio.sleep(0.05)


async def new_key(settings: Mapping[str, str], data_dir: Path, *scopes: str, tenant: str = "default") -> str:
    """A key as users make one."""
    arguments = ["--tenant", tenant, *(part for scope in scopes for part in ("--scope", scope))]
    process = await asyncio.create_subprocess_exec(
        *hone_program("keys", "create", *arguments, "--json"),
        env=environment(settings),
        cwd=data_dir.parent,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return json.loads(output)["key"]
