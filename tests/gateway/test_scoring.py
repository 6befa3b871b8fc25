"""Whether an engine's log-probabilities are those of the distribution it samples from."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.scoring import TEMPERATURES, Scoring, judge

logits = st.lists(st.floats(-20, 20, allow_nan=False), min_size=3, max_size=20)


def log_softmax(values: list[float], temperature: float) -> dict[str, float]:
    scaled = [value / temperature for value in values]
    highest = max(scaled)
    total = highest + math.log(sum(math.exp(value - highest) for value in scaled))
    return {f"token_id:{number}": value - total for number, value in enumerate(scaled)}


def top(scores: dict[str, float], num: int) -> dict[str, float]:
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:num])


@given(logits, st.integers(2, 20))
def test_scores_of_the_sampled_distribution_are_never_refused(values: list[float], num: int) -> None:
    one, other = (top(log_softmax(values, temperature), num) for temperature in TEMPERATURES)
    assert judge(one, other) is not Scoring.UNSCALED


@given(logits)
def test_scores_from_before_the_temperature_are_never_accepted(values: list[float]) -> None:
    raw = log_softmax(values, 1.0)
    assert judge(raw, raw) is not Scoring.PROCESSED
    if max(values) - min(values) > 0.2:
        assert judge(raw, raw) is Scoring.UNSCALED


@given(logits.filter(lambda values: max(values) > 0.1))
def test_bare_logits_are_refused(values: list[float]) -> None:
    bare = {f"token_id:{number}": value for number, value in enumerate(values)}
    assert judge(bare, bare) is Scoring.UNSCALED


def test_without_alternatives_nothing_is_known() -> None:
    assert judge({}, {}) is Scoring.UNKNOWN
    assert judge({"a": -0.1}, {"a": -0.4}) is Scoring.UNKNOWN
    assert judge({"a": -0.7, "b": -0.7}, {"a": -0.7, "b": -0.7}) is Scoring.UNKNOWN
