"""Versions on trial on a real engine, from their publication to the verdict: what they sample decides.

Rewards follow from the first token alone, so that the true difference between two versions is known exactly: it is
that of the probabilities that the base and an adapter give to a set of tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.adapters import write_adapter
from tests.engines.reference import Reference
from tests.engines.stand import FRANCE, Json, Stand
from tests.fakes.gateways import RunningGateway, running_gateway

pytestmark = pytest.mark.slow

SETTINGS = """
[[policies]]
name = "solver"
model = "{model}"
[policies.release]
mode = "canary"
max_episodes = 400
undecided = "hold"
alpha_roll_back = 0.01
alpha_promote = 0.002
[[runs]]
run = "one-token"
group_size = 2
"""
"""Claims that are false are rarer than by default: a test is not to fail for its luck."""
GROUPS_AT_ONCE = 4
NUM_EQUAL = 80
DIFFERENCE = 0.5
"""At least."""


class Stage:
    """A gateway in canary mode, an adapter, and the tokens that it likes better than the base does."""

    def __init__(self, gateway: RunningGateway, folder: Path) -> None:
        self.gateway = gateway
        self.liked = frozenset[int]()
        self._adapter = folder
        self._num_published = self._num_groups = 0

    async def prepare(self, model: str) -> None:
        """Find the tokens, and by how much more often the adapter samples one of them."""
        await asyncio.to_thread(write_adapter, self._adapter, 0)
        asked = await self._call(await self.gateway.open(run="one-token"))
        reference = await asyncio.to_thread(Reference, model, {"own": self._adapter})
        own, base = (reference.logprobs(name, asked["prompt_token_ids"]).exp() for name in ("own", None))
        better: Any = own > base
        self.liked = frozenset[int](better.nonzero().flatten().tolist())
        assert float((own - base).clamp(min=0).sum()) > DIFFERENCE

    async def publish(self) -> int:
        """The adapter, under the next number."""
        self._num_published += 1
        name = f"copy-{self._num_published}"
        digest = await asyncio.to_thread(write_adapter, self.gateway.settings.stores.adapters_dir / name, 0)
        answer = await self.gateway.publish(name, digest)
        assert answer.status_code == 201, answer.text
        assert answer.json()["state"] == "running"
        return int(answer.json()["version"])

    async def release(self) -> Json:
        return (await self.gateway.admin.get("/v1/policies/solver/release")).json()

    async def play(self, num_episodes: int, likes: bool) -> Json:
        """Until the trial has ended, or so many episodes were played; reward 1 for a token that the adapter likes
        better, or for any other. How the policy's versions stand then."""
        for _ in range(0, num_episodes, 2 * GROUPS_AT_ONCE):
            await asyncio.gather(*(self._play_group(likes) for _ in range(GROUPS_AT_ONCE)))
            told = await self.release()
            if told["canary"] is None:
                break
        return await self.release()

    async def _play_group(self, likes: bool) -> None:
        self._num_groups += 1
        episodes = [await self.gateway.open(run="one-token", task=f"task {self._num_groups}") for _ in range(2)]
        for episode in episodes:
            told = await self._call(episode)
            reward = float((told["choices"][0]["token_ids"][0] in self.liked) is likes)
            body = {"episode_id": episode["episode_id"], "reward": reward}
            assert (await self.gateway.admin.post("/v1/reward", json=body)).is_success
        for episode in episodes:
            await self.gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")

    async def _call(self, episode: Json) -> Any:
        answer = await self.gateway.admin.post(
            "/v1/chat/completions",
            headers={"Authorization": f"Bearer {episode['api_key']}"},
            json={"model": "solver", "messages": FRANCE, "max_tokens": 1, "return_token_ids": True},
        )
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture
async def stage(stand: Stand, tmp_path: Path, redis_url: str) -> AsyncIterator[Stage]:
    (tmp_path / "hone.toml").write_text(SETTINGS.format(model=stand.model))
    env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": "", "HONE_ENGINE_KEY": stand.key}
    try:
        async with running_gateway(stand.url, tmp_path, env) as gateway:
            made = Stage(gateway, tmp_path / "own")
            await made.prepare(stand.model)
            yield made
    finally:  # once nobody loads them again
        await stand.unload_all()


def ended(told: Json, version: int) -> Json:
    """The event of a trial's end, and its numbers."""
    kinds = ("promoted", "rolled_back")
    return next(event for event in told["events"] if event["version"] == version and event["kind"] in kinds)


def num_episodes(event: Json) -> int:
    return event["numbers"]["num_stable"] + event["numbers"]["num_canary"]


async def test_a_better_adapter_is_promoted_a_copy_of_it_stays_and_a_worse_one_is_rolled_back(stage: Stage) -> None:
    better = await stage.publish()
    told = await stage.play(150, likes=True)
    event = ended(told, better)
    assert (told["stable"], event["kind"], event["why"]) == (better, "promoted", "its reward is better")
    assert num_episodes(event) <= 150
    assert event["numbers"]["lower"] >= 0

    copy = await stage.publish()
    told = await stage.play(NUM_EQUAL, likes=True)
    assert (told["canary"]["version"], told["verdict"]["outcome"]) == (copy, "goes_on")
    assert told["verdict"]["num_stable"] + told["verdict"]["num_canary"] == NUM_EQUAL

    answer = await stage.gateway.admin.post("/v1/policies/solver/rollback", json={"version": 0})
    assert answer.is_success, answer.text
    worse = await stage.publish()
    told = await stage.play(60 + 2 * GROUPS_AT_ONCE, likes=False)
    event = ended(told, worse)
    assert (told["stable"], event["kind"], event["why"]) == (0, "rolled_back", "its reward is worse")
    assert num_episodes(event) <= 60
    assert event["numbers"]["upper"] <= 0
