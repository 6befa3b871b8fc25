"""How alike attempts at one task are taken to be, from before a trial and from within it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.likeness import UNSEEN, Attempts, Likeness, left_by, likeness_of

SIZE = 8


def groups(rng: random.Random, means: list[float], size: int = SIZE) -> list[list[float]]:
    return [[float(rng.random() < mean) for _ in range(size)] for mean in means]


def test_attempts_with_nothing_in_common_have_no_correlation():
    found = likeness_of(groups(random.Random(1), [0.5] * 400))
    assert found.correlation == pytest.approx(0.0, abs=0.02)


def test_what_tasks_have_in_common_is_found():
    rng = random.Random(1)
    found = likeness_of(groups(rng, [rng.choice((0.8, 0.3)) for _ in range(400)]))
    assert found.correlation == pytest.approx(0.25, abs=0.05)


def test_that_a_policy_learns_meanwhile_is_nothing_that_tasks_have_in_common():
    found = likeness_of(groups(random.Random(1), [number / 400 for number in range(400)]))
    assert found.correlation == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("few", [[], [[0.0, 1.0]] * 3, [[1.0]] * 50])
def test_of_few_groups_or_single_attempts_nothing_is_known(few: list[list[float]]):
    assert likeness_of(few) == UNSEEN


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), max_size=12))
def test_it_is_a_correlation_whatever_the_values(found: list[list[float]]):
    assert -1 <= likeness_of(found).correlation <= 1


@given(st.floats(-1, 1), st.integers(0, 50))
def test_the_more_is_known_of_a_task_the_less_is_left_in_common(correlation: float, num_known: int):
    left = left_by(Likeness(correlation, 100), num_known, 4.0)
    assert left_by(Likeness(correlation, 100), 0, 4.0).correlation == pytest.approx(max(correlation, 0.0))
    assert 0 <= left.correlation <= 1
    if correlation >= 0.25:
        assert left_by(Likeness(correlation, 100), 50, 4.0).correlation < 0.1 or correlation > 0.8


surprises = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(-1, 1)), max_size=40)


@given(surprises, st.floats(-1, 1), st.floats(0, 1_000), st.integers(1, 16))
def test_an_attempt_counts_in_full_at_most_and_as_its_part_of_one_at_least(
    seen: list[tuple[str, bool, float]], correlation: float, num_pairs: float, size: int
):
    attempts = Attempts()
    for group, is_canary, surprise in seen:
        attempts.take(group, is_canary, surprise)
    assert 1 / size - 1e-9 <= attempts.weight(Likeness(correlation, num_pairs), size) <= 1


def test_a_difference_between_the_arms_is_nothing_that_attempts_have_in_common():
    rng, attempts = random.Random(2), Attempts()
    for number in range(200):
        is_canary = rng.random() < 0.5
        for value in groups(rng, [0.2 if is_canary else 0.8])[0]:
            attempts.take(str(number), is_canary, value - 0.5)
    assert attempts.weight(UNSEEN, SIZE) > 0.9


def test_attempts_that_are_all_the_same_are_found_out_in_the_trial():
    rng, attempts = random.Random(2), Attempts()
    for number in range(200):
        value = float(rng.random() < 0.5) - 0.5
        for _ in range(SIZE):
            attempts.take(str(number), number % 2 == 0, value)
    assert attempts.weight(UNSEEN, SIZE) == pytest.approx(1 / SIZE, abs=0.02)
