"""Credit by closed form: effective rewards, group standing, call rewards, roles, and cases C29 and C34 of the field."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import PLAIN, RUN, call, chain_of, episodes
from tracker.baselines import EPSILON, deviation
from tracker.credit import (
    EpisodeOutcome,
    GroupCredit,
    batch_credit,
    call_rewards,
    effective_reward,
    episode_reward,
    group_credit,
    member_standing,
)
from tracker.types import Call, Credit, EpisodeStatus, Member, Reason, Reward, RunSettings, SkipReason

scores = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


def event(seq: int, value: float | None, name: str = "reward", call_id: str | None = None) -> Reward:
    return Reward(reward_id=str(seq), seq=seq, episode_id="e", call_id=call_id, name=name, value=value)


def outcome(
    name: str,
    reward: float | None,
    calls: tuple[Call, ...] | int = 1,
    status: EpisodeStatus = EpisodeStatus.OK,
    rewards: dict[str, float] | None = None,
) -> EpisodeOutcome:
    made = chain_of(calls, name) if isinstance(calls, int) else calls
    return EpisodeOutcome(episode_id=name, status=status, reward=reward, calls=made, call_rewards=rewards or {})


def separate(name: str, number: int) -> tuple[Call, ...]:
    """Calls that give one row each."""
    return tuple(call(f"{name}-{at}", at, [at], [5], episode_id=name) for at in range(number))


def advantages(credit: GroupCredit) -> dict[str, float]:
    return {item.call_id: item.advantage for item in credit.calls}


def run_with(**fields: object) -> RunSettings:
    return RunSettings(run="r", credit=msgspec.convert({"std": False} | fields, Credit))


# effective rewards


def test_the_last_value_of_each_name_counts_summed_with_the_weights():
    events = [event(3, 0.5), event(1, 1.0), event(2, 4.0, "style")]
    assert effective_reward(events, {"style": 0.25}) == 1.5


def test_nothing_scored_is_none_and_never_zero():
    assert effective_reward([], {}) is None
    assert effective_reward([event(1, None)], {}) is None
    assert effective_reward([event(1, 1.0), event(2, None)], {}) is None


def test_a_name_taken_back_leaves_the_others():
    assert effective_reward([event(1, 1.0), event(2, 3.0, "style"), event(3, None, "style")], {}) == 1.0


def test_rewards_of_calls_and_of_the_episode_are_told_apart():
    events = [event(1, 1.0), event(2, 0.25, call_id="a"), event(3, 0.5, call_id="a"), event(4, None, call_id="b")]
    assert episode_reward(events, {}) == 1.0
    assert call_rewards(events, {}) == {"a": 0.5}


@given(st.data(), st.lists(st.tuples(st.sampled_from("xyz"), scores), max_size=8))
def test_the_effective_reward_does_not_depend_on_the_order_events_are_read_in(
    data: st.DataObject, given_events: list[tuple[str, float | None]]
):
    events = [event(seq, value, name) for seq, (name, value) in enumerate(given_events)]
    value = effective_reward(events, {"x": 2.0})
    assert effective_reward(data.draw(st.permutations(events)), {"x": 2.0}) == value
    assert value is None or math.isfinite(value)


# standing in a group


def test_c29_an_unscored_episode_is_no_member_and_no_zero():
    credit = group_credit([outcome("e1", 1.0), outcome("e2", 0.0), outcome("e3", None)], PLAIN)
    assert [(m.advantage, m.member, m.why) for m in credit.members] == [
        (0.5, True, ""),
        (-0.5, True, ""),
        (None, False, "unscored"),
    ]
    assert advantages(credit) == {"e1-0": 0.5, "e2-0": -0.5}
    assert all(math.isfinite(item.advantage) for item in credit.calls)


def test_c34_an_episode_counts_once_however_many_rows_it_gives():
    group = [outcome("e1", 1.0, separate("e1", 3)), outcome("e2", 0.0), outcome("e3", 0.0)]
    assert advantages(group_credit(group, PLAIN)) == pytest.approx(
        {"e1-0": 2 / 3, "e1-1": 2 / 3, "e1-2": 2 / 3, "e2-0": -1 / 3, "e3-0": -1 / 3}
    )
    scaled = advantages(group_credit(group, RUN))
    assert scaled == pytest.approx(
        {"e1-0": 1.1547, "e1-1": 1.1547, "e1-2": 1.1547, "e2-0": -0.5774, "e3-0": -0.5774}, abs=3e-4
    )
    assert scaled["e1-0"] == pytest.approx((2 / 3) / (math.sqrt(1 / 3) + EPSILON))


@pytest.mark.parametrize("status", [EpisodeStatus.INFRA_ERROR, EpisodeStatus.CANCELLED])
def test_an_episode_that_was_not_the_agent_s_to_lose_is_no_member(status: EpisodeStatus):
    credit = group_credit([outcome("a", 1.0), outcome("b", 0.0), outcome("c", -9.0, status=status)], PLAIN)
    assert credit.members[2].why == status.value
    assert advantages(credit) == {"a-0": 0.5, "b-0": -0.5}


def test_a_failed_episode_with_a_reward_is_a_member():
    credit = group_credit([outcome("a", 1.0), outcome("b", 0.0, status=EpisodeStatus.FAILED)], PLAIN)
    assert advantages(credit) == {"a-0": 0.5, "b-0": -0.5}


def test_the_baseline_counts_members_whose_calls_are_all_excluded():
    lost = (call("b-0", 0, [1], [2], episode_id="b", reason=Reason.IMAGES),)
    credit = group_credit([outcome("a", 1.0), outcome("b", 0.0, lost)], PLAIN)
    assert advantages(credit) == {"a-0": 0.5}
    assert credit.members[1].advantage == -0.5


@pytest.mark.parametrize(
    ("group", "skip"),
    [
        ([outcome("a", 1.0), outcome("b", 1.0)], SkipReason.NO_VARIANCE),
        ([outcome("a", 1.0), outcome("b", 1.0 + 5e-7)], SkipReason.NO_VARIANCE),
        ([outcome("a", 1.0), outcome("b", None)], SkipReason.ONE_MEMBER),
        ([outcome("a", None), outcome("b", None)], SkipReason.TOO_FEW_SCORED),
        ([], SkipReason.TOO_FEW_SCORED),
        ([outcome("a", 1.0, 0), outcome("b", 0.0, 0)], SkipReason.NO_IDS),
    ],
)
def test_a_group_with_nothing_to_learn_is_skipped_with_its_reason(group: list[EpisodeOutcome], skip: SkipReason):
    assert group_credit(group, RUN) == GroupCredit(members=group_credit(group, RUN).members, calls=(), skip=skip)
    assert (
        all(member.advantage in (0.0, None) for member in group_credit(group, RUN).members) or skip is SkipReason.NO_IDS
    )


def test_members_stand_as_their_group_is_credited():
    members = [Member(episode_id="a", reward=1.0), Member(episode_id="b", reward=0.0), Member(episode_id="c")]
    standing = member_standing(members, Credit(std=False))
    assert [(m.advantage, m.member, m.why) for m in standing] == [
        (0.5, True, ""),
        (-0.5, True, ""),
        (None, False, "unscored"),
    ]


def test_without_a_baseline_equal_rewards_still_teach():
    credit = group_credit([outcome("a", 1.0), outcome("b", 1.0)], run_with(kind="none"))
    assert (advantages(credit), credit.skip) == ({"a-0": 1.0, "b-0": 1.0}, None)


def test_batch_takes_the_deviation_over_the_step_and_the_mean_over_the_group():
    groups = [[outcome("a", 1.0), outcome("b", 0.0)], [outcome("c", 5.0), outcome("d", 5.0)]]
    first, second = batch_credit(groups, run_with(kind="batch"))
    scale = deviation([1.0, 0.0, 5.0, 5.0]) + EPSILON
    assert advantages(first) == pytest.approx({"a-0": 0.5 / scale, "b-0": -0.5 / scale})
    assert second.skip is SkipReason.NO_VARIANCE


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["group", "rloo", "none"]))
def test_cutting_an_episode_into_more_calls_changes_no_advantage(first: int, second: int, kind: str):
    credit = group_credit([outcome("a", 1.0, separate("a", first)), outcome("b", 0.0, second)], run_with(kind=kind))
    whole = group_credit([outcome("a", 1.0), outcome("b", 0.0)], run_with(kind=kind))
    assert {item.advantage for item in credit.calls} == {item.advantage for item in whole.calls}
    assert len(credit.calls) == first + second


# answers that were cut


def cut_group(rule: str) -> tuple[RunSettings, list[EpisodeOutcome]]:
    """Rewards 1, 0 and 0; the last episode had its second of two answers cut."""
    run = msgspec.structs.replace(run_with(), truncated=rule)
    first, second = separate("c", 2)
    long = msgspec.structs.replace(second.choices[0], truncated=True)
    return run, [
        outcome("a", 1.0),
        outcome("b", 0.0),
        outcome("c", 0.0, (first, msgspec.structs.replace(second, choices=(long,)))),
    ]


def test_a_cut_answer_is_trained_like_any_other_unless_the_run_says_otherwise():
    run, group = cut_group("train")
    assert RunSettings(run="r").truncated == "train"
    assert advantages(group_credit(group, run)) == pytest.approx(
        {"a-0": 2 / 3, "b-0": -1 / 3, "c-0": -1 / 3, "c-1": -1 / 3}
    )


def test_a_masked_answer_gets_no_advantage_and_its_episode_stays_in_the_baseline():
    run, group = cut_group("mask")
    credit = group_credit(group, run)
    assert advantages(credit) == pytest.approx({"a-0": 2 / 3, "b-0": -1 / 3, "c-0": -1 / 3})
    assert credit.members[2].member
    assert credit.members[2].advantage == pytest.approx(-1 / 3)


def test_a_masked_answer_s_reward_still_reaches_the_calls_above_it():
    run = msgspec.structs.replace(run_with(episode=0.0), truncated="mask")
    first, second = chain_of(2, "a")
    long = msgspec.structs.replace(second.choices[0], truncated=True)
    calls = (first, msgspec.structs.replace(second, choices=(long,)))
    group = [outcome("a", 0.0, calls, rewards={"a-1": 2.0}), outcome("b", 0.0)]
    assert advantages(group_credit(group, run)) == pytest.approx({"a-0": 1.0, "b-0": -1.0})


def test_a_dropped_episode_is_no_member():
    run, group = cut_group("drop")
    credit = group_credit(group, run)
    assert advantages(credit) == {"a-0": 0.5, "b-0": -0.5}
    assert [(m.member, m.why, m.advantage) for m in credit.members[2:]] == [(False, "truncated", None)]


@pytest.mark.parametrize(
    ("rule", "skip"), [("train", None), ("mask", SkipReason.NO_IDS), ("drop", SkipReason.TOO_FEW_SCORED)]
)
def test_a_group_of_which_all_answers_were_cut_is_skipped_with_its_reason(rule: str, skip: SkipReason | None):
    run = msgspec.structs.replace(run_with(), truncated=rule)
    cut = {
        name: tuple(
            msgspec.structs.replace(one, choices=(msgspec.structs.replace(one.choices[0], truncated=True),))
            for one in separate(name, 2)
        )
        for name in "ab"
    }
    assert group_credit([outcome("a", 1.0, cut["a"]), outcome("b", 0.0, cut["b"])], run).skip is skip


# call rewards


def test_the_episode_s_advantage_is_discounted_by_the_calls_still_to_come():
    group = [outcome("a", 1.0, 3), outcome("b", 0.0, 1)]
    assert advantages(group_credit(group, run_with(gamma=0.5))) == pytest.approx(
        {"a-0": 0.125, "a-1": 0.25, "a-2": 0.5, "b-0": -0.5}
    )


def test_call_rewards_are_compared_at_their_depth_where_two_episodes_reach_it():
    group = [
        outcome("a", 0.0, 2, rewards={"a-0": 1.0, "a-1": 2.0}),
        outcome("b", 0.0, 2, rewards={"b-0": 0.0, "b-1": 1.0}),
    ]
    credit = group_credit(group, run_with())
    assert advantages(credit) == pytest.approx({"a-0": 1.0, "a-1": 0.5, "b-0": -1.0, "b-1": -0.5})
    assert credit.skip is None


def test_a_depth_that_one_episode_reaches_is_compared_with_whole_episodes():
    group = [outcome("a", 0.0, 2, rewards={"a-1": 2.0}), outcome("b", 0.0, 1, rewards={"b-0": 1.0})]
    whole = ((2.0 + 2.0) / 2 + 1.0) / 2
    assert advantages(group_credit(group, run_with())) == pytest.approx({"a-0": 0.5, "a-1": 2.0 - whole, "b-0": -0.5})


def test_call_and_episode_advantages_are_summed_with_the_run_s_weights():
    group = [outcome("a", 1.0, rewards={"a-0": 4.0}), outcome("b", 0.0)]
    assert advantages(group_credit(group, run_with(own=0.5, episode=3.0))) == pytest.approx(
        {"a-0": 3.0 * 0.5 + 0.5 * 2.0, "b-0": -(3.0 * 0.5 + 0.5 * 2.0)}
    )


def test_call_rewards_are_compared_by_every_kind_as_episode_rewards_are():
    """Own returns 3, 0 and 0 of one call each; the episodes' rewards are equal."""
    group = [outcome("a", 0.0, rewards={"a-0": 3.0}), outcome("b", 0.0), outcome("c", 0.0)]
    found = {
        kind: advantages(group_credit(group, run_with(kind=kind, std=std)))
        for kind, std in (("group", True), ("rloo", False), ("batch", False), ("none", False))
    }
    std = deviation([3.0, 0.0, 0.0]) + EPSILON
    assert std == pytest.approx(math.sqrt(3.0) + EPSILON)
    assert found["group"] == found["batch"] == pytest.approx({"a-0": 2 / std, "b-0": -1 / std, "c-0": -1 / std})
    assert found["rloo"] == pytest.approx({"a-0": 3.0, "b-0": -1.5, "c-0": -1.5})
    assert found["none"] == pytest.approx({"a-0": 3.0, "b-0": 0.0, "c-0": 0.0})


