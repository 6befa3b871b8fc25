"""Evidence that may be looked at after every value: its laws, whatever the values, the shares and the guesses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.sequential import Comparison, Drawn, Exceeding, bounds

values = st.floats(0, 1)
shares = st.floats(0.05, 0.95)
histories = st.lists(st.builds(Drawn, st.booleans(), shares, values, st.none() | values, values), max_size=30)


def fed(history: list[Drawn], shift: float = 0.0) -> Comparison:
    compared = Comparison(shift)
    for drawn in history:
        compared.feed(drawn)
    return compared


def expected(history: list[Drawn], means: tuple[float, float], share: float, shift: float = 0.0) -> tuple[float, float]:
    """What the evidence is expected to be after one more value of 0 or 1 whose means are these: stable, canary."""
    below = above = 0.0
    for is_canary, chance in ((False, 1 - share), (True, share)):
        for value in (0.0, 1.0):
            after = fed([*history, Drawn(is_canary, share, value)], shift)
            probability = chance * (means[is_canary] if value else 1 - means[is_canary])
            below += probability * after.below
            above += probability * after.above
    return below, above


@given(histories, values, shares)
def test_where_the_arms_are_equal_no_evidence_is_expected_to_grow(history: list[Drawn], mean: float, share: float):
    before = fed(history)
    below, above = expected(history, (mean, mean), share)
    assert below == pytest.approx(before.below)
    assert above == pytest.approx(before.above)


@given(histories, values, values, shares)
def test_evidence_for_what_is_false_is_not_expected_to_grow(
    history: list[Drawn], one: float, other: float, share: float
):
    before = fed(history)
    low, high = sorted((one, other))
    assert expected(history, (low, high), share)[0] <= before.below * (1 + 1e-9)
    assert expected(history, (high, low), share)[1] <= before.above * (1 + 1e-9)


@given(histories, st.integers(1, 4), values, shares, values)
def test_attempts_that_are_all_the_same_count_as_one(
    history: list[Drawn], size: int, mean: float, share: float, guess: float
):
    """With the power of one over their number, whatever they have in common."""
    before = fed(history)
    grown = [0.0, 0.0]
    for is_canary, value in itertools.product((False, True), (0.0, 1.0)):
        after = fed([*history, *[Drawn(is_canary, share, value, guess, 1 / size)] * size])
        probability = (share if is_canary else 1 - share) * (mean if value else 1 - mean)
        grown = [sums + probability * each for sums, each in zip(grown, (after.below, after.above), strict=True)]
    assert grown == pytest.approx([before.below, before.above])


@given(histories, st.floats(0, 1), st.floats(0, 0.9), shares)
def test_a_shift_moves_what_counts_as_equal(history: list[Drawn], mean: float, shift: float, share: float):
    """With the canary's mean just `shift` above the stable one, neither side is expected to gain."""
    stable = mean * (1 - shift)
    before = fed(history, shift)
    below, above = expected(history, (stable, stable + shift), share, shift)
    assert below == pytest.approx(before.below)
    assert above == pytest.approx(before.above)


@given(histories)
def test_no_value_makes_evidence_negative_or_ends_it(history: list[Drawn]):
    compared = fed(history)
    assert compared.below > 0
    assert compared.above > 0


@given(st.lists(values, max_size=20), st.floats(0.05, 0.95))
def test_a_mean_at_the_level_is_no_evidence_that_it_is_above(history: list[float], level: float):
    before = Exceeding(level)
    for value in history:
        before.feed(value)
    grown = 0.0
    for value, probability in ((0.0, 1 - level), (1.0, level)):
        after = Exceeding(level)
        for each in (*history, value):
            after.feed(each)
        grown += probability * after.evidence
    assert grown == pytest.approx(before.evidence)


@given(histories)
def test_bounds_lie_in_the_range_and_hold_each_other(history: list[Drawn]):
    lower, upper = bounds(history[:12], 0.025, 0.025)
    assert -1 <= lower <= 1
    assert -1 <= upper <= 1
