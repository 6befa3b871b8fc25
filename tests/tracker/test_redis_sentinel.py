"""Sentinel's URLs, and that nothing counts which a failover would lose."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import pytest

from bench.faulting.servers import RedisServer, Sentinel
from tests.tracker.databases import PATIENT
from tracker.errors import SettingsError, Unavailable
from tracker.redis_link import RedisLink
from tracker.redis_sentinel import parse_sentinel_url
from tracker.redis_store import RedisStore
from tracker.redis_strength import check_replication
from tracker.types import EpisodeHead


def test_a_url_may_hold_a_login_ports_and_a_database():
    found = parse_sentinel_url("redis+sentinel://me:p%40ss@[::1]:1,two/hone/3")
    assert found == ([("::1", 1), ("two", 26379)], "hone", {"db": 3, "username": "me", "password": "p@ss"})


@pytest.mark.parametrize("url", ["redis+sentinel:///hone", "redis+sentinel://one", "redis+sentinel://one/hone/x"])
def test_a_url_that_names_no_sentinel_or_no_master_is_refused_with_what_to_write(url: str):
    with pytest.raises(SettingsError, match=r"redis\+sentinel://HOST:PORT,HOST:PORT/NAME"):
        RedisLink(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret/word@host:6379/0",
        "redis://me:s3cret#word@host:6379/0",
        "redis://host:6379/0?s3cret=1",
        "redis+sentinel://me:s3cret/word@one:26379",
    ],
)
def test_a_url_that_is_not_understood_is_refused_without_its_password(url: str):
    with pytest.raises(SettingsError, match="in a password write %2F for /") as refused:
        RedisLink(url)
    assert "s3cret" not in "".join(traceback.format_exception(refused.value, chain=True)).replace(url, "")


@pytest.mark.parametrize("found", ["0", "unknown"])
def test_a_master_that_goes_on_without_replicas_is_refused(found: str):
    check_replication({"min-replicas-to-write": "2"})
    with pytest.raises(SettingsError, match="CONFIG SET min-replicas-to-write 1"):
        check_replication({"min-replicas-to-write": found})


@pytest.mark.slow
async def test_what_no_replica_has_does_not_count(tmp_path: Path) -> None:
    master = RedisServer(tmp_path / "master")
    replica = RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port))
    sentinel = Sentinel(tmp_path / "sentinel", master.port, 1)
    try:
        await master.start()
        await sentinel.program.spawn()
        await connectable(sentinel)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/hone"
        with pytest.raises(Unavailable, match="no replica has acknowledged"):
            await opened(url, "ep-1")
        await replica.start()
        await master.until_replicated()
        await opened(url, "ep-2")
    finally:
        for server in (sentinel, replica, master):
            await server.program.kill()


@pytest.mark.slow
async def test_what_an_earlier_connection_wrote_does_not_count_before_a_replica_has_it(tmp_path: Path) -> None:
    master = RedisServer(tmp_path / "master")
    replica = RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port))
    sentinel = Sentinel(tmp_path / "sentinel", master.port, 1)
    link: RedisLink | None = None
    try:
        await master.start()
        await sentinel.program.spawn()
        await connectable(sentinel)
        await replica.start()
        await master.until_replicated()
        replica.program.pause()
        await master.ask("SET", "k", "of a connection that broke before its reply")
        link = RedisLink(f"redis+sentinel://127.0.0.1:{sentinel.port}/hone", stall_timeout_s=30, records=True)
        link.start()
        with pytest.raises(Unavailable, match="no replica has acknowledged"):
            await link.ask(("GET", "k"), timeout_s=30)
        replica.program.resume()
        await link.ask(("GET", "k"), timeout_s=60, repeat_s=60)
    finally:
        if link is not None:
            await link.close()
        for server in (sentinel, replica, master):
            await server.program.kill()


async def opened(url: str, episode_id: str) -> None:
    store = await RedisStore.connect(url, patience=PATIENT, strict=False)
    try:
        await store.open(EpisodeHead(episode_id=episode_id))
        assert (await store.head(episode_id)).episode_id == episode_id
    finally:
        await store.close()


async def connectable(sentinel: Sentinel) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", sentinel.port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
