"""Worlds in which a version on trial plays: how rewards fall, and how the canary's differ. Only for simulations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tracker.likeness import UNSEEN, Likeness, left_by, likeness_of
from tracker.measures import Measures
from tracker.trials import RUN_WEIGHT, UNKNOWN, Seen

GOOD: Final = Measures(num_calls=1, num_choices=1, num_tokens=20, nats=10.0, call_ms=100)
CONCENTRATION: Final = 3.0
GROUP: Final = 8
HISTORY: Final = 400
"""Episodes of the run before the trial, from which it is known how alike attempts at a task are."""


class Group(NamedTuple):
    """Attempts at one task: their rewards, and what is known of the task."""

    rewards: list[float]
    task_mean: float | None = None
    num_before: int = 0


class World(Protocol):
    """Draws the rewards of one group of attempts at a task."""

    @property
    def num_before(self) -> int:
        """From how many attempts before the trial something is known; 0: the run is new."""
        ...

    @property
    def num_of_task(self) -> int:
        """How many of them were at the task itself."""
        ...

    def group(self, difference: float, rng: random.Random, size: int) -> Group: ...


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Solved or not: the widest rewards there are in [0, 1]."""

    mean: float
    num_before: int = RUN_WEIGHT
    """For how many attempts counts what the run had before the trial; 0: nothing is known of it."""
    num_of_task = 0

    def group(self, difference: float, rng: random.Random, size: int) -> Group:
        rewards = [float(rng.random() < self.mean + difference) for _ in range(size)]
        return Group(rewards, self.mean, self.num_before)


@dataclass(frozen=True, slots=True)
class Graded:
    """Anything between 0 and 1 (Beta)."""

    mean: float
    num_before: int = RUN_WEIGHT
    num_of_task = 0

    def group(self, difference: float, rng: random.Random, size: int) -> Group:
        mean = min(max(self.mean + difference, 0.01), 0.99)
        rewards = [rng.betavariate(CONCENTRATION * mean, CONCENTRATION * (1 - mean)) for _ in range(size)]
        return Group(rewards, self.mean, self.num_before)


@dataclass(frozen=True, slots=True)
class Tasks:
    """Solved or not, at tasks that differ, so that attempts at one are alike."""

    easy: float
    hard: float
    num_of_task: int = 0
    """From so many attempts before the trial each task is known; 0: all are new."""
    num_before: int = RUN_WEIGHT
    """0: the run is new as well."""

    def group(self, difference: float, rng: random.Random, size: int) -> Group:
        mean = rng.choice((self.easy, self.hard))
        now = min(max(mean + difference, 0.0), 1.0)
        rewards = [float(rng.random() < now) for _ in range(size)]
        if not self.num_of_task:
            return Group(rewards, (self.easy + self.hard) / 2, self.num_before)
        before = [float(rng.random() < mean) for _ in range(self.num_of_task)]
        return Group(rewards, sum(before) / len(before), len(before))


def known(world: World, rng: random.Random, size: int) -> Likeness:
    """What the run shows before the trial of how alike attempts at a task are."""
    if size == 1 or not world.num_before:
        return UNSEEN
    groups = [world.group(0.0, rng, size).rewards for _ in range(HISTORY // size)]
    return left_by(likeness_of(groups), world.num_of_task, UNKNOWN)


def played(world: World, difference: float, share: float, rng: random.Random, size: int = 1) -> Iterator[Seen]:
    """Episodes of a trial for ever, `size` of each group, whose arm is drawn once."""
    number, likeness = 0, known(world, rng, size)
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
                task_mean=group.task_mean if group.num_before else None,
                num_before=group.num_before,
                num_attempts=size,
                likeness=likeness,
            )