def test_at_a_fork_the_episode_s_advantage_is_discounted_as_the_mean_over_the_leaves_below():
    fork = (
        call("a-0", 0, [1], [2], episode_id="a"),
        call("a-1", 1, [1, 2, 3], [4], episode_id="a"),
        call("a-2", 2, [1, 2, 5], [6], episode_id="a"),
        call("a-3", 3, [1, 2, 5, 6, 7], [8], episode_id="a"),
    )
    group = [outcome("a", 1.0, fork), outcome("b", 0.0)]
    assert advantages(group_credit(group, run_with(gamma=0.5))) == pytest.approx(
        {"a-0": 0.5 * (0.5 + 0.25) / 2, "a-1": 0.5, "a-2": 0.25, "a-3": 0.5, "b-0": -0.5}
    )


def test_call_rewards_that_differ_are_variance_though_the_episodes_are_equal():
    group = [outcome("a", 1.0, rewards={"a-0": 1.0}), outcome("b", 1.0)]
    assert group_credit(group, run_with()).skip is None
    assert group_credit(group, run_with(own=0.0)).skip is SkipReason.NO_VARIANCE


def test_call_rewards_of_an_unscored_episode_bend_no_baseline():
    group = [outcome("a", 1.0), outcome("b", 0.0), outcome("c", None, rewards={"c-0": 100.0})]
    assert advantages(group_credit(group, run_with())) == {"a-0": 0.5, "b-0": -0.5}


