"""The task of `hone demo`: which items are asked for, which are held out, and what an outcome is worth.

Turn 1 must be exactly the tool call, turn 2 exactly the price that the tool gave, and both must end by themselves.
Scoring is strict on purpose: a lenient check was seen to be gamed (`LOOKUP(63)` passed as an answer). Pure; the agent
that plays is `examples/lookup_agent.py`, the driver is `show.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from tracker.types import Record

_LIST: Final = """\
    lamp chair table sofa shelf clock mirror carpet pillow blanket curtain candle basket bucket broom kettle teapot
    spoon fork plate bowl cup glass bottle pan oven stove fridge toaster blender radio camera phone laptop printer
    keyboard monitor speaker guitar piano violin drum flute trumpet bicycle helmet scooter skateboard tent backpack
    suitcase wallet umbrella jacket coat shirt scarf glove boot sandal hat belt watch ring necklace pencil pen notebook
    eraser ruler stapler hammer saw drill wrench ladder shovel rake hose paint brush rope chain lock key ball bat
    racket kite puzzle doll robot train truck boat canoe paddle net book map globe vase statue poster frame
    bench"""
WORDS: Final = tuple(_LIST.split())
HELD_OUT: Final = WORDS[2::3] + WORDS[0:1]
"""Words that are never trained on: 36 of 106, spread over the list."""
TRAINING: Final = tuple(word for word in WORDS if word not in HELD_OUT)
MIN_PRICE: Final = 11
MAX_PRICE: Final = 99


class Playable(Protocol):
    """What the driver asks of a task: a name to compare by, a word to hold out, a job for the agent, a score."""

    @property
    def name(self) -> str: ...

    @property
    def item(self) -> str: ...

    def job(self) -> dict[str, Any]: ...

    def score(self, turns: Sequence[Turn]) -> float: ...


class Turn(Record, frozen=True):
    """One answer of the model, as the agent reports it."""

    content: str
    finish_reason: str | None = None


class Task(Record, frozen=True):
    """One question: what the item costs, and how often it was asked before (that makes it a task of its own)."""

    item: str
    price: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """The task as Hone knows it: episodes of one name are compared with each other.

        >>> Task(item="lamp", price=37).name
        'lamp/37/0'
        """
        return f"{self.item}/{self.price}/{self.repeat}"

    def job(self) -> dict[str, Any]:
        """What the agent is told of it."""
        return {"item": self.item, "price": self.price}

    def score(self, turns: Sequence[Turn]) -> float:
        return score(self, turns)


class Outcome(Record, frozen=True):
    """What the agent's one line says of a job."""

    job: str
    turns: tuple[Turn, ...] = ()
    error: str | None = None
    """Set where the attempt broke for a cause that is not the model's: it is scored by nobody."""


def score(task: Task, turns: Sequence[Turn]) -> float:
    """0, 0.5 for a valid call, 1 for a valid call and the right answer.

    >>> score(Task(item="lamp", price=37), [Turn(content="LOOKUP(lamp)", finish_reason="stop")])
    0.5
    """
    return exact_share(turns, (f"LOOKUP({task.item})", str(task.price)))


def exact_share(turns: Sequence[Turn], wanted: Sequence[str]) -> float:
    """The share of turns that are exactly what was wanted and ended by themselves, up to the first that is not."""
    won = 0
    for turn, text in zip(turns, wanted, strict=False):
        if turn.content != text or turn.finish_reason != "stop":
            break
        won += 1
    return won / len(wanted)


def training_tasks(seed: int) -> Iterator[Task]:
    """Tasks to train on without end: the training words in a new order each time round, each at a random price."""
    chooser = random.Random(f"train-{seed}")  # noqa: S311 - a reproducible draw, no secret
    repeat = 0
    while True:
        for item in chooser.sample(TRAINING, len(TRAINING)):
            yield Task(item=item, price=chooser.randint(MIN_PRICE, MAX_PRICE), repeat=repeat)
        repeat += 1


def held_out_tasks(seed: int, times: int) -> tuple[Task, ...]:
    """Each held-out word `times` times, at random prices."""
    chooser = random.Random(f"held-out-{seed}")  # noqa: S311 - a reproducible draw, no secret
    return tuple(
        Task(item=item, price=chooser.randint(MIN_PRICE, MAX_PRICE), repeat=repeat)
        for repeat in range(times)
        for item in HELD_OUT
    )
