"""A trial by hand, from the shell: looked at, paused, resumed, given another share, promoted and gone back from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.gateways import CANARY, RunningGateway, running_gateway
from tests.fakes.scripted_engine import ScriptedEngine
from tests.gateway.shell.test_listing import Json, hone, told
from tracker.errors import HoneError

pytestmark = pytest.mark.slow
FLOOR = "min_reward = 0.1\n"


@pytest.fixture
async def gateway(engine: ScriptedEngine, tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    (tmp_path / "hone.toml").write_text(CANARY + FLOOR)
    async with running_gateway(engine, tmp_path, {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": ""}) as running:
        yield running


class Shell:
    """`hone policies …` beside a gateway."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._folder = gateway.settings.stores.data_dir
        key = str(gateway.admin.headers["authorization"]).removeprefix("Bearer ")
        self._env = {"HONE_API_KEY": key, "HONE_BASE_URL": gateway.url, "HONE_POLICIES": "solver=base"}

    async def json(self, *arguments: str) -> Json:
        (answer,) = await asyncio.to_thread(told, self._folder, "policies", *arguments, **self._env)
        return answer

    async def text(self, *arguments: str) -> list[list[str]]:
        """What people see, as words by line."""
        shown = await asyncio.to_thread(hone, self._folder, "policies", *arguments, **self._env)
        return [line.split() for line in shown.splitlines()]


async def published(gateway: RunningGateway, name: str) -> None:
    assert (await gateway.publish(name, gateway.adapter(name, name.encode()))).status_code == 201


async def num_canaries(gateway: RunningGateway, num_tasks: int, name: str) -> int:
    """How many of so many new groups get the version on trial."""
    episodes = [await gateway.open(task=f"{name}-{number}") for number in range(num_tasks)]
    return sum(episode["versions"]["solver"] == 1 for episode in episodes)


async def test_a_trial_is_paused_and_resumed_from_the_shell(gateway: RunningGateway) -> None:
    shell = Shell(gateway)
    await published(gateway, "one")
    paused = await shell.json("pause", "solver")
    assert (paused["version"], paused["state"]) == (1, "paused")
    assert ["On", "trial:", "paused"] in await shell.text("release", "solver")
    assert await num_canaries(gateway, 12, "paused") == 0
    resumed = await shell.json("resume", "solver")
    assert (resumed["version"], resumed["state"]) == (1, "running")
    assert await num_canaries(gateway, 12, "resumed") > 0
    events = (await shell.json("release", "solver"))["events"]
    assert [event["kind"] for event in events][:2] == ["resumed", "paused"]
    acts = (await gateway.admin.get("/v1/audit?limit=9")).json()["data"]
    assert {"release.pause", "release.resume"} <= {act["act"] for act in acts}


async def test_a_share_a_promotion_and_a_way_back_from_the_shell(gateway: RunningGateway) -> None:
    shell = Shell(gateway)
    await published(gateway, "one")
    assert (await shell.json("canary", "solver", "1", "--share", "95"))["share"] == 95
    assert await num_canaries(gateway, 12, "most") > 6
    assert (await shell.json("promote", "solver", "1"))["version"] == 1
    for command in (("pause", "solver"), ("resume", "solver"), ("promote", "solver", "1")):
        with pytest.raises(HoneError, match=r"trial|active"):  # there is none
            await shell.json(*command)
    assert (await shell.json("rollback", "solver", "0"))["version"] == 0
    assert (await shell.json("release", "solver"))["stable"] == 0
    assert ["1", "withdrawn"] in [line[:2] for line in await shell.text("show", "solver")]


async def test_how_a_trial_stands_is_told_to_people(gateway: RunningGateway) -> None:
    shell = Shell(gateway)
    await published(gateway, "one")
    for number in range(6):
        episode = await gateway.open(task=f"t{number}")
        await gateway.chat(episode)
        body = {"episode_id": episode["episode_id"], "reward": 0.5}
        assert (await gateway.admin.post("/v1/reward", json=body)).is_success
        await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
    release = await shell.json("release", "solver")
    shown = await shell.text("release", "solver")
    for arm, version in (("stable", "0"), ("canary", "1")):
        scored = release["verdict"][f"num_{arm}"]
        begun = release["canary"]["episodes"][arm]
        assert [arm, version, str(begun), str(scored), "0.5" if scored else "-"] in shown
    claims = [" ".join(line[:7]) for line in shown]
    assert any(claim.startswith("its reward is better") for claim in claims)
    assert "reward is under the limit of 0.1" in claims
    assert "truncation is over the limit of 0.2" in claims
