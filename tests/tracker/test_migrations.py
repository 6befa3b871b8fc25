"""The schema goes up and down on both databases, and is the one that the code expects."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from tests.tracker.databases import Clock
from tracker import tables
from tracker.errors import SettingsError
from tracker.ledger import SqlLedger
from tracker.sql import Database, downgrade, driver_url, open_engine, upgrade

ROOT = Path(__file__).parents[2]
FIRST_SERVED = "0003"
"""From this revision on, gateways of two versions may stand before one database."""


def copied_source(folder: Path) -> Path:
    """What a wheel is built from, aside: building leaves traces."""
    for package in ("tracker", "migrations"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


async def table_names(url: str) -> set[str]:
    database = Database(open_engine(url))
    try:
        return set(await database.read(lambda connection: inspect(connection).get_table_names()))
    finally:
        await database.close()


async def test_the_schema_goes_up_and_down_and_up_again(empty_url: str) -> None:
    await upgrade(empty_url)
    assert set(tables.metadata.tables) <= await table_names(empty_url)
    await downgrade(empty_url, "base")
    assert await table_names(empty_url) == {"alembic_version"}
    await upgrade(empty_url)
    assert set(tables.metadata.tables) <= await table_names(empty_url)


async def test_migrating_a_migrated_database_keeps_what_it_holds(empty_url: str) -> None:
    ledger = await SqlLedger.connect(empty_url, Clock())
    secret = await ledger.secret("sessions")
    await ledger.close()
    ledger = await SqlLedger.connect(empty_url, Clock())
    assert await ledger.secret("sessions") == secret
    await ledger.close()


async def test_the_migrated_schema_is_the_one_the_code_declares(empty_url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), tables.metadata)

    await upgrade(empty_url)
    database = Database(open_engine(empty_url))
    assert await database.read(differences) == []
    await database.close()


async def test_gateways_that_start_together_migrate_once(empty_url: str) -> None:
    await asyncio.gather(*(upgrade(empty_url) for _ in range(4)))
    assert set(tables.metadata.tables) <= await table_names(empty_url)


async def test_a_schema_that_a_newer_version_made_is_left_as_it_is(empty_url: str) -> None:
    def look_newer(connection: Connection) -> None:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from-the-future'"))

    await upgrade(empty_url)
    database = Database(open_engine(empty_url))
    await database.write(look_newer)
    await upgrade(empty_url)
    assert set(tables.metadata.tables) <= await table_names(empty_url)
    await database.close()


async def test_what_a_revision_adds_leaves_older_code_working(empty_url: str) -> None:
    """An older gateway goes on while it runs: its statements name no new column, and every old one is still there."""

    def columns(connection: Connection) -> dict[tuple[str, str], bool]:
        """(table, column) -> whether an insert may leave it out."""
        found = inspect(connection)
        return {
            (name, column["name"]): column["nullable"] or column["default"] is not None
            for name in found.get_table_names()
            for column in found.get_columns(name)
        }

    await upgrade(empty_url, FIRST_SERVED)
    database = Database(open_engine(empty_url))
    before = await database.read(columns)
    await upgrade(empty_url)
    after = await database.read(columns)
    await database.close()
    assert before.keys() <= after.keys()
    old_tables = {table for table, _ in before}
    assert [place for place in after.keys() - before.keys() if place[0] in old_tables and not after[place]] == []


def test_an_unknown_database_is_refused_with_what_to_write() -> None:
    with pytest.raises(SettingsError, match="sqlite:///PATH or postgresql://"):
        driver_url("mysql://somewhere/hone")


@pytest.mark.slow
def test_the_revisions_come_with_the_wheel_and_run_from_it(tmp_path: Path) -> None:
    source = copied_source(tmp_path / "source")
    building = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(building, check=True, cwd=tmp_path)
    wheel = next(tmp_path.glob("*.whl"))
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    script = f"""
        import asyncio, migrations, tracker.sql
        assert migrations.__file__.startswith({str(installed)!r}), migrations.__file__
        asyncio.run(tracker.sql.upgrade("sqlite:///{tmp_path / "hone.db"}"))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(command, check=True, cwd=tmp_path, env={"PYTHONPATH": str(installed)})
    assert (tmp_path / "hone.db").stat().st_size > 0
