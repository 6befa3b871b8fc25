"""Families of tasks: names, and weights that are kept group by group however steps are cut."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.errors import BadRequest
from tracker.families import check_task, family_of, next_families
from tracker.types import RunSettings

names = st.sampled_from("abcdef")
mixes = st.dictionaries(names, st.one_of(st.integers(1, 20), st.floats(0.01, 50)), min_size=1)


def shares(weights: dict[str, float]) -> dict[str, Fraction]:
    total = sum(map(Fraction, weights.values()))
    return {family: Fraction(weight) / total for family, weight in weights.items()}


@pytest.mark.parametrize("task", ["maths", "mathsy/1", "Maths/1", " maths/1", "", "auto:1"])
def test_a_task_of_no_family_is_refused_and_told_how_to_begin(task: str):
    run = RunSettings(run="mix", families={"maths": 1, "code": 2})
    with pytest.raises(BadRequest, match="'maths/', 'code/'") as refused:
        check_task(task, run)
    assert refused.value.param == "task"


def test_any_task_will_do_where_there_are_no_families():
    check_task("anything", RunSettings(run="plain"))
    assert family_of("anything", {}) is None


def test_the_longest_family_that_fits_is_the_one():
    assert family_of("a/b/c", ["a", "a/b", "b"]) == "a/b"


@given(mixes, st.integers(1, 120))
def test_each_family_has_its_share_to_within_one_group_at_any_time(weights: dict[str, float], num_groups: int):
    drawn = next_families(weights, {}, num_groups)
    assert sum(drawn.values()) == num_groups
    for family, share in shares(weights).items():
        assert abs(drawn[family] - share * num_groups) < 1


@given(mixes, st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_how_groups_are_cut_into_steps_changes_nothing(weights: dict[str, float], steps: list[int]):
    taken: Counter[str] = Counter()
    for size in steps:
        taken.update(next_families(weights, taken, size))
    assert dict(taken) == next_families(weights, {}, sum(steps))


@given(mixes, st.dictionaries(names, st.integers(0, 30)))
def test_from_any_counts_on_no_family_starves_and_debts_are_paid(weights: dict[str, float], taken: dict[str, int]):
    known = {family: taken.get(family, 0) for family in weights}
    # One that had too many waits until its share has caught up, and by then the others have theirs.
    enough = max(int((known[family] + 1) / share) + 1 for family, share in shares(weights).items())
    drawn = next_families(weights, taken, enough)
    for family, share in shares(weights).items():
        assert abs(known[family] + drawn[family] - share * (sum(known.values()) + enough)) < 2
