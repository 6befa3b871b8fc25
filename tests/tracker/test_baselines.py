"""Closed forms of group, leave-one-out and batch baselines, and the laws they share."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.baselines import EPSILON, baseline, deviation, mean
from tracker.errors import SettingsError
from tracker.types import Credit

values_of_groups = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8)
any_finite = st.lists(st.floats(-1e100, 1e100), max_size=6)
kinds = st.sampled_from(["group", "rloo", "batch", "none"])


def advantages(credit: Credit, values: list[float], step: tuple[float, ...] = ()) -> list[float]:
    named = {str(position): value for position, value in enumerate(values)}
    compared = baseline(credit, named, step or tuple(values))
    return [compared.advantage(name, value) for name, value in named.items()]


def test_group_with_std_is_the_distance_from_the_mean_in_deviations_of_ddof_1():
    std = math.sqrt(1 / 3)
    assert advantages(Credit(), [1.0, 0.0, 0.0]) == pytest.approx(
        [(2 / 3) / (std + EPSILON), (-1 / 3) / (std + EPSILON), (-1 / 3) / (std + EPSILON)]
    )


def test_group_without_std_is_the_distance_from_the_mean():
    assert advantages(Credit(std=False), [1.0, 0.0, 0.0]) == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_rloo_is_the_distance_from_the_mean_of_the_others():
    assert advantages(Credit(kind="rloo"), [1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])


def test_batch_divides_by_the_deviation_of_the_step():
    step = (1.0, 0.0, 5.0, 5.0)
    assert advantages(Credit(kind="batch"), [1.0, 0.0], step) == pytest.approx(
        [0.5 / (deviation(step) + EPSILON), -0.5 / (deviation(step) + EPSILON)]
    )


def test_none_passes_rewards_through():
    assert advantages(Credit(kind="none"), [1.0, 1.0, -2.0]) == [1.0, 1.0, -2.0]


@pytest.mark.parametrize("kind", ["group", "rloo", "batch"])
@pytest.mark.parametrize("values", [[0.7], [0.5, 0.5, 0.5], [0.5, 0.5 + 9e-7]])
def test_one_member_or_equal_values_give_no_advantage(kind: str, values: list[float]):
    assert advantages(Credit(kind=kind), values) == [0.0] * len(values)


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(SettingsError, match="gae"):
        baseline(Credit(kind="gae"), {"a": 1.0})


@given(values_of_groups, st.booleans())
def test_advantages_of_a_group_sum_to_nothing(values: list[float], std: bool):
    assert math.fsum(advantages(Credit(std=std), values)) == pytest.approx(0, abs=1e-6)
    assert math.fsum(advantages(Credit(kind="rloo"), values)) == pytest.approx(0, abs=1e-6)


@given(values_of_groups)
def test_rloo_is_the_centred_group_times_n_over_n_minus_1(values: list[float]):
    factor = len(values) / (len(values) - 1)
    centred = advantages(Credit(std=False), values)
    assert advantages(Credit(kind="rloo"), values) == pytest.approx([factor * value for value in centred], abs=1e-6)


@given(values_of_groups, st.floats(-100, 100))
def test_a_reward_shifted_for_all_changes_no_advantage(values: list[float], shift: float):
    moved = [value + shift for value in values]
    spread = max(values) - min(values)
    if spread > 1e-3 or spread == 0:
        assert advantages(Credit(std=False), moved) == pytest.approx(advantages(Credit(std=False), values), abs=1e-9)


@given(st.data(), values_of_groups, kinds)
def test_the_order_of_members_changes_nothing(data: st.DataObject, values: list[float], kind: str):
    order = data.draw(st.permutations(range(len(values))))
    straight = advantages(Credit(kind=kind), values)
    assert advantages(Credit(kind=kind), [values[at] for at in order]) == [straight[at] for at in order]


@given(any_finite, kinds, st.booleans())
def test_finite_rewards_never_give_an_advantage_that_is_not_finite(values: list[float], kind: str, std: bool):
    assert all(map(math.isfinite, advantages(Credit(kind=kind, std=std), values)))


def test_the_mean_is_exact_whatever_the_order():
    assert mean([1e16, 1.0, -1e16]) == mean([1.0, 1e16, -1e16]) == pytest.approx(1 / 3)
    assert deviation([]) == deviation([3.0]) == 0.0