# roles


def team(name: str, reward: float, sub_rewards: list[float]) -> EpisodeOutcome:
    main = call(f"{name}-main", 0, [1], [2], episode_id=name)
    subs = tuple(
        call(f"{name}-sub{at}", at + 1, [7, at], [8], episode_id=name, role="sub") for at in range(len(sub_rewards))
    )
    rewards = {sub.call_id: value for sub, value in zip(subs, sub_rewards, strict=True)}
    return outcome(name, reward, (main, *subs), rewards=rewards)


def test_roles_are_compared_with_the_same_role_of_the_episodes_that_have_it():
    run = msgspec.structs.replace(run_with(), roles_as_policies=True)
    credit = group_credit([team("a", 1.0, [0.5, 1.5]), team("b", 0.0, [1.0]), team("c", 0.5, [])], run)
    # Subs: R_u is 1.5 and 2.5 in `a` (mean 2), 1 in `b`; `c` has none. Main: 1, 0, 0.5.
    assert advantages(credit) == pytest.approx(
        {"a-main": 0.5, "b-main": -0.5, "c-main": 0.0, "a-sub0": 0.0, "a-sub1": (2.5 - 1.5) / 2, "b-sub0": 1.0 - 1.5}
    )


def test_a_role_s_deviation_in_a_batch_spans_the_role_s_episodes_of_the_step():
    run = msgspec.structs.replace(run_with(kind="batch"), roles_as_policies=True)
    groups = [[team("a", 1.0, [1.0]), team("b", 0.0, [1.0])], [team("c", 0.0, [9.0]), team("d", 0.0, [])]]
    first, _ = batch_credit(groups, run)
    assert advantages(first)["a-sub0"] == pytest.approx(0.5 / (deviation([2.0, 1.0, 9.0]) + EPSILON))
    assert advantages(first)["a-main"] == pytest.approx(0.5 / (deviation([1.0, 0.0, 0.0, 0.0]) + EPSILON))


