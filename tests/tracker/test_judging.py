"""What trials come to: what the rules promise, by simulation, and each guard."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.releases.worlds import GROUP, Bernoulli, Graded, Tasks, World, played
from tracker.judging import first_outcome, judge
from tracker.measures import Measures
from tracker.trials import Facts, Outcome, Rules, Seen

RULES = Rules()
NUM_RUNS = 200
WORLDS = (Bernoulli(0.5), Bernoulli(0.5, num_before=0), Graded(0.5))
"""Rewards that scatter most, with and without anything known of the run, and graded ones."""


@dataclass(frozen=True)
class Ended:
    outcome: Outcome
    num_episodes: int
    """Of both arms."""
    num_canary: int
    """Those that got the version on trial."""


def trials(world: World, difference: float, size: int = 1) -> list[Ended]:
    """What becomes of so many versions whose rewards differ by this, looked at after every episode."""
    rng = random.Random(f"{world} {difference}")
    rules = Rules(undecided="hold")
    found: list[Ended] = []
    for _ in range(NUM_RUNS):
        stream = played(world, difference, 0.5, rng, size)
        history = [next(stream) for _ in range(rules.max_episodes)]
        outcome, number = first_outcome(history, rules)
        found.append(Ended(outcome, number, sum(one.is_canary for one in history[:number])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_version_that_is_0_3_worse_is_rolled_back_within_60_episodes_of_it(world: World):
    found = trials(world, -0.3)
    assert {one.outcome for one in found} <= {Outcome.ROLL_BACK, Outcome.GOES_ON}
    rolled_back = [one for one in found if one.outcome is Outcome.ROLL_BACK]
    assert len(rolled_back) >= 0.99 * NUM_RUNS
    assert sum(one.num_canary <= 60 for one in rolled_back) >= 0.8 * NUM_RUNS
    assert median(one.num_canary for one in rolled_back) <= 35
    assert median(one.num_episodes for one in rolled_back) <= 70


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_version_that_is_0_3_better_is_promoted_within_150_episodes_of_it(world: World):
    found = [one for one in trials(world, 0.3) if one.outcome is Outcome.PROMOTE]
    assert sum(one.num_canary <= 150 for one in found) >= 0.95 * NUM_RUNS
    assert median(one.num_episodes for one in found) <= 150


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_fewer_than_one_in_twenty_equal_versions_are_rolled_back_or_promoted_for_their_reward(world: World):
    claims = [one for one in trials(world, 0.0) if one.outcome is not Outcome.GOES_ON]
    assert len(claims) < 0.05 * NUM_RUNS


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [Tasks(0.8, 0.3), Tasks(0.95, 0.05), Tasks(0.9, 0.5), Tasks(0.8, 0.3, 8)],
    ids=str,
)
def test_attempts_at_one_task_that_are_alike_raise_no_more_false_alarms(world: World):
    claims = [one for one in trials(world, 0.0, GROUP) if one.outcome is not Outcome.GOES_ON]
    assert len(claims) < 0.05 * NUM_RUNS


@pytest.mark.slow
@pytest.mark.parametrize("world", [Bernoulli(0.5), Graded(0.5)], ids=str)
def test_attempts_at_one_task_that_have_nothing_in_common_count_about_in_full(world: World):
    rolled_back = sorted(one.num_episodes for one in trials(world, -0.3, GROUP))
    promoted = sorted(one.num_episodes for one in trials(world, 0.3, GROUP))
    assert median(rolled_back) <= 75
    assert median(promoted) <= 150


@pytest.mark.slow
def test_graded_rewards_decide_within_60_episodes_of_both_arms():
    numbers = sorted(one.num_episodes for one in trials(Graded(0.5), -0.3))
    assert numbers[int(0.9 * NUM_RUNS)] <= 60


seen = st.builds(
    Seen,
    is_canary=st.booleans(),
    share=st.just(0.5),
    reward=st.none() | st.floats(-1, 2),
    measures=st.just(Measures(num_calls=1, num_choices=1, num_tokens=9, call_ms=5)),
    group_id=st.integers(0, 9).map(str),
    group_size=st.just(3),
)


@given(st.lists(seen, max_size=60), st.sampled_from(["episode", "group"]))
def test_it_does_not_matter_how_often_somebody_looks(history: list[Seen], unit: str):
    rules = Rules(min_episodes=4, max_episodes=40, unit=unit)
    first = next(
        (
            (verdict.outcome, verdict.why)
            for number in range(len(history) + 1)
            if (verdict := judge(history[:number], rules)).outcome is not Outcome.GOES_ON
        ),
        (Outcome.GOES_ON, ""),
    )
    last = judge(history, rules)
    assert (last.outcome, last.why) == first


def episodes(change: Callable[[Measures], Measures], number: int = 200) -> Iterator[Seen]:
    """Equal rewards; the canary's answers are changed."""
    good = Measures(num_calls=2, num_choices=2, num_tokens=100, nats=80.0, call_ms=400)
    rng = random.Random(4)
    for _ in range(number):
        is_canary = rng.random() < 0.5
        yield Seen(is_canary=is_canary, share=0.5, reward=0.5, measures=change(good) if is_canary else good)


