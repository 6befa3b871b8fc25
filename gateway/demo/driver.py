"""Plays the demo over REST: starts episodes, has the agent play them, scores what came back and posts the reward.

It knows the gateway only by its endpoints and keys, as any driver would; what is trained and when is Hone's affair.
An attempt that broke for a cause that is not the model's is ended as `infra_error` and scored by nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from gateway.client import AsyncHone
from gateway.client.episodes import EpisodeFields
from gateway.demo.agents import Agents
from gateway.demo.report import GroupPoint, Scores
from gateway.demo.task import Playable
from tracker.errors import HoneError
from tracker.types import EpisodeStatus, Record

POLICY: Final = "solver"
TRAIN_RUN: Final = "demo"
GROUP_SIZE: Final = 8
GROUPS_PER_STEP: Final = 4
MAX_OPEN_GROUPS: Final = 2 * GROUPS_PER_STEP
"""One step's worth being trained, one being played: more would only become stale."""
SETTLED: Final = frozenset({"trained", "skipped"})
STALL_S: Final = 1200.0
"""Long: a step is seconds here, but a machine that is shared by twenty others gives a twentieth."""
POLL_S: Final = 1.0


class DemoFailed(HoneError):
    """The demo could not be brought to its end; the message says what was seen and where the logs are."""


class Progress(Protocol):
    """Where the driver tells how far it is."""

    def tell(self, name: str, done: int, total: int, note: str = "") -> None: ...


class Driver(Record, frozen=True):
    """Everything that playing needs: the gateway, the agent, and where progress is told."""

    hone: AsyncHone
    """With a key of each kind; the agent has none of them, and could not score itself."""
    agents: Agents
    progress: Progress
    seed: int


async def play(driver: Driver, run: str, task: Playable, attempt: int, version: int | None = None) -> float | None:
    """One episode: start it, have it played, score it. None where it broke for a cause that is not the model's."""
    job = f"{run}-{driver.seed}-{task.name.replace('/', '-')}-{attempt}"
    fields: EpisodeFields = {"run": run, "policy": POLICY, "idempotency_key": job, "metadata": {"item": task.item}}
    if version is not None:
        fields["version"] = version
    async with driver.hone.episode(task.name, **fields) as episode:
        outcome = await driver.agents.play(job, task, episode.env)
        if outcome.error is not None:
            await episode.finish(EpisodeStatus.INFRA_ERROR)
            return None
        value = task.score(outcome.turns)
        await episode.reward(value, idempotency_key=job)
    return value


async def evaluate(driver: Driver, name: str, tasks: Sequence[Playable], version: int) -> Scores:
    """Play each task once at one fixed version, without training on it; scores by item."""
    run = name.replace(" ", "-")
    await driver.hone.create_run(run, mode="eval")
    scores: dict[str, list[float]] = defaultdict(list)
    num_done = 0

    async def one(task: Playable) -> None:
        nonlocal num_done
        value = await play(driver, run, task, 0, version)
        num_done += 1
        if value is not None:
            scores[task.item].append(value)
        num_won = sum(value == 1.0 for values in scores.values() for value in values)
        driver.progress.tell(name, num_done, len(tasks), f"{num_won} solved")

    driver.progress.tell(name, 0, len(tasks))
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(one(task))
    return scores


async def active_version(hone: AsyncHone) -> int:
    """The version that new episodes get."""
    return (await hone.policy(POLICY)).active


async def num_steps_done(hone: AsyncHone) -> int:
    """Steps that were taken and whose version was published, or refused: a version's number says less, as one that was
    reserved and failed leaves a gap."""
    return sum([batch.state == "trained" async for batch in hone.batches()])


class Training:
    """Plays groups while the trainer trains, until it has taken its steps.

    Playing overlaps training: a group starts as soon as one settles, and no group waits for another.
    """

    def __init__(self, driver: Driver, tasks: Iterator[Playable], num_steps: int) -> None:
        self._driver = driver
        self._tasks = tasks
        self._num_steps = num_steps
        self._playing: set[asyncio.Task[None]] = set()
        self._num_started = 0
        self.points: list[GroupPoint] = []

    async def run(self) -> int:
        """Returns the version that is live after the last step."""
        num_done, changed = 0, time.monotonic()
        while num_done < self._num_steps:
            await self._fill((self._num_steps - num_done) * GROUPS_PER_STEP)
            if self._playing:
                await asyncio.wait(self._playing, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(POLL_S)
            self._reap()
            now = await num_steps_done(self._driver.hone)
            num_done, changed = (now, time.monotonic()) if now != num_done else (num_done, changed)
            if time.monotonic() - changed > STALL_S:
                raise DemoFailed(f"No step after {num_done} within {STALL_S:.0f} s; see logs/trainer.log.")
            self._tell(num_done)
        await asyncio.gather(*self._playing)
        return await active_version(self._driver.hone)

    async def _fill(self, num_wanted: int) -> None:
        """Open groups, but never more than the steps to come can train."""
        states = [group.state async for group in self._driver.hone.groups(run=TRAIN_RUN)]
        num_settled = sum(state in SETTLED for state in states)
        while self._num_started - num_settled < min(MAX_OPEN_GROUPS, num_wanted):
            self._num_started += 1
            self._playing.add(asyncio.create_task(self._play_group(next(self._tasks))))

    def _reap(self) -> None:
        for done in [task for task in self._playing if task.done()]:
            self._playing.discard(done)
            done.result()

    async def _play_group(self, task: Playable) -> None:
        version = await active_version(self._driver.hone)
        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(self._attempt(task, number)) for number in range(GROUP_SIZE)]
        scores = [value for attempt in attempts if (value := attempt.result()) is not None]
        if scores:
            solved = sum(value == 1.0 for value in scores) / len(scores)
            self.points.append(GroupPoint(version=version, reward=sum(scores) / len(scores), solved=solved))

    async def _attempt(self, task: Playable, number: int) -> float | None:
        """One member; where it breaks, its place is taken again once, so that the group can fill."""
        value = await play(self._driver, TRAIN_RUN, task, number)
        return value if value is not None else await play(self._driver, TRAIN_RUN, task, number + GROUP_SIZE)

    def _tell(self, num_done: int) -> None:
        recent = self.points[-MAX_OPEN_GROUPS:]
        note = f"reward {sum(point.reward for point in recent) / len(recent):.2f}" if recent else ""
        self._driver.progress.tell("training", num_done, self._num_steps, note)