def test_calls_of_a_context_role_get_no_advantage_but_their_rewards_count():
    run = msgspec.structs.replace(run_with(), roles={"sub": "context"}, roles_as_policies=True)
    credit = group_credit([team("a", 1.0, [1.0]), team("b", 0.0, [1.0])], run)
    assert advantages(credit) == {"a-main": 0.5, "b-main": -0.5}


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.lists(st.floats(-5, 5), min_size=1, max_size=3)), min_size=2, max_size=4),
)
def test_a_role_weighs_the_same_in_each_episode_however_often_it_was_invoked(teams: list[tuple[float, list[float]]]):
    run = msgspec.structs.replace(run_with(), roles_as_policies=True)
    credit = group_credit([team(str(at), *one) for at, one in enumerate(teams)], run)
    of_subs = [item.advantage for item in credit.calls if "sub" in item.call_id]
    assert math.fsum(of_subs) == pytest.approx(0, abs=1e-6)


# laws


@given(
    st.lists(st.tuples(scores, st.sampled_from(EpisodeStatus), episodes(max_calls=4)), max_size=4),
    st.sampled_from(["group", "rloo", "batch", "none"]),
    st.floats(0, 1),
    st.booleans(),
)
def test_each_trained_call_of_a_member_gets_one_finite_advantage_and_nothing_else_does(
    made: list[tuple[float | None, EpisodeStatus, list[Call]]], kind: str, gamma: float, roles: bool
):
    group: list[EpisodeOutcome] = []
    for at, (reward, status, calls) in enumerate(made):
        clipped = None if reward is None else effective_reward([event(1, reward)], {})
        named = tuple(msgspec.structs.replace(one, call_id=f"{at}-{one.call_id}", episode_id=str(at)) for one in calls)
        group.append(outcome(str(at), clipped, named, status, {one.call_id: 1.0 * one.index for one in named}))
    run = msgspec.structs.replace(run_with(kind=kind, gamma=gamma, std=True), roles_as_policies=roles)
    credit = group_credit(group, run)
    ids = [item.call_id for item in credit.calls]
    assert len(ids) == len(set(ids))
    assert all(math.isfinite(item.advantage) for item in credit.calls)
    counted = {member.episode_id for member in credit.members if member.member}
    assert {item.episode_id for item in credit.calls} <= counted
    assert all((member.advantage is None) is not member.member for member in credit.members)


