"""What the drivers of these examples have in common: keys, words, scores, and playing while the trainers train.

A driver starts episodes, lets an agent play them with the environment that it gets, and posts rewards. All of that
goes over REST, with `gateway.client`, to the gateway that `hone up` prints.
"""

import argparse
import asyncio
import contextlib
import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import httpx
import openai

from gateway.client import Client

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
    """The gateway by its keys, and what was scored so far."""

    starter: Client
    """With an agent key: starts episodes."""
    scorer: Client
    """With a reward key."""
    admin: Client
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
        num_begun = Counter([kind_of(group) async for group in self.admin.groups(self.run)])
        while not await self._has_published({name: before[name] + more for name, more in versions.items()}):
            groups = [group async for group in self.admin.groups(self.run)]
            num_settled = Counter(kind_of(group) for group in groups if group["state"] in SETTLED)
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
        episode = await self.starter.start_episode(task, run=self.run, idempotency_key=uuid.uuid4().hex)
        env = episode["env"]
        client = openai.AsyncOpenAI(
            base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], http_client=self.http, max_retries=5
        )
        await attempt(self, client, task, episode["episode_id"])

    async def _has_published(self, versions: dict[str, int]) -> bool:
        now = await self._num_published()
        return all(now[name] >= wanted for name, wanted in versions.items())

    async def _num_published(self) -> dict[str, int]:
        return {policy["policy"]: num_published(policy) for policy in await self.admin.policies()}


Attempt = Callable[[Driver, openai.AsyncOpenAI, str, str], Awaitable[None]]
"""Plays one episode of a task with this client, and posts its rewards."""


@contextlib.asynccontextmanager
async def driver(asked: argparse.Namespace, run: str, **settings: object) -> AsyncIterator[Driver]:
    """A driver of this run, which is made with these settings."""
    keys = json.loads((asked.data_dir / "keys.json").read_text())
    async with (
        Client(asked.url, keys["agent"]) as starter,
        Client(asked.url, keys["reward"]) as scorer,
        Client(asked.url, keys["admin"]) as admin,
        httpx.AsyncClient(timeout=300) as http,
    ):
        await admin.create_run(run, group_size=asked.group_size, **settings)
        yield Driver(starter, scorer, admin, http, run, asked.group_size)


def kind_of(group: Json) -> str:
    return group["task"].partition("/")[0]


def num_published(policy: Json) -> int:
    return sum(version["state"] in ("active", "retired") for version in policy["versions"])


def tell(scores: dict[str, list[float]]) -> None:
    """How scores moved: the first third against the last."""
    print(f"{'':10} {'episodes':>8}  first third  last third")
    for name, values in scores.items():
        third = max(1, len(values) // 3)
        first, last = (sum(part) / len(part) for part in (values[:third], values[-third:]))
        print(f"{name:10} {len(values):8}  {first:11.2f}  {last:10.2f}")
