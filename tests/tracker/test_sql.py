"""Several processes write one database at once, as gateways, a trainer and the command line do."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from bench.faulting.relay import relay_to
from bench.faulting.servers import PostgresServer
from tests.tracker.databases import Clock
from tests.tracker.filling import created
from tracker.errors import Unavailable
from tracker.ledger import SqlLedger
from tracker.sql import Database, open_engine, upgrade
from tracker.types import Key, RunSettings

ROOT = Path(__file__).parents[2]
WRITER = """
    import asyncio, sys
    from tracker.clock import SystemClock
    from tracker.ledger import SqlLedger
    from tracker.sql import Database, open_engine, upgrade
    from tracker.types import EpisodeHead, Reward

    async def main(url, name):
        ledger = SqlLedger(open_engine(url), SystemClock())
        for number in range(20):
            episode = f"{name}-{number}"
            await ledger.create_episode(EpisodeHead(episode_id=episode, task="t"), episode, "")
            reward = Reward(reward_id=episode, seq=0, episode_id=episode, value=1.0)
            await ledger.add_reward("default", reward, None, "")
        await ledger.close()

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_processes_that_write_at_once_share_places_and_lose_nothing(database_url: str) -> None:
    ledger = SqlLedger(open_engine(database_url), Clock())
    await ledger.put_run("default", RunSettings(run="default", group_size=4))
    command = [sys.executable, "-c", textwrap.dedent(WRITER), database_url]
    writers = [await asyncio.create_subprocess_exec(*command, name, cwd=ROOT) for name in ("a", "b", "c")]
    for number in range(20):
        await created(ledger, f"here-{number}")
        await ledger.add_key(Key(key_id=f"k{number}", digest=f"d{number}"))
    assert [await writer.wait() for writer in writers] == [0, 0, 0]
    groups, _ = await ledger.list_groups("default", run=None, task=None, limit=200, cursor=None)
    assert [len(group.members) for group in groups] == [4] * 20
    assert sorted(group.round for group in groups) == list(range(20))
    rows, _ = await ledger.list_episodes("default", run=None, task=None, status="ok", limit=200, cursor=None)
    assert len(rows) == 60
    assert all(row.reward == 1.0 for row in rows)
    await ledger.close()


@pytest.mark.parametrize("sqlstate", ["57P01", "57P03", "08006", "53300", "25P03", "40001"])
async def test_a_postgresql_that_stops_starts_or_is_full_is_unavailable_and_no_bug(
    tmp_path: Path, sqlstate: str
) -> None:
    database = Database(open_engine(f"sqlite:///{tmp_path}/hone.db"))
    for run in (database.read, database.write):
        with pytest.raises(Unavailable, match="said so"):
            await run(saying, sqlstate)
    await database.close()


async def test_a_statement_that_is_wrong_stays_a_bug(tmp_path: Path) -> None:
    database = Database(open_engine(f"sqlite:///{tmp_path}/hone.db"))
    for run in (database.read, database.write):
        with pytest.raises(DBAPIError):
            await run(saying, "42703")
    await database.close()


def saying(_: Connection, sqlstate: str) -> None:
    """A statement that PostgreSQL answers with this code."""

    class Said(Exception):
        def __init__(self) -> None:
            super().__init__("said so")
            self.sqlstate = sqlstate

    raise DBAPIError("SELECT 1", None, Said())


@pytest.mark.slow
async def test_the_locks_of_a_session_that_fell_silent_are_given_back() -> None:
    """The network swallows it in the middle of a transaction, where PostgreSQL waits for its next word."""
    folder = Path(tempfile.mkdtemp(prefix="hone-pg-"))  # its own user must be able to get there
    server = PostgresServer(folder)
    await server.start()
    try:
        async with relay_to(server.port) as relay:
            database = Database(open_engine(f"postgresql://postgres@{relay.address}/postgres"), work_s=2)
            await database.write(executing, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
            lost = asyncio.create_task(database.write(executing, "UPDATE t SET n = 2", "SELECT pg_sleep(0.5)"))
            while not await database.read(executing, "SELECT 1 FROM pg_locks WHERE mode = 'RowExclusiveLock'"):
                await asyncio.sleep(0.01)
            relay.swallow()
            relay.join()
            with pytest.raises(Unavailable):
                await lost
            await database.write(executing, "UPDATE t SET n = 3")
            assert await database.read(executing, "SELECT n FROM t WHERE n = 3")
            await database.close()
    finally:
        await server.stop()
        shutil.rmtree(folder)


def executing(connection: Connection, *statements: str) -> bool:
    """Whether the last of them found anything."""
    results = [connection.exec_driver_sql(statement) for statement in statements]
    return results[-1].returns_rows and results[-1].first() is not None


async def test_a_path_with_a_space_works(tmp_path: Path) -> None:
    ledger = await SqlLedger.connect(f"sqlite:///{tmp_path}/a folder's database.db", Clock())
    await ledger.ping()
    await ledger.close()


async def test_a_new_file_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "hone.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(upgrade(f"sqlite:///{path}"))
        done, _ = await asyncio.wait([opening], timeout=0.2)
        assert not done, "it waits, and does not fail"
        other.execute("COMMIT")
    await opening
    database = Database(open_engine(f"sqlite:///{path}"))
    assert await database.read(lambda connection: connection.exec_driver_sql("PRAGMA journal_mode").scalar()) == "wal"
    await database.close()


def test_what_is_cancelled_while_it_connects_is_over_when_the_database_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def slow_connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        time.sleep(0.3)
        return connect(*args, **kwargs)

    async def cancel_while_connecting() -> None:
        database = Database(open_engine(f"sqlite:///{tmp_path}/hone.db"))
        asked = [asyncio.create_task(move(_one)) for move in (database.read, database.write)]
        await asyncio.sleep(0.05)
        for task in asked:
            task.cancel()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        await database.close()

    broken: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(sqlite3, "connect", slow_connect)
    monkeypatch.setattr(threading, "excepthook", broken.append)
    before = set(threading.enumerate())
    asyncio.run(cancel_while_connecting())
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert not broken, "a thread still worked on the file when the loop was gone"


def _one(connection: Connection) -> int:
    return connection.exec_driver_sql("SELECT 1").scalar_one()
