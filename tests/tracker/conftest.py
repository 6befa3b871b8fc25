"""One ledger after the other: every test that asks for `ledger` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.tracker.databases import TEMPLATE, Clock, PostgresServer, postgres_server
from tracker.ledger import SqlLedger
from tracker.sql import open_engine, upgrade


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
