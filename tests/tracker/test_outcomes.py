"""What episodes came to: intervals, successes and prices."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import call
from tracker.intervals import interval_of
from tracker.outcomes import Played, outcome_of, spent_on, version_outcomes
from tracker.types import Spent, Usage

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60)


@given(VALUES)
def test_an_interval_holds_its_mean_and_is_as_wide_on_both_sides(values: list[float]) -> None:
    found = interval_of(values)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.high - found.mean == pytest.approx(found.mean - found.low, rel=1e-6, abs=1e-6)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    draws = random.Random(7)
    for size in (2, 5, 40):
        held = 0
        for _ in range(1000):
            found = interval_of([draws.gauss(3, 2) for _ in range(size)])
            assert found is not None
            held += (found.low or 0) <= 3 <= (found.high or 0)
        assert 920 <= held <= 980


def played(name: str, score: float | None, version: int = 0, task: str = "t", tokens: int | None = 10) -> Played:
    spent = None if tokens is None else Spent(engine_ms=5, prompt_tokens=tokens, sampled_tokens=1)
    return Played(episode_id=name, task=task, score=score, spent=spent, versions=(("p", version),))


def test_a_success_costs_what_the_failures_took_too() -> None:
    found = outcome_of([played("a", 1.0), played("b", 0.0), played("c", None), played("d", 0.5)], 0.5)
    assert (found.num_episodes, found.num_successes) == (4, 2)
    assert found.reward is not None
    assert (found.reward.num, found.reward.mean) == (3, 0.5)
    assert found.tokens_per_success == 22
    assert found.spent.engine_ms == 20


def test_without_a_success_there_is_no_price_of_one() -> None:
    assert outcome_of([played("a", 0.0)], 0.5).tokens_per_success is None
    assert outcome_of([played("a", 1.0, tokens=None)], 0.5).tokens_per_success is None
    assert outcome_of([], 0.5).reward is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["add/1", "add/2", "times/1", "else"]))))
def test_every_episode_counts_once_for_its_version_and_once_for_its_family(drawn: list[tuple[int, str]]) -> None:
    episodes = [played(str(number), 1.0, version, task) for number, (version, task) in enumerate(drawn)]
    found = version_outcomes(episodes, ["add", "times"], 0.5)
    everywhere = {each.version: each.outcome.num_episodes for each in found if each.family is None}
    assert sum(everywhere.values()) == len(drawn)
    of_families = [each for each in found if each.family is not None]
    assert sum(each.outcome.num_episodes for each in of_families) == sum(task != "else" for _, task in drawn)
    assert [each.family or "" for each in found] == sorted(each.family or "" for each in found)


def test_what_calls_took_is_tokens_of_policies_and_the_price_of_others() -> None:
    own = call("a", 0, [1, 2, 3], [4, 5], started_ms=10, ended_ms=25)
    usage = Usage(prompt_tokens=7, completion_tokens=8, cost=0.25)
    bought = call("b", 1, [], policy=None, usage=usage, started_ms=0, ended_ms=99)
    found = spent_on([own, bought])
    assert (found.engine_ms, found.prompt_tokens, found.sampled_tokens) == (15, 3, 2)
    assert found.upstream_cost is not None
    assert math.isclose(found.upstream_cost, 0.25)
    assert spent_on([own]).upstream_cost is None
