"""A stage: two gateways, each as `hone gateway` in a process of its own, before one pair of stores and one engine.

Between each of them and everything it dials stands a relay, so that the network can be cut. Settings are the defaults,
except that looks and sweeps come more often and a call may take 20 s at most, so that no fault outlasts the bench. What
goes wrong on a stage is left to `catalogue.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx

from bench.faulting.load import GROUP_SIZE, POLICY
from bench.faulting.relay import Relay, relay_to
from bench.faulting.servers import EngineServer, GatewayServer, PostgresServer, RedisServer, Sentinel
from gateway.auth import mint
from gateway.client import Client
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.types import Key, Scope

PAUSE_S = 0.02
"""Between two events of an answer."""
SMALL_DISK = "24m"
SETTINGS = {
    "HONE_POLICIES": f"{POLICY}=base",
    "HONE_POLL_INTERVAL_S": "0.5",
    "HONE_SWEEP_INTERVAL_S": "0.3",
    "HONE_BEGIN_TIMEOUT_S": "0.5",
    "HONE_CALL_TIMEOUT_S": "20",
    "HONE_ACCESS_LOG": "false",
}
RUN_SETTINGS = {
    "group_size": GROUP_SIZE,
    "groups_per_step": 1,
    "staleness": 64,
    "on_stale": "train",
    # Longer than any jump of a clock: groups that are over in time are another matter.
    "group_timeout_s": 100_000,
    "reward_grace_s": 100_000,
}


class NoDisk(Exception):
    """No small file system can be mounted here."""


@dataclass(slots=True)
class Stage:
    """What a fault can be done to, and who asks and looks."""

    folder: Path
    http: httpx.AsyncClient
    session: aiohttp.ClientSession
    engine: EngineServer
    engine_relay: Relay
    key: str = ""
    database_url: str = ""
    """As the bench itself reads it, past every relay."""
    gateways: list[GatewayServer] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    """One for each gateway."""
    redis: RedisServer | None = None
    redis_relay: Relay | None = None
    replica: RedisServer | None = None
    postgres: PostgresServer | None = None
    sql_relay: Relay | None = None
    disk: Path | None = None
    """A small file system that can be filled."""
    clocks: list[Path] = field(default_factory=list)
    """What each gateway's clock is ahead, in ms."""
    ledger: SqlLedger | None = None

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways]


@asynccontextmanager
async def open_stage(folder: Path, kind: str = "postgres", num_gateways: int = 2) -> AsyncIterator[Stage]:
    """Everything up, until the block is left.

    Kinds: `postgres` (with Redis and PostgreSQL behind relays), `sqlite`, `workers` (one gateway with two), `sentinel`,
    `full redis` and `full sqlite` (on a small disk), `clock` (gateways whose clocks can be turned).
    """
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=15))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())
        )
        engine = EngineServer(folder / "engine", PAUSE_S)
        stack.push_async_callback(engine.program.kill)
        await engine.start(http)
        stage = Stage(folder, http, session, engine, await stack.enter_async_context(relay_to(engine.port)))
        if kind.startswith("full"):
            stage.disk = _small_disk(folder / "disk", stack)
        settings = {
            **SETTINGS,
            "HONE_ENGINES": f"http://{stage.engine_relay.address}",
            "HONE_REDIS_URL": await _open_redis(stage, kind, stack),
            "HONE_DATABASE_URL": await _open_sql(stage, kind, stack),
        }
        await _open_gateways(stage, settings, num_gateways, kind, stack)
        yield stage


async def _open_redis(stage: Stage, kind: str, stack: AsyncExitStack) -> str:
    """Start Redis; the URL for the gateways."""
    if kind == "sentinel":
        return await _open_sentinels(stage, stack)
    folder = stage.disk / "redis" if kind == "full redis" and stage.disk else stage.folder / "redis"
    stage.redis = RedisServer(folder, log=stage.folder / "redis.log")
    stack.push_async_callback(stage.redis.program.kill)
    await stage.redis.start()
    stage.redis_relay = await stack.enter_async_context(relay_to(stage.redis.port))
    return f"redis://{stage.redis_relay.address}/0"


async def _open_sentinels(stage: Stage, stack: AsyncExitStack) -> str:
    """A master, its replica, and three that watch them."""
    strict = ("--min-replicas-to-write", "1")
    stage.redis = RedisServer(stage.folder / "redis-0", *strict)
    stage.replica = RedisServer(stage.folder / "redis-1", *strict, "--replicaof", "127.0.0.1", str(stage.redis.port))
    sentinels = [Sentinel(stage.folder / f"sentinel-{n}", stage.redis.port, 2) for n in range(3)]
    for server in (stage.redis, stage.replica):
        stack.push_async_callback(server.program.kill)
        await server.start()
    for sentinel in sentinels:
        stack.push_async_callback(sentinel.program.kill)
        await sentinel.program.spawn()
    async with asyncio.timeout(60):
        for sentinel in sentinels:
            while await sentinel.num_known() != (1, 2):
                await asyncio.sleep(0.1)
    await stage.redis.until_replicated()
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{hosts}/hone/0"


async def _open_sql(stage: Stage, kind: str, stack: AsyncExitStack) -> str:
    """Start PostgreSQL, or name a file; the URL for the gateways."""
    if kind != "postgres":
        folder = stage.disk if kind == "full sqlite" and stage.disk else stage.folder
        stage.database_url = f"sqlite:///{folder / 'hone.db'}"
        return stage.database_url
    folder = Path(tempfile.mkdtemp(prefix="hone-pg-"))  # its own user must be able to get there
    stack.callback(shutil.rmtree, folder)
    stage.postgres = PostgresServer(folder)
    await stage.postgres.start()
    stack.push_async_callback(stage.postgres.stop)
    stage.sql_relay = await stack.enter_async_context(relay_to(stage.postgres.port))
    stage.database_url = f"postgresql://postgres@127.0.0.1:{stage.postgres.port}/postgres"
    return f"postgresql://postgres@{stage.sql_relay.address}/postgres"


async def _open_gateways(
    stage: Stage, settings: Mapping[str, str], num_gateways: int, kind: str, stack: AsyncExitStack
) -> None:
    stage.ledger = await SqlLedger.connect(stage.database_url, SystemClock())
    stack.push_async_callback(stage.ledger.close)
    stage.key, digest = mint()
    await stage.ledger.add_key(Key(key_id="bench", digest=digest, scopes=tuple(Scope)))
    if kind == "workers":
        settings, num_gateways = {**settings, "HONE_WORKERS": "2"}, 1
    for number in range(num_gateways):
        argv = None
        if kind == "clock":
            stage.clocks.append(stage.folder / f"clock-{number}")
            stage.clocks[-1].write_text("0")
            argv = [sys.executable, "-m", "bench.faulting.gateway", str(stage.clocks[-1])]
        gateway = GatewayServer(stage.folder / f"gateway-{number}", settings, argv)
        stack.push_async_callback(gateway.program.stop)
        stage.gateways.append(gateway)
    await asyncio.gather(*(gateway.start(stage.http) for gateway in stage.gateways))
    for gateway in stage.gateways:
        stage.clients.append(await stack.enter_async_context(Client(gateway.url, stage.key)))


def _small_disk(folder: Path, stack: AsyncExitStack) -> Path:
    """A file system that fills soon; raises `NoDisk` where none can be mounted, which takes root."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", folder]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoDisk(done.stderr.strip())
    stack.callback(subprocess.run, ["umount", "-l", folder], check=True)
    return folder
