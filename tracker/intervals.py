"""A mean and its 95 % interval, by Student's t. Pure.

For rewards of episodes that are taken for independent: those of one task are alike, so the interval of a few tasks with
many episodes each is too narrow. It says how far a mean may be off by chance, and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tracker.types import Record

QUANTILES: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 0.975 quantile of Student's t with 1, 2 … 30 degrees of freedom."""
NORMAL: Final = 1.959964


class Interval(Record, frozen=True):
    """A mean over values; without bounds where there are fewer than two."""

    num: int
    mean: float
    low: float | None = None
    high: float | None = None


def interval_of(values: Iterable[float]) -> Interval | None:
    """Mean and bounds of these values; `None` where there are none.

    >>> interval_of([0.0, 1.0, 1.0, 0.0])
    Interval(num=4, mean=0.5, low=-0.41856427828069454, high=1.4185642782806944)
    >>> interval_of([2.0]), interval_of([])
    (Interval(num=1, mean=2.0, low=None, high=None), None)
    """
    known = list(values)
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) < 2:
        return Interval(num=1, mean=mean)
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    half = quantile(len(known) - 1) * math.sqrt(variance / len(known))
    return Interval(num=len(known), mean=mean, low=mean - half, high=mean + half)


def interval_of_sums(num: int, total: float | None, squares: float | None) -> Interval | None:
    """The same of `num` values of which only their sum and the sum of their squares are known.

    >>> interval_of_sums(4, 2.0, 2.0) == interval_of([0.0, 1.0, 1.0, 0.0])
    True
    >>> interval_of_sums(0, None, None)
    """
    if not num or total is None or squares is None:
        return None
    mean = total / num
    if num < 2:
        return Interval(num=1, mean=mean)
    variance = max(0.0, squares - num * mean * mean) / (num - 1)
    half = quantile(num - 1) * math.sqrt(variance / num)
    return Interval(num=num, mean=mean, low=mean - half, high=mean + half)


def quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t; above 30 degrees by its expansion (Abramowitz and Stegun, 26.7.5).

    >>> round(quantile(1), 3), round(quantile(40), 3), round(quantile(120), 3)
    (12.706, 2.021, 1.98)
    """
    if degrees <= len(QUANTILES):
        return QUANTILES[degrees - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
