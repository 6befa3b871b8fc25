"""The reward ledger, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.tracker.filling import batch, created, ready_group, reward, rewarded
from tracker.errors import Conflict, NotFound, Unprocessable
from tracker.ledger import SqlLedger
from tracker.types import EpisodeState, EpisodeStatus, RunSettings, SkipReason


async def test_events_are_appended_in_order_and_read_back_as_given(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    given = [
        reward("e", 0.1 + 0.2, name="né\x00", source="judge", metadata=b'{"a":1}', final=False),
        reward("e", None, final=False),
        reward("e", -1.0, call_id="c", final=False),
    ]
    for one in given:
        stored, is_new = await ledger.add_reward("default", one, None, "")
        assert is_new
        assert msgspec.structs.replace(stored, seq=0) == one
    events = await ledger.rewards("e")
    assert [msgspec.structs.replace(event, seq=0) for event in events] == given
    assert [event.seq for event in events] == sorted({event.seq for event in events})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_a_value_that_is_not_finite_is_refused_and_nothing_is_stored(ledger: SqlLedger, value: float) -> None:
    await created(ledger, "e")
    with pytest.raises(Unprocessable):
        await rewarded(ledger, "e", value)
    assert await ledger.rewards("e") == []


async def test_the_effective_reward_is_the_weighted_sum_of_each_name_s_last_value(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", reward_weights={"style": 0.5}))
    await created(ledger, "e")
    assert (await ledger.get_episode("default", "e")).reward is None
    for name, value in (("reward", 9.0), ("style", 4.0), ("reward", 1.0)):
        await rewarded(ledger, "e", value, name=name, final=False)
    await rewarded(ledger, "e", 100.0, call_id="c", final=False)
    assert (await ledger.get_episode("default", "e")).reward == 3.0


async def test_a_final_reward_ends_its_episode_and_another_does_not_mind(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    await rewarded(ledger, "e", final=False)
    assert (await ledger.get_episode("default", "e")).status is None
    await rewarded(ledger, "e", created_ms=42)
    row = await ledger.get_episode("default", "e")
    assert (row.state, row.status, row.ended_ms) == (EpisodeState.FINISHING, EpisodeStatus.OK, 42)
    await rewarded(ledger, "e")
    await created(ledger, "f")
    await ledger.end_episode("f", EpisodeStatus.FAILED, 5)
    assert not (await rewarded(ledger, "f")).late
    assert (await ledger.get_episode("default", "f")).status == EpisodeStatus.FAILED


async def test_an_unknown_or_foreign_episode_takes_no_reward(ledger: SqlLedger) -> None:
    await created(ledger, "e", tenant="a")
    for tenant, episode_id in (("b", "e"), ("a", "f")):
        with pytest.raises(NotFound):
            await ledger.add_reward(tenant, reward(episode_id), "key", "digest")


async def test_the_same_idempotency_key_gives_the_same_event(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    answers = await asyncio.gather(*(ledger.add_reward("default", reward("e"), "key", "digest") for _ in range(8)))
    assert sum(is_new for _, is_new in answers) == 1
    assert len({stored.reward_id for stored, _ in answers}) == 1
    assert len(await ledger.rewards("e")) == 1
    with pytest.raises(Conflict):
        await ledger.add_reward("default", reward("e", 2.0), "key", "other digest")
    await ledger.delete_episode("default", "e")
    with pytest.raises(NotFound):
        await ledger.add_reward("default", reward("e"), "key", "digest")


async def test_the_same_event_again_is_stored_once_and_another_under_its_id_is_refused(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    one = reward("e")
    stored, _ = await ledger.add_reward("default", one, None, "")
    assert await ledger.add_reward("default", one, None, "") == (stored, False)
    with pytest.raises(Conflict):
        await ledger.add_reward("default", msgspec.structs.replace(one, value=7.0), None, "")


async def test_a_reward_after_its_group_was_taken_is_late_and_changes_nothing_frozen(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    group = await ready_group(ledger, "t", [0.0, 1.0])
    assert not (await rewarded(ledger, "t-0", 0.5)).late
    fence = await ledger.take_lease("p", "trainer", 0, 1000)
    assert fence is not None
    await ledger.take(batch(group, fence))
    late = await rewarded(ledger, "t-0", 0.9)
    assert late.late
    (shown,), _ = await ledger.list_groups("default", run=None, task=None, limit=5, cursor=None)
    assert [(member.reward, member.advantage) for member in shown.members] == [(0.5, 0.25), (1.0, 0.25)]
    row = await ledger.get_episode("default", "t-0")
    assert row.reward == 0.9
    assert [(event.kind, event.detail) for event in row.events] == [("late_reward", late.reward_id)]


async def test_a_reward_of_a_skipped_group_is_late(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    group = await ready_group(ledger, "t", [1.0, 1.0])
    fence = await ledger.take_lease("p", "trainer", 0, 1000)
    assert fence is not None
    await ledger.skip_group(group.group_id, SkipReason.NO_VARIANCE, "p", fence)
    assert (await rewarded(ledger, "t-0")).late


async def test_a_reward_of_an_episode_that_ended_without_a_place_is_late(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    await ledger.end_episode("e", EpisodeStatus.INFRA_ERROR, 5)
    assert (await rewarded(ledger, "e")).late
    await ledger.put_run("default", RunSettings(run="check", mode="eval"))
    await created(ledger, "f", run="check")
    await ledger.end_episode("f", EpisodeStatus.INFRA_ERROR, 5)
    assert not (await rewarded(ledger, "f")).late
