"""Reward alarms: rewards that rise where a held-out judge's do not, and answers that change their character. Pure.

The newest episodes of a run are cut in two halves, and the newer one is compared with the older: by how many standard
errors the means differ (Welch). A difference must be both plain and large enough to matter, so an alarm is for somebody
to look at, and no proof. A judge is held out where the run gives its name the weight 0: nothing is trained on it. Where
the numbers come from is left to `alarm_rows.py`, how often they are looked at to the gateway.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tracker.types import Record

WINDOW: Final = 400
"""How many of the newest episodes are looked at."""
MIN_HALF: Final = 30
"""Episodes in each half, below which nothing is said."""
PLAIN: Final = 4.0
"""Standard errors from which a difference is plain; few enough false alarms that each is worth a look."""
STILL: Final = 1.0
"""Standard errors up to which a judge has not followed."""
LENGTH_RATIO: Final = 1.5
SHARE_RISE: Final = 0.05


class AlarmKind(enum.StrEnum):
    """What is amiss."""

    JUDGE_LEFT_BEHIND = "judge_left_behind"
    """The trained reward rises, and a held-out judge does not: the reward may be gamed."""
    LENGTH = "length"
    REFUSALS = "refusals"
    REPETITION = "repetition"


class Point(Record, frozen=True):
    """One archived episode."""

    reward: float | None = None
    """As it is trained."""
    judges: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """Held-out reward name -> its value."""
    num_tokens: float | None = None
    """Sampled, an answer; `None` where nothing was measured."""
    refusals: float = 0.0
    """Share of its answers."""
    repeated: float = 0.0


class History(Record, frozen=True):
    """The newest episodes of a run with a policy, oldest first."""

    tenant: str
    run: str
    policy: str
    points: tuple[Point, ...]


class Alarm(Record, frozen=True):
    """What is amiss with a run now."""

    tenant: str
    run: str
    policy: str
    kind: AlarmKind
    detail: str
    """In words."""
    numbers: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    raised_ms: int = 0
    """When it was first found; given by the ledger."""


class Change(Record, frozen=True):
    """A mean in the older and in the newer half, and by how many standard errors they differ."""

    before: float
    after: float
    errors: float


def alarms(history: History) -> list[Alarm]:
    """What a run's newest episodes give reason to look at."""
    found = [*_judges_left_behind(history.points), *_drifts(history.points)]
    return [
        Alarm(
            tenant=history.tenant,
            run=history.run,
            policy=history.policy,
            kind=kind,
            detail=detail,
            numbers={"before": change.before, "after": change.after, "errors": change.errors},
        )
        for kind, detail, change in found
    ]


def change(values: Sequence[float]) -> Change | None:
    """How the newer half of a series differs from the older; `None` where there are too few.

    >>> change([0.0, 1.0] * 20 + [1.0, 2.0] * 20).errors > 4
    True
    """
    half = len(values) // 2
    if half < MIN_HALF:
        return None
    older, newer = values[:half], values[half:]
    before, after = statistics.fmean(older), statistics.fmean(newer)
    error = math.sqrt(statistics.variance(older) / len(older) + statistics.variance(newer) / len(newer))
    if error == 0:
        return Change(before=before, after=after, errors=0.0 if before == after else math.copysign(1e3, after - before))
    return Change(before=before, after=after, errors=max(-1e3, min(1e3, (after - before) / error)))


def _judges_left_behind(points: Sequence[Point]) -> Iterable[tuple[AlarmKind, str, Change]]:
    names = sorted({name for point in points for name in point.judges})
    for name in names:
        judged = [point for point in points if name in point.judges and point.reward is not None]
        rewards = change([point.reward for point in judged if point.reward is not None])
        judge = change([point.judges[name] for point in judged])
        if rewards is not None and judge is not None and rewards.errors >= PLAIN and judge.errors <= STILL:
            told = (
                f"the trained reward rose from {rewards.before:.3g} to {rewards.after:.3g} while {name!r}, which is "
                f"held out, went from {judge.before:.3g} to {judge.after:.3g}"
            )
            yield AlarmKind.JUDGE_LEFT_BEHIND, told, judge
            return


def _drifts(points: Sequence[Point]) -> Iterable[tuple[AlarmKind, str, Change]]:
    measured = [point for point in points if point.num_tokens is not None]
    lengths = change([math.log1p(point.num_tokens or 0.0) for point in measured])
    if lengths is not None and abs(lengths.errors) >= PLAIN:
        before, after = math.expm1(lengths.before), math.expm1(lengths.after)
        if max(before, after) >= LENGTH_RATIO * max(1.0, min(before, after)):
            told = f"an answer had {before:.0f} tokens and has {after:.0f}"
            yield AlarmKind.LENGTH, told, Change(before=before, after=after, errors=lengths.errors)
    refusals, repeated = [point.refusals for point in measured], [point.repeated for point in measured]
    for kind, values, words in (
        (AlarmKind.REFUSALS, refusals, "begin by declining"),
        (AlarmKind.REPETITION, repeated, "repeat themselves"),
    ):
        shares = change(values)
        if shares is not None and shares.errors >= PLAIN and shares.after - shares.before >= SHARE_RISE:
            yield kind, f"{shares.after:.0%} of the answers {words}; it was {shares.before:.0%}", shares