@given(st.data(), st.lists(st.one_of(st.none(), st.floats(-10, 10)), max_size=6))
def test_the_order_of_episodes_changes_no_advantage(data: st.DataObject, rewards: list[float | None]):
    group = [outcome(str(at), reward, at % 3 + 1) for at, reward in enumerate(rewards)]
    shuffled = data.draw(st.permutations(group))
    assert advantages(group_credit(shuffled, RUN)) == advantages(group_credit(group, RUN))


# several policies


def pair(name: str, solver: float, checker: float | None, reward: float = 0.0) -> EpisodeOutcome:
    """A solver's call and, where it is asked, a checker's, each rewarded for itself; neither goes on from the other."""
    calls = [call(f"{name}-s", 0, [1], [2], episode_id=name, policy="solver")]
    rewards = {f"{name}-s": solver}
    if checker is not None:
        calls.append(call(f"{name}-c", 1, [7], [8], episode_id=name, policy="checker"))
        rewards[f"{name}-c"] = checker
    return outcome(name, reward, tuple(calls), rewards=rewards)


def test_what_one_policy_s_calls_are_rewarded_for_says_nothing_of_another_s():
    credit = group_credit([pair("a", 1.0, 4.0), pair("b", 0.0, 4.0)], run_with())
    assert advantages(credit) == pytest.approx({"a-s": 0.5, "b-s": -0.5, "a-c": 0.0, "b-c": 0.0})


