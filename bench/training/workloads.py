"""Recorded episodes for `bench/train.py`: rows as the feed would give them, made up and seeded. Pure.

Eight episodes attempt one task from one prompt, turn after turn, and every call reads all that came before. What an
answer is made of does not matter to speed, so ids are drawn at random; what matters is what calls share, and that
follows from the turns and from how long prompt, answer and observation are. Each length is drawn around its mean. The
engine's log-probabilities are filled in by whoever has a model (`with_logprobs`).

Real tool agents have prompts of 200 to 600 tokens, answers of 20 to 100 and observations of 30 to 300. A group of eight
such episodes with 20 turns has up to 600,000 raw tokens. Under `CAP` the lengths shrink as the turns grow and the group
and the turns stay whole: sharing depends on how the lengths stand to each other, and short stretches are harder on the
trie, never easier.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from msgspec.structs import replace as with_fields

from tracker.samples import Row

CAP: Final = 60_000
"""Raw tokens of a workload at most."""
GROUP: Final = 8
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload is made of; lengths are means, in tokens."""

    name: str
    turns: int
    system: int
    """Equal in all episodes."""
    task: int
    """Equal in the episodes of a group."""
    sampled: int
    observation: int
    groups: int = 1
    kind: Literal["tools", "thinking", "sub-agents"] = "tools"


THINKING_SHARE: Final = 0.6
"""Of what is sampled, in the workload whose template drops it from later prompts."""
SUB_AGENTS: Final = 3
SUB_TURNS: Final = 3
DELEGATIONS: Final = 2
"""How often the main agent calls its sub-agents before it answers."""

SHAPES: Final = (
    Shape("1 turn, short", turns=1, groups=3, system=160, task=96, sampled=48, observation=0),
    Shape("1 turn, long", turns=1, groups=2, system=160, task=240, sampled=48, observation=0),
    Shape("5 turns, short", turns=5, system=104, task=56, sampled=24, observation=20),
    Shape("5 turns, long", turns=5, system=72, task=48, sampled=16, observation=72),
    Shape("10 turns, short", turns=10, system=56, task=32, sampled=12, observation=10),
    Shape("10 turns, long", turns=10, system=48, task=32, sampled=11, observation=28),
    Shape("20 turns, short", turns=20, system=32, task=16, sampled=6, observation=5),
    Shape("20 turns, long", turns=20, system=28, task=16, sampled=5, observation=10),
    Shape("sub-agents", turns=DELEGATIONS + 1, system=48, task=32, sampled=12, observation=12, kind="sub-agents"),
    Shape("thinking stripped", turns=5, system=84, task=44, sampled=32, observation=20, kind="thinking"),
)
"""Short observations are about as long as answers, long ones two to five times; with one turn there is none, and a
document in the task stands for it."""
QUICK: Final = (
    Shape("2 turns, quick", turns=2, system=24, task=12, sampled=6, observation=6),
    Shape("thinking, quick", turns=2, system=24, task=12, sampled=8, observation=6, kind="thinking"),
)
"""To see that all of it runs; nothing about speed."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The rows of one step."""

    shape: Shape
    rows: tuple[Row, ...]
    advantages: tuple[float, ...]

    @property
    def num_raw_tokens(self) -> int:
        return sum(len(row.prompt_ids) + len(row.sampled_ids) for row in self.rows)


def workload(shape: Shape, vocabulary: int) -> Workload:
    """All rows of a shape; the same shape gives the same rows."""
    draw = Draw(random.Random(shape.name), vocabulary)
    system, sub_system = draw.exactly(shape.system), draw.exactly(shape.system)
    rows: list[Row] = []
    advantages: list[float] = []
    for group in range(shape.groups):
        prompt = system + draw.exactly(shape.task)
        for member, advantage in enumerate(_advantages(draw)):
            episode = f"{group}-{member}"
            calls = list(_calls(shape, draw, prompt, sub_system))
            rows += (_row(episode, number, *call) for number, call in enumerate(calls))
            advantages += [advantage] * len(calls)
    return Workload(shape, tuple(rows), tuple(advantages))


def with_logprobs(one: Workload, logprobs: Iterable[Sequence[float]]) -> Workload:
    """The same rows with what the engine would have said of them, row after row."""
    rows = tuple(with_fields(row, logprobs=tuple(values)) for row, values in zip(one.rows, logprobs, strict=True))
    return replace(one, rows=rows)


@dataclass(frozen=True, slots=True)
class Draw:
    """Random ids."""

    chance: random.Random
    vocabulary: int

    def exactly(self, length: int) -> Ids:
        return tuple(self.chance.randrange(self.vocabulary) for _ in range(length))

    def about(self, length: int) -> Ids:
        """Half as many to one and a half times as many, at least two."""
        return self.exactly(max(2, self.chance.randint(length // 2, length + length // 2)))


def _advantages(draw: Draw) -> list[float]:
    """Of a group of eight with rewards 0 and 1, both of which occur."""
    wins = draw.chance.randint(2, GROUP - 2)
    rewards = [1.0] * wins + [0.0] * (GROUP - wins)
    draw.chance.shuffle(rewards)
    mean = wins / GROUP
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / (GROUP - 1)) ** 0.5
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def _calls(shape: Shape, draw: Draw, prompt: Ids, sub_system: Ids) -> Iterator[tuple[str, Ids, Ids]]:
    """Role, prompt and sampled ids of an episode's calls."""
    if shape.kind == "sub-agents":
        return _with_sub_agents(shape, draw, prompt, sub_system)
    return (("main", *call) for call in _turns(shape, draw, prompt))


def _turns(shape: Shape, draw: Draw, prompt: Ids) -> Iterator[tuple[Ids, Ids]]:
    """An agent that calls one tool a turn; a template that drops thinking makes each prompt fork before it."""
    history = prompt
    for _ in range(shape.turns):
        sampled = draw.about(shape.sampled)
        yield history, sampled
        kept = sampled[round(THINKING_SHARE * len(sampled)) :] if shape.kind == "thinking" else sampled
        history += kept + draw.about(shape.observation)


def _with_sub_agents(shape: Shape, draw: Draw, prompt: Ids, sub_system: Ids) -> Iterator[tuple[str, Ids, Ids]]:
    """A main agent that asks several sub-agents at once, reads what they found, asks again and answers.

    Sub-agents have a system prompt of their own, the same for all, and get as their task what the main agent wrote.
    """
    history = prompt
    for turn in range(shape.turns):
        order = draw.about(shape.sampled)
        yield "main", history, order
        if turn == shape.turns - 1:
            return
        found: Ids = ()
        for number in range(SUB_AGENTS):
            mission = (*draw.exactly(4), *order[number::SUB_AGENTS])
            for place, (asked, sampled) in enumerate(_turns(_sub(shape), draw, sub_system + mission)):
                yield "subagent", asked, sampled
                found += sampled if place == SUB_TURNS - 1 else ()
        history += order + found


def _sub(shape: Shape) -> Shape:
    return replace(shape, kind="tools", turns=SUB_TURNS)


def _row(episode: str, number: int, role: str, prompt: Ids, sampled: Ids) -> Row:
    return Row(
        policy="bench",
        episode_id=episode,
        call_id=f"{episode}-{number}",
        choice=0,
        version=0,
        adapter_digest="",
        role=role,
        prompt_ids=prompt,
        sampled_ids=sampled,
        logprobs=(0.0,) * len(sampled),
        temperature=1.0,
        receipt=b"",
    )
