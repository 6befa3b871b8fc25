"""What is said of a group: what it waits for, why it is not trained, and how its members stand."""

from __future__ import annotations

import pytest

from gateway.dashboard.groups import SKIPS, group_view
from tracker.credit import member_standing
from tracker.types import Credit, EpisodeState, Group, GroupState, Member, RunSettings, SkipReason

RUN = RunSettings(run="r", group_size=3, group_timeout_s=600)
NOW_MS = 1_000_000


def member(name: str, reward: float | None, state: EpisodeState = EpisodeState.ARCHIVED) -> Member:
    return Member(episode_id=name, reward=reward, state=state)


def group(state: GroupState, *members: Member, reason: SkipReason | None = None, age_s: float = 60) -> Group:
    return Group(
        group_id="g",
        tenant="default",
        run="r",
        task="t",
        round=0,
        size=3,
        state=state,
        reason=reason,
        members=member_standing(members, Credit()),
        created_ms=NOW_MS - int(age_s * 1000),
    )


def line(told: Group) -> str:
    return group_view(told, (), RUN, NOW_MS).line


def test_an_open_group_says_how_many_are_scored_and_until_when_it_waits() -> None:
    members = (member("a", 1.0), member("b", None), member("c", None, EpisodeState.OPEN))
    assert line(group(GroupState.OPEN, *members)) == "waits: 1 of 3 scored, 2 ended; settled in 9 min at the latest"
    assert line(group(GroupState.OPEN, *members, age_s=700)).endswith("about to be settled")
    assert line(group(GroupState.READY, member("a", 1.0))) == "1 of 3 scored; waits for the trainer"


@pytest.mark.parametrize("reason", list(SkipReason))
def test_every_reason_of_a_skip_has_words(reason: SkipReason) -> None:
    assert line(group(GroupState.SKIPPED, reason=reason)) == f"not trained: {SKIPS[reason]}"


@pytest.mark.parametrize("state", list(GroupState))
def test_advantages_are_frozen_once_a_trainer_took_the_group(state: GroupState) -> None:
    view = group_view(group(state, member("a", 0.0), member("b", 1.0)), (), RUN, NOW_MS)
    assert view.is_frozen is (state in (GroupState.TAKEN, GroupState.TRAINED))
    assert (view.mean, view.num_scored) == (0.5, 2)
    assert [one.sign for one in view.members] == ["down", "up"]
    assert [one.share for one in view.members] == [1.0, 1.0]


def test_a_member_that_does_not_count_says_why() -> None:
    view = group_view(group(GroupState.OPEN, member("a", 1.0), member("b", None)), (), RUN, NOW_MS)
    assert [(one.told.member, one.why) for one in view.members] == [(True, ""), (False, "not scored")]
