"""Two ways of feeding a trainer, over the same gateway, engine and trainer, with the same episodes in the same slots.

`hone`: slots never stop; whoever is done takes the next attempt, and the gateway refuses what would be too stale, as it
does to anybody. `barrier`: the groups of one step are played, then trained and published, then those of the next one
are played, which is what loops do that collect a batch first. How long an attempt takes is drawn from the seed, the
group and the attempt, never from the schedule: most take about as long as the median, and a few are many times slower.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.sleeping_trainer import POLICY, Diary, SleepingTrainer
from gateway.client import Client
from tests.fakes.gateway_process import gateway_process
from tests.fakes.scripted_answers import Json, Script, default_script

THINKS = re.compile(r"think for ([0-9.]+) s")
LOOK_S = 0.02
LIST_S = 1.0
BUSY = 503
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What is played and trained, by whatever schedule."""

    slots: int = 16
    """Episodes that are played at once."""
    group_size: int = 4
    groups_per_step: int = 4
    num_groups: int = 20
    """The budget: as many groups are begun, of `group_size` attempts each."""
    staleness: int = 4
    on_stale: str = "expire"
    num_turns: int = 2
    episode_s: float = 1.0
    """Median time that the engine takes for an episode."""
    slow_share: float = 0.05
    slow_factor: float = 10.0
    step_s: float = 2.5
    """How long a step of the trainer sleeps."""

    def turn_s(self, seed: int, group: int, attempt: int) -> float:
        """How long the engine takes for each answer of one attempt."""
        chance = random.Random(f"{seed}/{group}/{attempt}")
        factor = self.slow_factor if chance.random() < self.slow_share else 1.0
        return self.episode_s / self.num_turns * factor * chance.lognormvariate(0, 0.2)


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway that runs, and clients for it."""

    url: str
    key: str
    data_dir: Path
    starter: Client
    owner: Client
    http: httpx.AsyncClient


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one schedule made of one budget."""

    wall_s: float
    diary: Diary
    num_episodes: int
    num_trained: int
    num_expired: int
    num_left: int
    """Groups that were ready and too few for another step."""

    @property
    def idle(self) -> float:
        """Share of the wall time in which the trainer waited."""
        return 1 - (self.diary.slept_s + self.diary.published_s) / self.wall_s


class Play:
    """One budget of episodes, played in a run of its own."""

    def __init__(self, load: Workload, seed: int, stage: Stage, run: str, diary: Diary) -> None:
        self._load = load
        self._seed = seed
        self._stage = stage
        self._run = run
        self._diary = diary
        self._slots = asyncio.Semaphore(load.slots)

    async def hone(self) -> None:
        """Everything as soon as there is a slot and the gateway lets it in."""
        await self._play(range(self._load.num_groups))

    async def barrier(self) -> None:
        """One step's groups at a time, and none before those of the step before are trained."""
        size = self._load.groups_per_step
        for first in range(0, self._load.num_groups, size):
            await self._play(range(first, min(first + size, self._load.num_groups)))
            await self.until_trained()

    async def until_trained(self) -> Counter[str]:
        """Wait until no step can be taken any more; how many groups are in which state."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                num_steps = self._diary.num_steps
                states = await self._states()
                if not states["open"] and not states["taken"] and states["ready"] < self._load.groups_per_step:
                    return states
                await self._look(num_steps)

    async def _look(self, num_steps: int) -> None:
        """Until the next step is done, or for a while: a list of all groups is nothing to ask for all the time."""
        for _ in range(round(LIST_S / LOOK_S)):
            if self._diary.num_steps != num_steps:
                return
            await asyncio.sleep(LOOK_S)

    async def _states(self) -> Counter[str]:
        groups = [group async for group in self._stage.owner.groups(self._run)]
        expired = sum(group["reason"] == "expired" for group in groups)
        return Counter({"expired": expired}) + Counter(group["state"] for group in groups)

    async def _play(self, groups: Iterable[int]) -> None:
        """Attempts begin in order, each when a slot is free."""
        async with asyncio.TaskGroup() as playing:
            for group in groups:
                for attempt in range(self._load.group_size):
                    await self._slots.acquire()
                    playing.create_task(self._attempt(group, attempt))

    async def _attempt(self, group: int, attempt: int) -> None:
        """An agent's episode: some turns, and its reward."""
        try:
            job = f"{self._run}-{group}-{attempt}"
            episode = await self._stage.starter.start_episode(f"task {group}", run=self._run, idempotency_key=job)
            words = f"attempt {job}: think for {self._load.turn_s(self._seed, group, attempt):.4f} s"
            messages: list[Json] = [{"role": "user", "content": words}]
            headers = {"Authorization": f"Bearer {episode['api_key']}"}
            for turn in range(self._load.num_turns):
                body = {"model": POLICY, "messages": messages, "max_tokens": 8}
                message = await self._call(body, headers)
                messages += [message, {"role": "user", "content": f"go on {turn}"}]
            await self._stage.owner.reward(episode["episode_id"], float(attempt % 2), idempotency_key=job)
        finally:
            self._slots.release()

    async def _call(self, body: Json, headers: dict[str, str]) -> Json:
        """One answer; what a busy gateway refuses is asked again, as SDKs do."""
        while True:
            answer = await self._stage.http.post("/v1/chat/completions", json=body, headers=headers)
            if answer.status_code != BUSY:
                return answer.raise_for_status().json()["choices"][0]["message"]
            await asyncio.sleep(LOOK_S)


async def played(schedule: str, load: Workload, seed: int, stage: Stage) -> Outcome:
    """One schedule, from the first episode until nothing is left to train."""
    run = f"{schedule}-{seed}"
    await stage.owner.create_run(
        run,
        group_size=load.group_size,
        groups_per_step=load.groups_per_step,
        staleness=load.staleness,
        on_stale=load.on_stale,
    )
    trainer = SleepingTrainer(stage.data_dir, stage.url, stage.key, load.step_s)
    play = Play(load, seed, stage, run, trainer.diary)
    trainer.start()
    try:
        began = time.monotonic()
        await (play.hone() if schedule == "hone" else play.barrier())
        states = await play.until_trained()
        wall_s = time.monotonic() - began
    finally:
        await asyncio.to_thread(trainer.stop)
    return Outcome(
        wall_s=wall_s,
        diary=trainer.diary,
        num_episodes=load.num_groups * load.group_size,
        num_trained=states["trained"],
        num_expired=states["expired"],
        num_left=states["ready"],
    )


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator[Stage]:
    """A gateway process with its stores, and an engine that takes as long as it is told."""
    limits = httpx.Limits(max_connections=None)
    async with gateway_process(folder) as gateway:
        gateway.engine.otherwise = slow_script
        async with (
            Client(gateway.url, gateway.agent_key) as starter,
            Client(gateway.url, gateway.operator_key) as owner,
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S, limits=limits) as http,
        ):
            yield Stage(gateway.url, gateway.operator_key, gateway.data_dir, starter, owner, http)


def slow_script(body: Json) -> Script:
    """The answer of default mode, after the time that the conversation asks for."""
    script = default_script(body)
    found = THINKS.search(str(body["messages"][0]["content"]))
    fields: dict[str, Any] = {"prompt_ids": script.prompt_ids, "choices": script.choices}
    return Script(**fields, delay_s=float(found[1]) if found else 0.0)
