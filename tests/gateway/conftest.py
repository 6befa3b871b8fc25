"""A scripted engine, and before it a door alone or a whole gateway; a suite may have its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.running import RunningDoor, running_door
from tests.fakes.scripted_engine import ScriptedEngine


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def gateway(engine: ScriptedEngine, tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    async with running_gateway(engine, tmp_path, {"HONE_REDIS_URL": redis_url}) as running:
        yield running


@pytest.fixture
async def door(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[RunningDoor]:
    async with running_door(engine, tmp_path) as running:
        yield running


@pytest.fixture
async def episode(door: RunningDoor) -> str:
    return await door.open_episode()
