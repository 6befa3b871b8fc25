"""The checker finds what is missing, doubled or stuck, and calls nothing amiss that is not."""

from __future__ import annotations

from dataclasses import replace

from bench.faulting.verdict import (
    Accepted,
    Answered,
    Seen,
    Stored,
    StoredEpisode,
    Taken,
    Verdict,
    judge,
    num_refused_and_stored,
)

KEPT = StoredEpisode("ep-1", "archived", {"c-1": "hi", "c-2": ""}, {"c-1": 1}, {"c-2": "upstream_failed"})
REWARD = Accepted("rew-1", "n-1")


def verdict(
    episode: StoredEpisode = KEPT,
    *,
    answered: tuple[Answered, ...] = (Answered("c-1", "ep-1", "hi"),),
    rewards: tuple[Accepted, ...] = (REWARD,),
    batches: tuple[Taken, ...] = (),
    trained: tuple[Taken, ...] = (),
) -> Verdict:
    seen = Seen(answered=list(answered), accepted=[REWARD], episodes={0: "ep-1"})
    return judge(seen, Stored([episode], rewards, batches, trained))


def test_what_was_answered_and_is_stored_holds():
    found = verdict()
    assert found.holds
    assert (found.answered, found.in_samples, found.excluded, found.lost) == (1, 1, 0, 0)
    assert (found.rewards_accepted, found.rewards_found) == (1, 1)
    assert found.reasons == {"upstream_failed": 1}


def test_an_answered_call_may_be_excluded_with_a_reason():
    found = verdict(replace(KEPT, sampled={}, excluded={"c-1": "superseded", "c-2": "upstream_failed"}))
    assert found.holds
    assert (found.in_samples, found.excluded) == (0, 1)


def test_an_answered_call_that_is_not_there_is_lost():
    found = verdict(replace(KEPT, texts={"c-2": ""}, sampled={}))
    assert found.lost == 1
    assert not found.holds


def test_lost_is_no_reason_for_an_answer_that_was_given():
    assert verdict(replace(KEPT, sampled={}, excluded={"c-1": "lost", "c-2": "lost"})).lost == 1


def test_an_answer_that_differs_from_what_is_stored_is_lost():
    assert verdict(answered=(Answered("c-1", "ep-1", "ho"),)).lost == 1


def test_a_call_of_an_episode_that_is_gone_is_lost():
    assert verdict(answered=(Answered("c-1", "ep-2", "hi"),)).lost == 1


def test_a_call_in_two_samples_is_told():
    assert "2 places" in " ".join(verdict(replace(KEPT, sampled={"c-1": 2})).problems)


def test_a_call_that_is_neither_trained_nor_excluded_is_told_though_nobody_read_its_answer():
    assert "c-2 has 0 places" in " ".join(verdict(replace(KEPT, excluded={})).problems)


def test_an_episode_that_is_stuck_is_told():
    assert verdict(replace(KEPT, state="finishing")).problems == ("1 episodes are finishing",)


def test_two_drivers_with_one_episode_are_told():
    seen = Seen(episodes={0: "ep-1", 1: "ep-1"})
    assert "an idempotency key opened an episode for two drivers" in judge(seen, Stored([KEPT], [], [], [])).problems


def test_a_reward_that_is_missing_or_doubled_is_not_found():
    assert verdict(rewards=()).rewards_found == 0
    again = Accepted("rew-2", REWARD.nonce)
    assert not verdict(rewards=(REWARD, again)).holds


def test_a_refused_reward_that_is_stored_is_counted_unless_it_has_a_key():
    seen = Seen(refused=["n-1", "n-2", "n-3"], keyed={"n-2"})
    assert num_refused_and_stored(seen, [Accepted("rew-1", "n-1"), Accepted("rew-2", "n-2")]) == 1


def test_a_group_in_two_batches_is_counted_also_where_only_a_taker_knows():
    first, second = Taken("b-1", ("g-1", "g-2")), Taken("b-2", ("g-2",))
    assert verdict(batches=(first,), trained=(first,)).groups_twice == 0
    assert verdict(batches=(first,), trained=(first, second)).groups_twice == 1
    assert verdict(batches=(first, second)).groups_twice == 1
