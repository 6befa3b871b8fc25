"""Whether an engine reads and scores as the trainer does, before anything is trained. Pure.

The trainer tells how its tokenizer and its template turn texts and chats into ids, and how its bare base model scores a
few tokens after short prompts and after long ones. Ids must be equal. Scores must be as near as the coarsest arithmetic
that is used in serving allows: other weights show at once, another position encoding where the prompt is long. What an
engine cannot be asked is said as not checked; it is never the same as having passed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from gateway.probe import logprob_in
from tracker.types import Record

COARSEST_NOISE: Final = 0.04
"""Nats between a cached decoding in bfloat16 and a full pass, in the mean: an engine may be as coarse as this."""
NOISE_FACTOR: Final = 4.0
WORST_FACTOR: Final = 2.0
"""How much further than the mean may be the scores after one prompt."""
SHALLOW: Final = 96
"""Prompts up to this length tell of the weights; position encodings that differ show mostly after longer ones."""
MAX_QUOTED: Final = 60


class Rendered(Record, frozen=True):
    """What some input is to the trainer."""

    name: str
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """The text of each id, for people."""


class TextRendered(Rendered, frozen=True):
    """A text without a template."""

    text: str


class ChatRendered(Rendered, frozen=True):
    """A chat up to where the assistant answers."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


class PointScored(Record, frozen=True):
    """The likeliest tokens after a prompt, with their log-probabilities under the trainer's base model."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Expected(Record, frozen=True):
    """All that an engine is compared with."""

    dtype: str
    """What the trainer's base model computes in."""
    noise: float
    """How far two engines in this arithmetic are from each other, in nats."""
    texts: tuple[TextRendered, ...] = ()
    chats: tuple[ChatRendered, ...] = ()
    points: tuple[PointScored, ...] = ()


class Finding(enum.StrEnum):
    """What a check found."""

    SAME = "same"
    COARSE = "coarse"
    """The same but for rounding that is coarser than the trainer's."""
    DIFFERS = "differs"
    NOT_CHECKED = "not_checked"


class Check(Record, frozen=True, omit_defaults=False):
    """One thing that was compared."""

    what: str
    finding: Finding
    detail: str
    gap: float | None = None
    """Nats, where scores were compared."""


class PointGap(Record, frozen=True):
    """How far an engine's scores are from the trainer's after one prompt."""

    depth: int
    """Tokens of the prompt."""
    gap: float
    """Mean distance of the tokens' log-probabilities, each token as often as the trainer would sample it."""


def told_difference(expected: Rendered, found: Sequence[int], place: int, piece: str) -> str:
    """The difference in words; `piece` is the engine's id there, as text."""
    ours = expected.pieces[place] if place < len(expected.pieces) else ""
    own = _told_id(expected.token_ids, place, ours)
    return f"of {expected.name} token {place} is {own} for the trainer and {_told_id(found, place, piece)} for it"


def gap_of(point: PointScored, top: Mapping[str, float]) -> PointGap | None:
    """The distance of an engine's alternatives after this prompt; `None` if it names none by id.

    >>> top = {"token_id:5": -0.5, "token_id:6": -1.5}
    >>> gap_of(PointScored(prompt_ids=(1, 2), token_ids=(5, 6), logprobs=(-0.5, -1.5)), top)
    PointGap(depth=2, gap=0.0)
    """
    told = [logprob_in(top, token) for token in point.token_ids]
    pairs = [(value, expected) for value, expected in zip(told, point.logprobs, strict=True) if value is not None]
    if not pairs:
        return None
    weights = [math.exp(expected) for _, expected in pairs]
    distances = [value.distance(expected) for value, expected in pairs]
    total = math.fsum(weights)
    gap = math.fsum(weight * distance for weight, distance in zip(weights, distances, strict=True)) / total
    return PointGap(depth=len(point.prompt_ids), gap=gap)


def judge_scores(gaps: Sequence[PointGap], expected: Expected) -> tuple[Check, ...]:
    """Weights by the short prompts, positions by the long ones, and the arithmetic by all of them.

    >>> gaps = [PointGap(depth=10, gap=0.0), PointGap(depth=500, gap=1.0)]
    >>> [(check.what, check.finding.value) for check in judge_scores(gaps, Expected(dtype="float32", noise=1e-4))]
    [('base weights', 'same'), ('positions (rope)', 'differs')]
    """
    limit = NOISE_FACTOR * max(expected.noise, COARSEST_NOISE)
    shallow = [item for item in gaps if item.depth <= SHALLOW]
    deep = [item for item in gaps if item.depth > SHALLOW]
    weights = _within("base weights", shallow, limit)
    if weights.finding is Finding.DIFFERS:
        return (weights,)
    positions = _within("positions (rope)", deep, limit)
    if positions.finding is Finding.DIFFERS:
        agreed = f", though it agrees up to {max(item.depth for item in shallow)}" if shallow else ""
        return weights, _with_more(positions, agreed)
    return weights, positions, _arithmetic(gaps, expected)


def not_checked(what: str, why: str) -> Check:
    """A check that the engine did not answer."""
    return Check(what=what, finding=Finding.NOT_CHECKED, detail=why)


def quoted(text: str) -> str:
    """Some text for a line of words."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def _within(what: str, gaps: Sequence[PointGap], limit: float) -> Check:
    """Whether the scores after these prompts are as near as they have to be, in the mean and after the worst one."""
    if not gaps:
        return not_checked(what, "there was no prompt of such a length to compare")
    mean, worst = fmean(item.gap for item in gaps), max(gaps, key=lambda item: item.gap)
    if not (mean <= limit and worst.gap <= WORST_FACTOR * limit):
        told = f"log-probabilities are {worst.gap:.3g} nats apart after a prompt of {worst.depth} tokens"
        detail = f"{told} ({mean:.3g} in the mean of {len(gaps)} prompts; rounding explains {limit:.2g})"
        return Check(what=what, finding=Finding.DIFFERS, detail=detail, gap=mean)
    detail = f"{mean:.2g} nats apart in the mean of {len(gaps)} prompts of up to {max(g.depth for g in gaps)} tokens"
    return Check(what=what, finding=Finding.SAME, detail=detail, gap=mean)


def _arithmetic(gaps: Sequence[PointGap], expected: Expected) -> Check:
    """Whether the engine rounds as the trainer does; it may round more coarsely, which then shows in every step."""
    if not gaps:
        return not_checked("dtype", "there was no prompt to compare")
    mean = fmean(item.gap for item in gaps)
    if mean <= NOISE_FACTOR * expected.noise:
        detail = f"{mean:.2g} nats apart, as {expected.dtype} on both sides explains"
        return Check(what="dtype", finding=Finding.SAME, detail=detail, gap=mean)
    detail = (
        f"{mean:.2g} nats apart: the engine rounds more coarsely than the trainer's {expected.dtype}, as with another "
        "dtype"
    )
    return Check(what="dtype", finding=Finding.COARSE, detail=detail, gap=mean)


def _with_more(check: Check, words: str) -> Check:
    return Check(what=check.what, finding=check.finding, detail=check.detail + words, gap=check.gap)


def _told_id(ids: Sequence[int], place: int, piece: str) -> str:
    if place >= len(ids):
        return "missing"
    return f"{ids[place]} {quoted(piece)}" if piece else str(ids[place])
