"""How alike attempts at one task are, and how much less an episode then says that is one of several. Pure.

The arm of a trial is drawn for a group, and attempts at one task share what is hard about it: taken one by one they
would say the same thing several times, and an equal version would be rolled back for the tasks it got. With
`correlation` between the values of a group of n, the sum of n values scatters 1 + (n - 1) · correlation times as much
as that of independent ones (the design effect: Kish, Survey Sampling, 1965, section 8.2), so each factor of the
evidence is raised to the power of one over that. Independent attempts count in full, identical ones as one together.
A power of at most 1 never makes evidence of what is none: E[f^w] ≤ E[f]^w ≤ 1; and where it is 1/n the product over a
group is such whatever the attempts have in common (Hölder's inequality). In between it holds to second order, for a
correlation that is known; how well one that is measured does is in docs/releases.md.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

SUPPOSED: Final = 0.25
"""The correlation, before anything is known of it, as if it had been seen in `SUPPOSED_PAIRS`."""
SUPPOSED_PAIRS: Final = 56.0
CAUTION: Final = 1.25
"""How many times what was measured is reckoned with: its standard error is a fifth of it after fifty groups."""
SUPPOSED_VARIANCE: Final = 0.25
"""Of values between 0 and 1, at most; as if it had been seen in `SUPPOSED_VALUES`."""
SUPPOSED_VALUES: Final = 8.0
DIFFERENCES: Final = 1.5
"""How many times as much successive differences scatter as deviations from a mean (von Neumann, 1941)."""
MIN_GROUPS: Final = 4


class Likeness(NamedTuple):
    """What is known of the correlation between attempts at one task."""

    correlation: float
    """May be below 0, as any estimate of what is near 0."""
    num_pairs: float
    """In how many pairs of attempts it was seen, about."""


UNSEEN: Final = Likeness(0.0, 0.0)


def likeness_of(groups: Sequence[Sequence[float]]) -> Likeness:
    """What groups of attempts, in the order in which they were played, tell of it.

    Means of groups are compared with those of their neighbours, since a policy that learns gets better meanwhile and
    that is nothing that tasks have in common.

    >>> likeness_of([[0.0, 0.0], [1.0, 1.0]] * 4).correlation
    1.0
    >>> likeness_of([[0.0, 1.0]] * 8).correlation
    -1.0
    """
    several = [group for group in groups if len(group) > 1]
    if len(several) < MIN_GROUPS:
        return UNSEEN
    within = sum(statistics.variance(group) * (len(group) - 1) for group in several)
    within /= sum(len(group) - 1 for group in several)
    means = [statistics.fmean(group) for group in several]
    of_means = statistics.fmean((after - before) ** 2 / 2 for before, after in itertools.pairwise(means))
    between = of_means - within * statistics.fmean(1 / len(group) for group in several)
    if between + within <= 0:
        return UNSEEN
    num_pairs = sum(len(group) * (len(group) - 1) / 2 for group in several) / DIFFERENCES
    return Likeness(max(between / (between + within), -1.0), num_pairs)


def left_by(likeness: Likeness, num_known: int, weight: float) -> Likeness:
    """The correlation that is left at a task of which so many attempts are known, where their mean, taken with the
    run's as if that were `weight` more, is what is expected of all: the rest of the task is what they share still."""
    between, within = max(likeness.correlation, 0.0), 1 - max(likeness.correlation, 0.0)
    left = (num_known * within + weight**2 * between) / (num_known + weight) ** 2
    return likeness._replace(correlation=left / (left + within)) if left + within else likeness


class _Sum(NamedTuple):
    num: int = 0
    total: float = 0.0


class Attempts:
    """The correlation as it shows in a trial, where the arms may have different means."""

    def __init__(self) -> None:
        self._groups: dict[str, _Sum] = {}
        self._arms = [_Sum(), _Sum()]
        self._products = 0.0
        self._num_pairs = 0
        self._squares = 0.0
        self._num = 0

    def weight(self, before: Likeness, size: int) -> float:
        """The power of a factor of one of `size` attempts, with what was known before the trial."""
        variance = (self._squares + SUPPOSED_VARIANCE * SUPPOSED_VALUES) / (self._num + SUPPOSED_VALUES)
        seen = self._products / variance + before.correlation * before.num_pairs + SUPPOSED * SUPPOSED_PAIRS
        correlation = seen / (self._num_pairs + before.num_pairs + SUPPOSED_PAIRS)
        return 1 / (1 + (size - 1) * min(max(CAUTION * correlation, 0.0), 1.0))

    def take(self, group_id: str, is_canary: bool, surprise: float) -> None:
        """One more attempt, and by how much its value was above what was expected there of both arms."""
        arm = self._arms[is_canary] = _with(self._arms[is_canary], surprise)
        deviation = surprise - arm.total / (arm.num + 2)
        group = self._groups.get(group_id, _Sum())
        self._groups[group_id] = _with(group, deviation)
        self._products += deviation * group.total
        self._num_pairs += group.num
        self._squares += deviation**2
        self._num += 1


def _with(seen: _Sum, value: float) -> _Sum:
    return _Sum(seen.num + 1, seen.total + value)