def with_(**fields: float) -> Callable[[Measures], Measures]:
    return lambda measures: msgspec.structs.replace(measures, **fields)


@pytest.mark.parametrize(
    ("change", "rules", "facts", "why"),
    [
        (with_(num_unparsed=2), RULES, Facts(), "parse_errors is 1 against 0, over the limit of 0.1"),
        (with_(num_truncated=2), RULES, Facts(), "truncation is 1 against 0, over the limit of 0.2"),
        (with_(call_ms=4_000), RULES, Facts(), "latency is 2e+03 against 200, over the limit of 3"),
        (with_(nats=1.0), Rules(min_entropy=0.1), Facts(), "entropy is 0.01 against nothing, under the limit of 0.1"),
        (with_(), Rules(max_kl=0.2), Facts(trained_kl=0.3), "trained_kl is 0.3 against nothing, over the limit of 0.2"),
        (with_(), Rules(max_kl=0.2), Facts(shadow_kl=0.3), "shadow_kl is 0.3 against nothing, over the limit of 0.2"),
        (with_(), Rules(min_reward=0.9), Facts(), "reward is 0.5 against 0.5, under the limit of 0.9"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_guard_rolls_back_whatever_the_reward_says_and_says_why(
    change: Callable[[Measures], Measures], rules: Rules, facts: Facts, why: str
):
    verdict = judge(list(episodes(change)), rules, facts)
    assert verdict.outcome is Outcome.ROLL_BACK
    assert verdict.why == why
    assert next(guard for guard in verdict.guards if guard.name == why.split()[0]).tripped


def test_guards_let_pass_what_keeps_their_limits():
    everything = Rules(min_entropy=0.1, max_kl=0.2, min_reward=0.2, undecided="hold")
    verdict = judge(list(episodes(with_())), everything, Facts(trained_kl=0.1, shadow_kl=0.1))
    assert verdict.outcome is Outcome.GOES_ON
    assert not any(guard.tripped for guard in verdict.guards)


@pytest.mark.parametrize(
    ("undecided", "outcome"),
    [("promote", Outcome.PROMOTE), ("roll_back", Outcome.ROLL_BACK), ("hold", Outcome.GOES_ON)],
)
def test_what_nothing_was_shown_of_is_what_the_rules_say_and_no_claim(undecided: str, outcome: Outcome):
    verdict = judge(list(episodes(with_())), Rules(max_episodes=50, undecided=undecided))
    assert verdict.outcome is outcome
    if outcome is not Outcome.GOES_ON:
        assert "nothing was shown in 50 episodes" in verdict.why


def test_rewards_outside_of_the_range_count_as_its_ends_and_are_counted():
    history = [
        Seen(is_canary=place % 2 == 0, share=0.5, reward=reward) for place, reward in enumerate((-5.0, 9.0, 3.0))
    ]
    verdict = judge(history, Rules(reward_low=-2, reward_high=4))
    assert verdict.num_clipped == 2
    assert (verdict.mean_canary, verdict.mean_stable) == (0.5, 4.0)
