"""The steps of a policy and the groups of a batch, told to whoever may see them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.tracker.filling import batch, created, ready_group, rewarded
from tracker.errors import BadRequest
from tracker.intervals import interval_of
from tracker.ledger import SqlLedger
from tracker.overview import VersionReward
from tracker.types import CallKind, EpisodeHead, Group, RunSettings, SkipReason


@pytest.fixture
async def fence(ledger: SqlLedger) -> int:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    await ledger.ensure_policy("p")
    taken = await ledger.take_lease("p", "me", 0, 10**9)
    assert taken is not None
    return taken


async def stepped(ledger: SqlLedger, fence: int, step: int, metrics: bytes = b"{}", epoch: int = 0) -> Group:
    group = await ready_group(ledger, f"task {epoch} {step}".replace(" ", "-"), [0.0, 1.0])
    one = await ledger.take(batch(group, fence, step, epoch=epoch, batch_id=f"b{epoch}-{step}"))
    await ledger.mark_trained(replace(one, metrics=metrics, version=step))
    return group


async def test_steps_are_told_newest_first_page_by_page(ledger: SqlLedger, fence: int) -> None:
    for step in range(1, 6):
        await stepped(ledger, fence, step, metrics=b'{"loss":%d}' % step)
    first, cursor = await ledger.steps("p", 2, None)
    assert [(told.step, told.metrics, told.version) for told in first] == [(5, b'{"loss":5}', 5), (4, b'{"loss":4}', 4)]
    second, cursor = await ledger.steps("p", 2, cursor)
    assert [told.step for told in second] == [3, 2]
    third, cursor = await ledger.steps("p", 2, cursor)
    assert [(told.step, told.num_groups, told.state) for told in third] == [(1, 1, "trained")]
    assert cursor is None
    assert await ledger.steps("another", 2, None) == ([], None)


async def test_steps_of_a_newer_epoch_come_first_and_a_dropped_one_is_told(ledger: SqlLedger, fence: int) -> None:
    await stepped(ledger, fence, 1)
    await stepped(ledger, fence, 2)
    group = await ready_group(ledger, "dropped", [0.0, 1.0])
    await ledger.take(batch(group, fence, 3, batch_id="b0-3"))
    await ledger.drop_batch("b0-3", SkipReason.EXPIRED, fence)
    await ledger.rollback("p", 0)
    await stepped(ledger, fence, 1, epoch=1)
    told, _ = await ledger.steps("p", 10, None)
    assert [(one.epoch, one.step, one.state) for one in told] == [
        (1, 1, "trained"),
        (0, 3, "dropped"),
        (0, 2, "trained"),
        (0, 1, "trained"),
    ]


@pytest.mark.parametrize("cursor", ["x", "1", "1.2", "1.2.", "-1.2.b", "1.2e3.b", "٣.1.b", "1.1." + "b" * 300])
async def test_a_cursor_that_is_none_of_ours_is_refused(ledger: SqlLedger, fence: int, cursor: str) -> None:
    with pytest.raises(BadRequest, match="next_cursor"):
        await ledger.steps("p", 10, cursor)


async def test_groups_of_a_batch_are_told_to_their_tenant_and_counted_for_others(ledger: SqlLedger, fence: int) -> None:
    own = await stepped(ledger, fence, 1)
    told, num_foreign = await ledger.groups_of_batch("default", "b0-1")
    assert ([group.group_id for group in told], num_foreign) == ([own.group_id], 0)
    assert [member.advantage for member in told[0].members] == [0.25, 0.25]
    assert await ledger.groups_of_batch("another", "b0-1") == ([], 1)


async def test_episodes_are_own_unless_they_are_of_another_tenant_or_deleted(ledger: SqlLedger) -> None:
    for name in ("mine", "gone"):
        await created(ledger, name)
    await rewarded(ledger, "mine")
    await ledger.create_episode(EpisodeHead(episode_id="theirs", tenant="other", task="t", created_ms=1), None, "")
    await ledger.delete_episode("default", "gone")
    assert await ledger.own_episodes("default", ["mine", "gone", "theirs", "nobody"]) == {"mine"}
    assert await ledger.own_episodes("default", []) == frozenset()


async def played(ledger: SqlLedger, episode_id: str, value: float | None, version: int, **fields: object) -> None:
    await created(ledger, episode_id, f"t-{episode_id}", **fields)
    if value is not None:
        await rewarded(ledger, episode_id, value)
    row = await ledger.get_episode("default", episode_id)
    kind = CallKind(policy="p", version=version, role="main", num_calls=1)
    row = replace(row, versions={"p": version}, kinds=(kind,), num_calls=1, archived_ms=1, ended_ms=1)
    assert await ledger.archive_episode(row, b"calls of " + episode_id.encode(), "digest")


async def test_rewards_are_told_by_the_version_that_an_episode_was_played_with(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="held-out", mode="eval"))
    for number, value in enumerate((0.0, 1.0, 1.0, 0.0)):
        await played(ledger, f"one-{number}", value, 1)
    await played(ledger, "two-1", 1.0, 2)
    await played(ledger, "two-2", None, 2)
    await played(ledger, "held-out-1", 0.25, 2, run="held-out")
    await ledger.score_episodes()
    told = await ledger.version_rewards("default", "p", range(0, 10))
    assert told[1] == VersionReward(num_episodes=4, reward=interval_of([0.0, 1.0, 1.0, 0.0]))
    assert (told[2].num_episodes, told[2].reward and told[2].reward.mean) == (3, 0.625)
    of_run = await ledger.version_rewards("default", "p", range(2, 3), "held-out")
    assert of_run == {2: VersionReward(num_episodes=1, reward=interval_of([0.25]))}
    assert await ledger.version_rewards("default", "p", range(3, 9)) == {}
    assert await ledger.version_rewards("another", "p", range(0, 9)) == {}


async def test_until_when_a_trainer_holds_a_policy_is_told(ledger: SqlLedger, fence: int) -> None:
    assert await ledger.lease_until("p") == 10**9
    await ledger.release_lease("p", fence)
    assert await ledger.lease_until("p") == 0
    assert await ledger.lease_until("another") is None
