"""What is trained is decided once: staleness, frozen credit, and receipts that refuse what was not sampled."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from tests.tracker.building import call
from tracker.credit import EpisodeOutcome
from tracker.errors import CorruptRecord
from tracker.types import Call, Credit, EpisodeStatus, Group, RunSettings, SkipReason, Version, VersionState
from trainer.steps import FamilyShare
from trainer.taking import Course, LoadedGroup, call_reward_mean, credited_rows, family_shares, reward_mean, verdicts

RUN = RunSettings(run="r", staleness=1)
COURSE = Course(active=5, served=(1, 2, 4, 5))


def turn(episode: str, number: int, version: int) -> Call:
    prompt = (1, 2) if number == 0 else (1, 2, 7, 99, 98)
    return call(f"{episode}-{number}", number, prompt, (7, 99), episode_id=episode, version=version)


def group(*episodes: tuple[float | None, tuple[int, ...]]) -> LoadedGroup:
    """Episodes by reward and by the versions of their turns."""
    outcomes = tuple(
        EpisodeOutcome(
            episode_id=f"e{place}",
            status=EpisodeStatus.OK,
            reward=reward,
            calls=tuple(turn(f"e{place}", number, version) for number, version in enumerate(versions)),
            call_rewards={},
        )
        for place, (reward, versions) in enumerate(episodes)
    )
    found = Group(group_id="g", tenant="default", run="r", task="t", round=0, size=len(outcomes))
    return LoadedGroup(found, outcomes, len(outcomes))


def trained(loaded: LoadedGroup, run: RunSettings = RUN) -> tuple[SkipReason | None, set[str]]:
    (verdict,) = verdicts([loaded], run, "p", COURSE)
    return verdict.skip, {item.call_id for item in verdict.credit}


def test_a_lag_counts_the_versions_that_were_served_not_the_numbers_between():
    versions = [
        Version(policy="p", version=number, state=state)
        for number, state in ((1, VersionState.RETIRED), (2, VersionState.FAILED), (3, VersionState.ACTIVE))
    ]
    course = Course.of(3, versions)
    assert [course.lag(number) for number in (0, 1, 2, 3)] == [2, 1, 1, 0]


def test_calls_within_the_bound_are_all_trained():
    assert trained(group((1.0, (5,)), (0.0, (4,)))) == (None, {"e0-0", "e1-0"})


def test_a_group_with_an_episode_that_is_all_too_old_expires():
    assert trained(group((1.0, (5,)), (0.0, (2,)))) == (SkipReason.EXPIRED, set())


def test_an_episode_that_moved_on_loses_its_old_calls_only():
    run = msgspec.structs.replace(RUN, pin="call")
    assert trained(group((1.0, (2, 5)), (0.0, (5, 5))), run) == (None, {"e0-1", "e1-0", "e1-1"})


def test_stale_groups_are_trained_where_the_run_says_so():
    run = msgspec.structs.replace(RUN, on_stale="train")
    assert trained(group((1.0, (5,)), (0.0, (1,))), run) == (None, {"e0-0", "e1-0"})


def test_equal_rewards_teach_nothing():
    assert trained(group((1.0, (5,)), (1.0, (5,)))) == (SkipReason.NO_VARIANCE, set())


def test_a_group_without_calls_of_the_policy_has_no_rows():
    (verdict,) = verdicts([group((1.0, (5,)), (0.0, (5,)))], RUN, "another", COURSE)
    assert verdict.skip is SkipReason.NO_IDS


def test_a_share_that_teaches_its_policy_nothing_is_skipped_and_the_other_policy_s_is_trained():
    def pair(number: int) -> EpisodeOutcome:
        episode = f"e{number}"
        solver, checker = (
            call(f"{episode}-{name}", at, (at,), (7, 99), episode_id=episode, policy=name, version=5)
            for at, name in enumerate(("solver", "checker"))
        )
        rewards = {solver.call_id: float(number), checker.call_id: 1.0}
        return EpisodeOutcome(episode, EpisodeStatus.OK, 0.0, (solver, checker), rewards)

    found = Group(group_id="g", tenant="default", run="r", task="t", round=0, size=2)
    loaded = LoadedGroup(found, (pair(0), pair(1)), 6)
    run = msgspec.structs.replace(RUN, credit=Credit(episode=0.0))
    shares = {name: verdicts([loaded], run, name, COURSE)[0] for name in ("solver", "checker")}
    assert (call_reward_mean([loaded], "solver"), call_reward_mean([loaded], "checker")) == (0.5, 1.0)
    assert shares["checker"].skip is SkipReason.NO_VARIANCE
    assert shares["solver"].skip is None
    assert {item.call_id for item in shares["solver"].credit} == {"e0-solver", "e1-solver"}


def test_a_step_tells_what_each_family_has_in_it():
    def of(task: str, *rewards: float | None) -> LoadedGroup:
        loaded = group(*((reward, (5,)) for reward in rewards))
        return dataclasses.replace(loaded, group=msgspec.structs.replace(loaded.group, task=task))

    run = msgspec.structs.replace(RUN, families={"maths": 2, "code": 1, "games": 1})
    groups = [of("maths/1", 1.0, 0.0), of("code/1", 4.0, None), of("maths/2", 1.0, 1.0)]
    assert family_shares(groups, run) == {
        "maths": FamilyShare(2, 0.75),
        "code": FamilyShare(1, 4.0),
        "games": FamilyShare(0, None),
    }
    assert family_shares(groups, RUN) == {}
    assert reward_mean(groups) == 1.4
    assert call_reward_mean(groups, "p") is None


def test_only_calls_with_frozen_credit_become_rows():
    loaded = group((1.0, (5, 5)), (0.0, (5,)))
    (verdict,) = verdicts([loaded], RUN, "p", COURSE)
    calls = {outcome.episode_id: outcome.calls for outcome in loaded.outcomes}
    rows, advantages = credited_rows(calls, RUN, "p", verdict.credit[:2])
    assert [row.call_id for row in rows] == [item.call_id for item in verdict.credit[:2]]
    assert list(advantages) == [item.advantage for item in verdict.credit[:2]]


def test_a_batch_whose_calls_are_gone_is_refused():
    loaded = group((1.0, (5,)), (0.0, (5,)))
    (verdict,) = verdicts([loaded], RUN, "p", COURSE)
    calls = {outcome.episode_id: outcome.calls for outcome in loaded.outcomes} | {"e1": ()}
    with pytest.raises(CorruptRecord, match="e1-0"):
        credited_rows(calls, RUN, "p", verdict.credit)


def test_a_group_that_a_version_played_in_which_was_rolled_back_is_withdrawn():
    course = Course(active=5, served=(1, 2, 4, 5), withdrawn=frozenset({6}))
    run = msgspec.structs.replace(RUN, pin="call", on_stale="train")
    (whole,) = verdicts([group((1.0, (6,)), (0.0, (6,)))], run, "p", course)
    assert (whole.skip, whole.credit) == (SkipReason.WITHDRAWN, ())
    (part,) = verdicts([group((1.0, (6, 5)), (0.0, (5, 5)))], run, "p", course)
    assert part.skip is None
    assert {item.call_id for item in part.credit} == {"e0-1", "e1-0", "e1-1"}


def test_versions_on_trial_and_those_that_wait_count_as_published():
    states = (VersionState.ACTIVE, VersionState.ACTIVE, VersionState.LOADING, VersionState.FAILED)
    course = Course.of(1, [Version(policy="p", version=number, state=state) for number, state in enumerate(states, 1)])
    assert [course.lag(number) for number in (1, 2, 3)] == [2, 1, 0]
    gone = Course.of(1, [Version(policy="p", version=2, state=VersionState.WITHDRAWN)])
    assert (gone.active, gone.withdrawn) == (1, {2})
