"""The three tasks of `make bench-learn`: who plays, what is trained on and held out, what an outcome is worth.

Words are those of the demo: 70 to train on, 36 others held out. Scoring is strict everywhere: a turn counts if it is
exactly what was wanted and ended by itself. All are drawn from a seed, so that another trainer sees the same tasks.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gateway.demo.task import HELD_OUT, TRAINING, Playable, Turn, exact_share, held_out_tasks, training_tasks
from gateway.local.plan import SOURCE_ROOT
from tracker.types import Record

COLORS = ("red", "blue", "green", "black", "white", "yellow", "brown", "pink")
ANSWERS = {"some": "Yes.", "none": "No."}


class Label(Record, frozen=True):
    """`a red lamp` wants `lamp/red`: 0 or 1."""

    item: str
    color: str
    repeat: int = 0

    @property
    def name(self) -> str:
        return f"{self.item}/{self.color}/{self.repeat}"

    def job(self) -> dict[str, Any]:
        return {"item": self.item, "color": self.color}

    def score(self, turns: Sequence[Turn]) -> float:
        return exact_share(turns, (f"{self.item}/{self.color}",))


class Count(Record, frozen=True):
    """`Any lamp left?` wants `COUNT(lamp)`, then `Yes.` after `some` and `No.` after `none`: 0, 0.5 or 1."""

    item: str
    found: str
    repeat: int = 0

    @property
    def name(self) -> str:
        return f"{self.item}/{self.found}/{self.repeat}"

    def job(self) -> dict[str, Any]:
        return {"item": self.item, "found": self.found}

    def score(self, turns: Sequence[Turn]) -> float:
        return exact_share(turns, (f"COUNT({self.item})", ANSWERS[self.found]))


class Lesson(Record, frozen=True):
    """One task of the bench."""

    name: str
    title: str
    program: tuple[str, ...]
    """The agent: what Python is given."""
    training: Callable[[int], Iterator[Playable]]
    """Seed -> tasks without end."""
    held_out: Callable[[int, int], tuple[Playable, ...]]
    """Seed and how often each held-out word is asked for -> tasks."""
    num_steps: int
    times: int
    """How often each held-out word is asked for."""


def draws(make: Callable[[str, int, random.Random], Playable]) -> Callable[[int], Iterator[Playable]]:
    """The training words in a new order each time round, each made a task."""

    def training(seed: int) -> Iterator[Playable]:
        chooser = random.Random(f"train-{seed}")
        repeat = 0
        while True:
            for item in chooser.sample(TRAINING, len(TRAINING)):
                yield make(item, repeat, chooser)
            repeat += 1

    return training


def held(make: Callable[[str, int, random.Random], Playable]) -> Callable[[int, int], tuple[Playable, ...]]:
    """Each held-out word a number of times."""

    def held_out(seed: int, times: int) -> tuple[Playable, ...]:
        chooser = random.Random(f"held-out-{seed}")
        return tuple(make(item, repeat, chooser) for repeat in range(times) for item in HELD_OUT)

    return held_out


def make_label(item: str, repeat: int, chooser: random.Random) -> Label:
    return Label(item=item, color=chooser.choice(COLORS), repeat=repeat)


def make_count(item: str, repeat: int, chooser: random.Random) -> Count:
    return Count(item=item, found=chooser.choice(tuple(ANSWERS)), repeat=repeat)


def agent(task: str) -> tuple[str, ...]:
    return ("-m", "bench.learning.agent", task)


LESSONS = {
    lesson.name: lesson
    for lesson in (
        Lesson(
            name="label",
            title="label: one turn, a strict format",
            program=agent("label"),
            training=draws(make_label),
            held_out=held(make_label),
            num_steps=6,
            times=3,
        ),
        Lesson(
            name="lookup",
            title="lookup: two turns, a tool, its answer repeated",
            program=(str(SOURCE_ROOT / "examples" / "lookup_agent.py"),),
            training=training_tasks,
            held_out=held_out_tasks,
            num_steps=8,
            times=2,
        ),
        Lesson(
            name="count",
            title="count: two turns, a tool, a choice by its answer",
            program=agent("count"),
            training=draws(make_count),
            held_out=held(make_count),
            num_steps=8,
            times=2,
        ),
    )
}
COMPARED = "label"
"""The task that stock TRL plays too: of one turn, as its plain reward functions want it."""
