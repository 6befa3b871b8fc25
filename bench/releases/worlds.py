"""Worlds in which a version on trial plays: how rewards fall, and how the canary's differ. Only for simulations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tracker.measures import Measures
from tracker.trials import RUN_WEIGHT, Seen

GOOD: Final = Measures(num_calls=1, num_choices=1, num_tokens=20, nats=10.0, call_ms=100)
CONCENTRATION: Final = 3.0
GROUP: Final = 8


class Group(NamedTuple):
    """Attempts at one task: their rewards, and what is known of the task."""

    rewards: list[float]
    task_mean: float | None = None
    num_before: int = 0


class World(Protocol):
    """Draws the rewards of one group of attempts at a task."""

    def group(self, difference: float, rng: random.Random, size: int) -> Group: ...


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Solved or not: the widest rewards there are in [0, 1]."""

    mean: float
    num_before: int = RUN_WEIGHT
    """For how many attempts counts what the run had before the trial; 0: nothing is known of it."""

    def group(self, difference: float, rng: random.Random, size: int) -> Group:
        rewards = [float(rng.random() < self.mean + difference) for _ in range(size)]
        return Group(rewards, self.mean, self.num_before)


@dataclass(frozen=True, slots=True)
class Graded:
    """Anything between 0 and 1 (Beta)."""

    mean: float
    num_before: int = RUN_WEIGHT

    def group(self, difference: float, rng: random.Random, size: int) -> Group:
        mean = min(max(self.mean + difference, 0.01), 0.99)
        rewards = [rng.betavariate(CONCENTRATION * mean, CONCENTRATION * (1 - mean)) for _ in range(size)]
        return Group(rewards, self.mean, self.num_before)


@dataclass(frozen=True, slots=True)
class Tasks:
    """Solved or not, at tasks that differ: attempts at one are alike, so that episodes are independent only as far as
    the tasks are known, each from so many attempts before the trial."""

    easy: float
    hard: float
    num_before: int = 0

    def group(self, difference: float, rng: random.Random, size: int) -> Group:
        mean = rng.choice((self.easy, self.hard))
        before = [float(rng.random() < mean) for _ in range(self.num_before)]
        now = min(max(mean + difference, 0.0), 1.0)
        rewards = [float(rng.random() < now) for _ in range(size)]
        return Group(rewards, sum(before) / len(before) if before else None, len(before))


def played(world: World, difference: float, share: float, rng: random.Random, size: int = 1) -> Iterator[Seen]:
    """Episodes of a trial for ever, `size` of each group, whose arm is drawn once."""
    number = 0
    while True:
        number += 1
        is_canary = rng.random() < share
        group = world.group(difference if is_canary else 0.0, rng, size)
        for reward in group.rewards:
            yield Seen(
                is_canary=is_canary,
                share=share,
                reward=reward,
                measures=GOOD,
                group_id=f"g-{number}",
                group_size=size,
                task_mean=group.task_mean,
                num_before=group.num_before,
            )
