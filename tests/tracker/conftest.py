"""One implementation after the other: `ledger` is SQLite and PostgreSQL, `store` is memory and Redis."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.tracker.databases import PATIENT, TEMPLATE, Clock, PostgresServer, postgres_server
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.memory_store import MemoryStore
from tracker.redis_store import RedisStore
from tracker.sql import open_engine, upgrade
from tracker.store import EpisodeStore


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database that others are copied from."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with its tables."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "hone.db")
        return f"sqlite:///{tmp_path / 'hone.db'}"
    return request.getfixturevalue("postgres").new_database(TEMPLATE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ledger(database_url: str, clock: Clock) -> AsyncIterator[SqlLedger]:
    opened = SqlLedger(open_engine(database_url), clock)
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[EpisodeStore]:
    if request.param == "memory":
        yield MemoryStore(SystemClock())
        return
    store = await RedisStore.connect(request.getfixturevalue("redis_url"), patience=PATIENT)
    yield store
    await store.close()
