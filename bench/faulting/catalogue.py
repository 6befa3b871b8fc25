"""The faults, one function each: what is done to a stage, until the world is as it was before.

A fault begins in the middle of a load and is over when its function returns: what was killed runs again, as a
supervisor would have it, what was cut is whole. From then on nobody helps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.faulting.load import POLICY
from bench.faulting.relay import Relay, relay_to
from bench.faulting.stage import Stage

OUTAGE_S = 3.0
DOWN_S = 1.0
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    name: str
    does: str
    """What happens, in words."""
    stage: str
    inject: Callable[[Stage], Awaitable[None]]


async def nothing(stage: Stage) -> None:
    del stage


async def gateway_killed(stage: Stage) -> None:
    gateway = stage.gateways[0]
    await gateway.program.kill()
    await asyncio.sleep(DOWN_S)
    await gateway.program.spawn()


async def worker_killed(stage: Stage) -> None:
    """The gateway itself starts another."""
    os.kill(stage.gateways[0].program.workers()[0], signal.SIGKILL)


async def redis_killed(stage: Stage) -> None:
    assert stage.redis is not None
    await stage.redis.program.kill()
    await asyncio.sleep(DOWN_S)
    await stage.redis.start()


async def redis_restarted(stage: Stage) -> None:
    assert stage.redis is not None
    await stage.redis.program.stop()
    await stage.redis.start()


async def redis_paused(stage: Stage) -> None:
    assert stage.redis is not None
    stage.redis.program.pause()
    await asyncio.sleep(OUTAGE_S)
    stage.redis.program.resume()


async def redis_full(stage: Stage) -> None:
    assert stage.redis is not None
    await stage.redis.ask("CONFIG", "SET", "maxmemory", "1mb")
    await asyncio.sleep(OUTAGE_S)
    await stage.redis.ask("CONFIG", "SET", "maxmemory", "0")


async def redis_failed_over(stage: Stage) -> None:
    """The master dies for good while calls run; what was its replica takes over, the old one comes back as replica."""
    assert stage.redis is not None
    assert stage.replica is not None
    await stage.redis.program.kill()
    async with asyncio.timeout(60):
        while not await _is_master(stage):
            await asyncio.sleep(0.1)
    await stage.redis.start()


async def postgres_restarted(stage: Stage) -> None:
    assert stage.postgres is not None
    await stage.postgres.restart()


async def postgres_killed(stage: Stage) -> None:
    assert stage.postgres is not None
    await stage.postgres.crash()


async def postgres_paused(stage: Stage) -> None:
    assert stage.postgres is not None
    stage.postgres.pause()
    await asyncio.sleep(OUTAGE_S)
    stage.postgres.resume()


async def engine_killed(stage: Stage) -> None:
    await stage.engine.program.kill()
    await asyncio.sleep(DOWN_S)
    await stage.engine.start(stage.http)


async def clients_misbehave(stage: Stage) -> None:
    """Agents that send half a body, that stop reading, and that vanish without a word."""
    async with contextlib.AsyncExitStack() as stack:
        for gateway in stage.gateways:
            relay = await stack.enter_async_context(relay_to(gateway.port))
            episode = await stage.clients[0].start_episode("misbehave", idempotency_key=f"misbehave-{gateway.port}")
            for _ in range(8):
                await stack.enter_async_context(_half_body(gateway.port))
                await stack.enter_async_context(_unread(stage, f"http://{relay.address}", episode["episode_id"]))
            relay.swallow()
        await asyncio.sleep(OUTAGE_S)


async def clock_jumps(stage: Stage) -> None:
    """Forwards by an hour on one gateway, back by an hour on the other, then both the other way, then right again."""
    for offsets in ((HOUR_MS, -HOUR_MS), (-HOUR_MS, HOUR_MS), (0, 0)):
        for path, offset in zip(stage.clocks, offsets, strict=True):
            path.write_text(str(offset))
        await asyncio.sleep(DOWN_S)


async def disk_full_redis(stage: Stage) -> None:
    """The append-only file cannot grow. Redis ends itself then, and a supervisor starts it again and again."""
    assert stage.redis is not None
    filler = _fill(stage)
    async with asyncio.timeout(60):
        while stage.redis.program.is_running:
            await asyncio.sleep(0.05)
    await stage.redis.program.spawn()
    await asyncio.sleep(DOWN_S)
    filler.unlink()
    if not stage.redis.program.is_running:
        await stage.redis.program.spawn()
    await stage.redis.until_there()


async def disk_full_sqlite(stage: Stage) -> None:
    filler = _fill(stage)
    await asyncio.sleep(OUTAGE_S)
    filler.unlink()


def network(which: str, does: str) -> Callable[[Stage], Awaitable[None]]:
    """The network between both gateways and one of the things they dial."""

    async def inject(stage: Stage) -> None:
        relay = {"redis": stage.redis_relay, "sql": stage.sql_relay, "engine": stage.engine_relay}[which]
        assert relay is not None
        _harm(relay, does)
        await asyncio.sleep(OUTAGE_S)
        relay.join()

    return inject


def _harm(relay: Relay, does: str) -> None:
    if does == "cut":
        relay.cut()
    elif does == "swallow":
        relay.swallow()
    else:
        relay.slow(0.05)


FAULTS = (
    Fault("none", "nothing", "postgres", nothing),
    Fault("gateway_killed", "kill -9 of one of two gateways", "postgres", gateway_killed),
    Fault("redis_killed", "kill -9 of redis-server, 1 s away", "postgres", redis_killed),
    Fault("redis_restarted", "redis-server told to end, started again", "postgres", redis_restarted),
    Fault("redis_paused", "redis-server stopped for 3 s (SIGSTOP)", "postgres", redis_paused),
    Fault("redis_full", "Redis at maxmemory for 3 s", "postgres", redis_full),
    Fault("redis_cut", "connections to Redis reset for 3 s", "postgres", network("redis", "cut")),
    Fault("redis_silent", "packets to Redis swallowed for 3 s", "postgres", network("redis", "swallow")),
    Fault("redis_slow", "50 ms each way to Redis for 3 s", "postgres", network("redis", "slow")),
    Fault("postgres_restarted", "PostgreSQL restarted (fast)", "postgres", postgres_restarted),
    Fault("postgres_killed", "kill -9 of all of PostgreSQL", "postgres", postgres_killed),
    Fault("postgres_paused", "PostgreSQL stopped for 3 s (SIGSTOP)", "postgres", postgres_paused),
    Fault("postgres_cut", "connections to PostgreSQL reset for 3 s", "postgres", network("sql", "cut")),
    Fault("postgres_silent", "packets to PostgreSQL swallowed for 3 s", "postgres", network("sql", "swallow")),
    Fault("engine_killed", "kill -9 of the engine in mid-stream, 1 s away", "postgres", engine_killed),
    Fault("engine_cut", "connections to the engine reset for 3 s", "postgres", network("engine", "cut")),
    Fault("engine_silent", "packets to the engine swallowed for 3 s", "postgres", network("engine", "swallow")),
    Fault("clients_misbehave", "half bodies, answers never read, clients that vanish", "postgres", clients_misbehave),
    Fault("worker_killed", "kill -9 of one of two workers of a gateway", "workers", worker_killed),
    Fault("redis_failed_over", "the master killed, Sentinel makes its replica master", "sentinel", redis_failed_over),
    Fault("disk_full_redis", "no room for the append-only file", "full redis", disk_full_redis),
    Fault("disk_full_sqlite", "no room for the database, 3 s", "full sqlite", disk_full_sqlite),
    Fault("clock_jumps", "clocks an hour ahead and an hour behind", "clock", clock_jumps),
)


async def _is_master(stage: Stage) -> bool:
    assert stage.replica is not None
    told = await stage.replica.ask("ROLE")
    return isinstance(told, list) and told[0] in (b"master", "master")


def _fill(stage: Stage) -> Path:
    """A file that takes all room there is."""
    assert stage.disk is not None
    filler = stage.disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


@contextlib.asynccontextmanager
async def _half_body(port: int):
    """A client that promises a body and sends half of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f'{head}Content-Length: 1000\r\n\r\n{{"model": "solver"'.encode())
        await writer.drain()
        yield
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def _unread(stage: Stage, url: str, episode_id: str):
    """A client whose answer begins and is never read."""
    body = {"model": POLICY, "stream": True, "messages": [{"role": "user", "content": "nobody reads this"}]}
    headers = {"Authorization": f"Bearer {stage.key}", "X-Hone-Episode": episode_id}
    async with aiohttp.ClientSession() as session:
        asking = asyncio.ensure_future(session.post(f"{url}/v1/chat/completions", json=body, headers=headers))
        try:
            await asyncio.wait([asking], timeout=0.2)
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
