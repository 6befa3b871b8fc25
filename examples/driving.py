"""What the drivers of these examples have in common: words, scores, and playing while the trainers train.

A driver opens episodes, lets an agent play them with the address and key that it gets, and posts rewards: all with the
Python client (docs/client.md), at the gateway that `hone up` prints. What is played next depends here on what the
trainers lack; where it does not, `rollout` does all of this.
"""

import argparse
import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import httpx
import openai

from gateway.client import AsyncEpisode, AsyncHone
from gateway.client.views import GroupView, PolicyView
from tracker.types import SERVED_STATES

WORD_LIST = """
    lamp chair table window door carpet mirror bottle basket blanket candle clock curtain drawer fork glove hammer
    jacket kettle ladder needle oven pencil pillow plate rope scissors shelf spoon stool towel vase wallet whistle
"""
WORDS = WORD_LIST.split()
STEPS_AHEAD = 3
"""Groups of how many steps are played or trained at a time: more would only become stale."""
POLL_S = 0.5
SETTLED = {"trained", "skipped"}
Json = dict[str, Any]


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", default="http://127.0.0.1:8600", help="where the gateway is")
    parser.add_argument("--data-dir", type=Path, default=Path(".hone"), help="where `hone up` wrote its keys")
    parser.add_argument("--versions", type=int, default=4, help="play until each policy has published so many")
    parser.add_argument("--group-size", type=int, default=8, help="attempts at one task that are compared")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def score(answer: Json, wanted: str) -> float:
    """1 for exactly what was wanted, ended by itself; else up to a half, for how near it is."""
    if answer["ended"] and answer["content"] == wanted:
        return 1.0
    return 0.5 * SequenceMatcher(None, answer["content"], wanted).ratio()


def words_of(seed: int) -> Iterator[str]:
    """Words without end, each about as often as the others."""
    chooser = random.Random(seed)
    while True:
        yield from chooser.sample(WORDS, len(WORDS))


def most_wanted(mix: Mapping[str, int], num_unsettled: Mapping[str, int]) -> str | None:
    """The kind of task that the next steps lack most; None once every kind is there for all of them.

    Each kind has a bound of its own: a bound for all of them together would fill up with the one that is played faster
    than it is trained.
    """
    wanted = {kind: STEPS_AHEAD - num_unsettled.get(kind, 0) / num for kind, num in mix.items()}
    kind = max(wanted, key=lambda kind: wanted[kind])
    return kind if wanted[kind] > 0 else None


@dataclass
class Driver:
    """A run at the gateway, and what was scored so far."""

    hone: AsyncHone
    http: httpx.AsyncClient
    run: str
    group_size: int
    scores: dict[str, list[float]] = field(default_factory=dict)
    """Name -> scores in the order in which they came."""

    async def play(
        self, mix: Mapping[str, int], words: Iterator[str], attempt: "Attempt", versions: dict[str, int]
    ) -> None:
        """Play groups of tasks `KIND/WORD`, several at a time, until each of these policies has published so many more
        versions; `mix` is how many groups of each kind a step takes."""
        playing: set[asyncio.Task[None]] = set()
        before = await self._num_published()
        num_begun = Counter([kind_of(group) async for group in self.hone.groups(run=self.run)])
        while not await self._has_published({name: before[name] + more for name, more in versions.items()}):
            groups = [group async for group in self.hone.groups(run=self.run)]
            num_settled = Counter(kind_of(group) for group in groups if group.state in SETTLED)
            while (kind := most_wanted(mix, num_begun - num_settled)) is not None:
                num_begun[kind] += 1
                playing.add(asyncio.create_task(self._group(f"{kind}/{next(words)}", attempt)))
            await asyncio.sleep(POLL_S)
            for task in [task for task in playing if task.done()]:
                playing.discard(task)
                task.result()
        await asyncio.gather(*playing)

    def note(self, name: str, value: float) -> None:
        self.scores.setdefault(name, []).append(value)

    async def _group(self, task: str, attempt: "Attempt") -> None:
        """All attempts at one task at once."""
        await asyncio.gather(*(self._episode(task, attempt) for _ in range(self.group_size)))

    async def _episode(self, task: str, attempt: "Attempt") -> None:
        async with self.hone.episode(task, run=self.run) as episode:
            client = openai.AsyncOpenAI(
                base_url=episode.base_url, api_key=episode.api_key, http_client=self.http, max_retries=5
            )
            await episode.reward(await attempt(self, client, task, episode))

    async def _has_published(self, versions: dict[str, int]) -> bool:
        now = await self._num_published()
        return all(now[name] >= wanted for name, wanted in versions.items())

    async def _num_published(self) -> dict[str, int]:
        return {policy.policy: num_published(policy) for policy in await self.hone.policies()}


Attempt = Callable[[Driver, openai.AsyncOpenAI, str, AsyncEpisode], Awaitable[float]]
"""Plays one episode of a task with this client; what it returns is the reward of the episode."""


@contextlib.asynccontextmanager
async def driver(asked: argparse.Namespace, run: str, **settings: object) -> AsyncIterator[Driver]:
    """A driver of this run, which is made with these settings."""
    async with AsyncHone(asked.url, data_dir=asked.data_dir) as hone, httpx.AsyncClient(timeout=300) as http:
        await hone.create_run(run, group_size=asked.group_size, **settings)
        yield Driver(hone, http, run, asked.group_size)


def kind_of(group: GroupView) -> str:
    return group.task.partition("/")[0]


def num_published(policy: PolicyView) -> int:
    return sum(version.state in SERVED_STATES for version in policy.versions)


def tell(scores: dict[str, list[float]]) -> None:
    """How scores moved: the first third against the last."""
    print(f"{'':10} {'episodes':>8}  first third  last third")
    for name, values in scores.items():
        third = max(1, len(values) // 3)
        first, last = (sum(part) / len(part) for part in (values[:third], values[-third:]))
        print(f"{name:10} {len(values):8}  {first:11.2f}  {last:10.2f}")
