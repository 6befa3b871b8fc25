"""Returns along the tree of calls: discounted sums on chains, means over leaves at forks, invocations of roles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import RUN, call, chain_of, episodes
from tracker.returns import call_returns, invocations_of, role_of
from tracker.types import Call, CallState, Reason, RunSettings

FORK = [
    call("a", 0, [1], [2]),
    call("b", 1, [1, 2, 3], [4]),
    call("c", 2, [1, 2, 5], [6]),
    call("d", 3, [1, 2, 5, 6, 7], [8]),
]


@given(st.floats(0, 1), st.lists(st.floats(-10, 10), min_size=1, max_size=6))
def test_on_a_chain_the_return_is_the_discounted_sum_of_what_follows(gamma: float, rewards: list[float]):
    calls = chain_of(len(rewards))
    by_id = {made.call_id: reward for made, reward in zip(calls, rewards, strict=True)}
    last = len(rewards) - 1
    for k, item in enumerate(call_returns(calls, RUN, by_id, gamma)):
        assert item.own == pytest.approx(sum(gamma ** (j - k) * rewards[j] for j in range(k, last + 1)), abs=1e-9)
        assert item.discount == pytest.approx(gamma ** (last - k))
        assert item.depth == k


def test_at_a_fork_a_return_is_the_mean_over_the_leaves_below():
    returns = {item.call_id: item for item in call_returns(FORK, RUN, {"a": 1.0, "b": 4.0, "d": 8.0}, 0.5)}
    assert returns["a"].own == pytest.approx(((1 + 0.5 * 4) + (1 + 0.25 * 8)) / 2)
    assert returns["c"].own == pytest.approx(0.5 * 8)
    assert returns["a"].discount == pytest.approx((0.5 + 0.25) / 2)


def test_each_leaf_counts_the_same_however_deep_it_hangs():
    calls = [*FORK, call("e", 4, [1, 2, 5, 6, 9], [8])]
    returns = {item.call_id: item for item in call_returns(calls, RUN, {"b": 3.0, "d": 6.0}, 1.0)}
    assert returns["a"].own == pytest.approx((3.0 + 6.0 + 0.0) / 3)


def test_a_reward_of_a_call_that_cannot_be_trained_still_reaches_the_calls_above_it():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4], reason=Reason.IMAGES)]
    first, second = call_returns(calls, RUN, {"b": 1.0}, 1.0)
    assert (first.own, first.trained) == (1.0, True)
    assert (second.own, second.trained) == (1.0, False)


def test_an_attempt_that_came_to_nothing_is_not_in_the_tree():
    calls = [
        call("a", 0, [1], [2]),
        call("b", 1, [1, 2, 3], [4], state=CallState.ABORTED),
        call("c", 2, [1, 2, 3], [4]),
    ]
    assert [item.call_id for item in call_returns(calls, RUN, {}, 1.0)] == ["a", "c"]


def test_an_invocation_is_the_part_of_the_tree_that_one_role_spans():
    calls = [
        call("m1", 0, [1], [2]),
        call("m2", 1, [1, 2, 3], [4]),
        call("s1", 2, [7], [8], role="search"),
        call("s2", 3, [7, 8, 9], [5], role="search"),
        call("t1", 4, [6], [8], role="search"),
    ]
    rewards = {"s1": 1.0, "s2": 2.0, "t1": 5.0}
    made = invocations_of(call_returns(calls, RUN, rewards, 1.0), rewards)
    assert {(one.role, one.call_ids, one.own, one.weight) for one in made} == {
        ("p", ("m1", "m2"), 0.0, 1.0),
        ("search", ("s1", "s2"), 3.0, 0.5),
        ("search", ("t1",), 5.0, 0.5),
    }


def test_a_change_of_role_along_a_branch_starts_an_invocation():
    calls = [call("m", 0, [1], [2]), call("j", 1, [1, 2, 3], [4], role="judge")]
    assert [one.root for one in invocations_of(call_returns(calls, RUN, {}, 1.0), {})] == ["m", "j"]


def test_a_role_that_nobody_named_is_the_policy():
    assert role_of(call("a", 0, [1], [2])) == "p"
    assert role_of(call("a", 0, [1], [2], role="judge")) == "judge"


@given(episodes(), st.floats(0, 1))
def test_every_trained_call_has_one_return_and_is_in_one_invocation(calls: list[Call], gamma: float):
    returns = call_returns(calls, RUN, {}, gamma)
    trained = [item.call_id for item in returns if item.trained]
    grouped = [call_id for one in invocations_of(returns, {}) for call_id in one.call_ids]
    assert sorted(trained) == sorted(grouped) == sorted(set(trained))


def test_a_call_of_a_dropped_role_is_not_in_the_tree_and_one_of_a_context_role_is():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4], role="judge")]
    dropped = call_returns(calls, RunSettings(run="r", roles={"judge": "drop"}), {"b": 1.0}, 1.0)
    kept = call_returns(calls, RunSettings(run="r", roles={"judge": "context"}), {"b": 1.0}, 1.0)
    assert [(item.call_id, item.own) for item in dropped] == [("a", 0.0)]
    assert [(item.call_id, item.own, item.trained) for item in kept] == [("a", 1.0, True), ("b", 1.0, False)]
