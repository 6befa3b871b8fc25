"""Whether an engine's log-probabilities are those of the distribution it samples from. Pure.

At temperature T an engine samples from softmax(z / T). Log-probabilities of two tokens then differ by (z_a - z_b) / T:
twice the temperature, half the difference. An engine that reports them from before the temperature shows the same
difference at both, and one that reports bare logits shows values that are no log-probabilities at all.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

PROMPT: Final = "The capital of France is"
TEMPERATURES: Final = (1.0, 2.0)
MIN_DIFFERENCE: Final = 0.1
"""Nats between two tokens below which rounding could hide the temperature."""
SLACK: Final = 0.02
TOKEN_ID: Final = "token_id:"  # noqa: S105 - a prefix, no secret
"""How engines write a token whose id was asked for in place of its text."""


class Scoring(enum.StrEnum):
    """What a check of an engine's scores found."""

    PROCESSED = "processed"
    UNSCALED = "unscaled"
    """They ignore the temperature, or are no log-probabilities."""
    UNKNOWN = "unknown"
    """The engine gives no alternatives that could be compared."""


def judge(one: Mapping[str, float], other: Mapping[str, float]) -> Scoring:
    """Compare the scores of the same prompt at the two temperatures.

    >>> judge({"a": -0.2, "b": -2.2}, {"a": -0.4, "b": -1.4})
    <Scoring.PROCESSED: 'processed'>
    >>> judge({"a": -0.2, "b": -2.2}, {"a": -0.2, "b": -2.2})
    <Scoring.UNSCALED: 'unscaled'>
    """
    if not (_is_distribution(one) and _is_distribution(other)):
        return Scoring.UNSCALED
    common = sorted(set(one) & set(other), key=lambda token: one[token])
    if len(common) < 2:
        return Scoring.UNKNOWN
    low, high = common[0], common[-1]
    difference = one[high] - one[low]
    if difference < MIN_DIFFERENCE:
        return Scoring.UNKNOWN
    scaled = (other[high] - other[low]) / difference
    expected = TEMPERATURES[0] / TEMPERATURES[1]
    return Scoring.PROCESSED if abs(scaled - expected) < abs(scaled - 1) else Scoring.UNSCALED


def _is_distribution(scores: Mapping[str, float]) -> bool:
    """No probability above one, alone or together."""
    return all(value <= SLACK for value in scores.values()) and sum(map(math.exp, scores.values())) <= 1 + SLACK
