"""Readiness names the part that is not ready, and only that one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gateway.readiness import Part, parts_of
from tests.fakes.gateways import RunningGateway
from tests.fakes.running import RunningDoor, running_door
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.clock import SystemClock
from tracker.errors import Unavailable
from tracker.memory_store import MemoryStore
from tracker.schema import known_revisions

pytestmark = pytest.mark.slow


class Fickle(MemoryStore):
    """A store that can be away."""

    is_away = False

    async def ping(self) -> None:
        if self.is_away:
            raise Unavailable("Redis cannot be reached.")


@pytest.fixture
def fickle() -> Fickle:
    return Fickle(SystemClock())


@pytest.fixture
async def standing(engine: ScriptedEngine, tmp_path: Path, fickle: Fickle) -> AsyncIterator[RunningDoor]:
    async with running_door(engine, tmp_path, store=fickle) as door:
        yield door


def not_ready(parts: dict[str, Part]) -> dict[str, str]:
    return {name: part.detail for name, part in parts.items() if not part.ready}


async def test_all_parts_are_ready_where_nothing_is_wrong(standing: RunningDoor) -> None:
    parts = await parts_of(standing.services)
    assert not_ready(parts) == {}
    assert set(parts) == {"redis", "sql", "schema", "engines", "versions", "duties"}


async def test_a_store_that_is_away_is_named_alone(standing: RunningDoor, fickle: Fickle) -> None:
    fickle.is_away = True
    assert not_ready(await parts_of(standing.services)) == {"redis": "Redis cannot be reached."}


async def test_a_schema_that_lacks_something_is_named(standing: RunningDoor) -> None:
    def moved(connection: Connection, revision: str) -> None:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})

    database = standing.services.ledger
    await database.write(moved, known_revisions()[-1])  # pyright: ignore[reportAttributeAccessIssue]
    assert set(not_ready(await parts_of(standing.services))) == {"schema"}
    await database.write(moved, "9999")  # pyright: ignore[reportAttributeAccessIssue]
    assert not_ready(await parts_of(standing.services)) == {}


async def test_a_duty_that_a_bug_ended_is_named(standing: RunningDoor) -> None:
    async def broken() -> None:
        raise AssertionError("a bug")

    standing.services.duties.start("broken", broken, 0.01)
    async with asyncio.timeout(60):
        while not standing.services.duties.stopped():
            await asyncio.sleep(0.01)
    assert set(not_ready(await parts_of(standing.services))) == {"duties"}


async def test_a_version_is_told_and_named_where_no_engine_serves_it(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    assert (await gateway.publish("a", gateway.adapter("a"))).status_code == 201
    told = await gateway.until("/health/ready", status="ready")
    assert told["parts"]["versions"]["detail"] == "solver@1"
    engine.models["base"]["id"] = "another"
    engine.models["more"] = {"id": "more", "object": "model"}
    told = await gateway.until("/health/ready", status="not ready")
    assert told["parts"]["versions"] == {"ready": False, "detail": "solver@1 is served by no engine"}
    assert not told["parts"]["engines"]["ready"]


async def test_one_policy_without_an_engine_is_told_and_keeps_the_others_ready(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with running_door(engine, tmp_path, policies="solver=base,checker=elsewhere") as door:
        parts = await parts_of(door.services)
    assert not_ready(parts) == {}
    assert parts["versions"].detail == "solver@0; checker@0 is served by no engine"