def test_an_episode_that_did_not_call_a_policy_is_no_member_of_its_baseline():
    credit = group_credit([pair("a", 1.0, 3.0), pair("b", 0.0, 1.0), pair("c", 0.0, None)], run_with())
    assert advantages(credit) == pytest.approx({"a-s": 2 / 3, "b-s": -1 / 3, "c-s": -1 / 3, "a-c": 1.0, "b-c": -1.0})


def test_with_episode_weight_0_each_policy_learns_from_its_own_rewards_alone():
    group = [pair("a", 0.0, 1.0, reward=1.0), pair("b", 0.0, 0.0, reward=0.0)]
    assert advantages(group_credit(group, run_with(episode=0.0))) == pytest.approx(
        {"a-s": 0.0, "b-s": 0.0, "a-c": 0.5, "b-c": -0.5}
    )
    assert advantages(group_credit(group, run_with())) == pytest.approx(
        {"a-s": 0.5, "b-s": -0.5, "a-c": 1.0, "b-c": -1.0}
    )


def test_a_policy_s_deviation_in_a_batch_spans_its_own_calls():
    groups = [[pair("a", 1.0, 9.0), pair("b", 0.0, 0.0)], [pair("c", 0.0, 5.0), pair("d", 4.0, 5.0)]]
    first, _ = batch_credit(groups, run_with(kind="batch"))
    assert advantages(first)["a-s"] == pytest.approx(0.5 / (deviation([1.0, 0.0, 0.0, 4.0]) + EPSILON))
    assert advantages(first)["a-c"] == pytest.approx(4.5 / (deviation([9.0, 0.0, 5.0, 5.0]) + EPSILON))


def test_a_role_that_two_policies_play_is_compared_within_each_of_them():
    def trio(name: str, checker: float, judge: float) -> EpisodeOutcome:
        main = call(f"{name}-s", 0, [1], [2], episode_id=name, policy="solver")
        others = [
            call(f"{name}-{policy[0]}", at, [6 + at], [8], episode_id=name, policy=policy, role="subagent")
            for at, policy in enumerate(("checker", "judge"), 1)
        ]
        return outcome(name, 0.0, (main, *others), rewards={f"{name}-c": checker, f"{name}-j": judge})

    run = msgspec.structs.replace(run_with(), roles_as_policies=True)
    credit = group_credit([trio("a", 1.0, 10.0), trio("b", 0.0, 20.0)], run)
    assert advantages(credit) == pytest.approx(
        {"a-s": 0.0, "b-s": 0.0, "a-c": 0.5, "b-c": -0.5, "a-j": -5.0, "b-j": 5.0}
    )


# families


def test_with_families_a_batch_s_deviation_spans_the_family_s_episodes():
    groups = [
        [outcome("a", 1.0), outcome("b", 0.0)],
        [outcome("c", 50.0), outcome("d", 10.0)],
        [outcome("e", 3.0), outcome("f", 0.0)],
    ]
    first, second, third = batch_credit(groups, run_with(kind="batch"), ["maths", "code", "maths"])
    maths, code = deviation([1.0, 0.0, 3.0, 0.0]) + EPSILON, deviation([50.0, 10.0]) + EPSILON
    assert advantages(first) == pytest.approx({"a-0": 0.5 / maths, "b-0": -0.5 / maths})
    assert advantages(second) == pytest.approx({"c-0": 20 / code, "d-0": -20 / code})
    assert advantages(third) == pytest.approx({"e-0": 1.5 / maths, "f-0": -1.5 / maths})


@pytest.mark.parametrize("kind", ["group", "rloo", "none"])
def test_other_kinds_look_at_the_group_alone_whatever_its_family(kind: str):
    groups = [[outcome("a", 1.0), outcome("b", 0.0)], [outcome("c", 50.0), outcome("d", 10.0)]]
    assert batch_credit(groups, run_with(kind=kind), ["x", "y"]) == batch_credit(groups, run_with(kind=kind))


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4), st.floats(0.5, 100))
def test_scaling_the_rewards_of_one_family_changes_nothing_in_another(rewards: list[float], scale: float):
    def credit(factor: float) -> GroupCredit:
        first = [outcome("a", rewards[0]), outcome("b", rewards[1])]
        second = [outcome("c", factor * rewards[2]), outcome("d", factor * rewards[3])]
        return batch_credit([first, second], run_with(kind="batch", std=True), ["x", "y"])[0]

    assert credit(scale) == credit(1.0)
