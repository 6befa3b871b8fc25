"""Means with 95 % intervals, and the gain between two rounds of the same tasks, by the bootstrap.

What is drawn again is the *item*, with all of its episodes: they share a word, so they are not independent, and the
question is how the policy does on items it has not seen. The gain is paired: each draw takes the same items before
and after (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13). Pure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from tracker.types import Record

NUM_DRAWS: Final = 4000
LOW: Final = 0.025
HIGH: Final = 0.975

Scores = Mapping[str, Sequence[float]]
"""Item -> the scores of its episodes."""


class Interval(Record, frozen=True):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def pooled_mean(groups: Sequence[Sequence[float]]) -> float:
    """Mean over all values of all groups; 0 where there are none.

    >>> pooled_mean([(1.0,), (0.0, 0.5)])
    0.5
    """
    num_values = sum(len(group) for group in groups)
    return sum(sum(group) for group in groups) / num_values if num_values else 0.0


def _percentiles(draws: Sequence[float], mean: float) -> Interval:
    ranked = sorted(draws)
    last = len(ranked) - 1
    return Interval(mean=mean, low=ranked[round(LOW * last)], high=ranked[round(HIGH * last)])


def mean_interval(scores: Scores, seed: int = 0) -> Interval:
    """The mean score of an episode, with the spread that other items would have given."""
    items = [scores[item] for item in sorted(scores)]
    chooser = random.Random(seed)  # noqa: S311 - a reproducible draw, no secret
    draws = [pooled_mean(chooser.choices(items, k=len(items))) for _ in range(NUM_DRAWS)]
    return _percentiles(draws, pooled_mean(items))


def gain_interval(before: Scores, after: Scores, seed: int = 0) -> Interval:
    """The paired difference of means over the items that both have."""
    pairs = [(before[item], after[item]) for item in sorted(before.keys() & after.keys())]
    chooser = random.Random(seed)  # noqa: S311 - a reproducible draw, no secret
    draws = [_gain(chooser.choices(pairs, k=len(pairs))) for _ in range(NUM_DRAWS)]
    return _percentiles(draws, _gain(pairs))


def _gain(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    return pooled_mean([after for _, after in pairs]) - pooled_mean([before for before, _ in pairs])


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """Trailing mean over at most `width` values: it never looks ahead.

    >>> moving_average([0.0, 1.0, 1.0], 2)
    [0.0, 0.5, 1.0]
    """
    return [pooled_mean([values[max(0, end - width) : end]]) for end in range(1, len(values) + 1)]
