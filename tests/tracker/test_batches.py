"""Lease, take and commit, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.tracker.filling import batch, ready_group, rewarded
from tracker.errors import Conflict, HoneError, LeaseLost, NotFound
from tracker.ledger import SqlLedger
from tracker.types import Batch, Group, GroupState, RunSettings, SkipReason


@pytest.fixture(autouse=True)
async def small_groups(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))


@pytest.fixture
async def fence(ledger: SqlLedger) -> int:
    found = await ledger.take_lease("p", "trainer", 0, 1000)
    assert found is not None
    return found


async def state_of(ledger: SqlLedger, task: str) -> tuple[GroupState, SkipReason | None]:
    (group,), _ = await ledger.list_groups("default", run=None, task=task, limit=5, cursor=None)
    return group.state, group.reason


async def test_one_trainer_holds_the_lease_and_its_fence_rises_with_each_holder(ledger: SqlLedger) -> None:
    assert await ledger.take_lease("p", "a", 0, 1000) == 1
    assert await ledger.take_lease("p", "a", 500, 1000) == 1
    assert await ledger.take_lease("p", "b", 1499, 1000) is None
    assert await ledger.take_lease("p", "b", 1500, 1000) == 2
    assert await ledger.take_lease("p", "a", 1501, 1000) is None
    await ledger.release_lease("p", 1)
    assert await ledger.take_lease("p", "a", 1502, 1000) is None
    await ledger.release_lease("p", 2)
    assert await ledger.take_lease("p", "a", 1503, 1000) == 3
    assert await ledger.take_lease("q", "b", 0, 1000) == 1


async def test_of_trainers_that_ask_together_one_gets_the_lease(ledger: SqlLedger) -> None:
    asked = await asyncio.gather(*(ledger.take_lease("p", f"trainer {number}", 0, 1000) for number in range(6)))
    assert [fence for fence in asked if fence is not None] == [1]


async def test_groups_are_offered_in_the_order_they_became_ready_until_they_are_taken(
    ledger: SqlLedger, fence: int
) -> None:
    first, second = [await ready_group(ledger, task, [0.0, 1.0]) for task in ("b", "a")]
    assert [group.group_id for group in await ledger.ready_heads("p")] == sorted_by_ready(first, second)
    assert await ledger.ready_heads("q") == []
    taken = await ledger.take(batch(first, fence))
    assert [group.group_id for group in await ledger.ready_heads("p")] == [second.group_id]
    assert await ledger.num_groups([GroupState.READY, GroupState.TAKEN]) == 2
    assert await ledger.last_batches("p", 5) == [taken]
    assert taken.group_ids == (first.group_id,)


def sorted_by_ready(*groups: Group) -> list[str]:
    """They became ready in one millisecond: the older group first, then by id."""
    return [group.group_id for group in sorted(groups, key=lambda group: (group.created_ms, group.group_id))]


async def test_taking_the_same_batch_again_changes_nothing(ledger: SqlLedger, fence: int) -> None:
    taken = await ledger.take(batch(await ready_group(ledger, "t", [0.0, 1.0]), fence))
    assert await ledger.take(taken) == taken
    with pytest.raises(Conflict):
        await ledger.take(msgspec.structs.replace(taken, step=9))


async def test_a_step_and_a_group_are_taken_once_and_a_refused_take_leaves_no_trace(
    ledger: SqlLedger, fence: int
) -> None:
    group, other = [await ready_group(ledger, task, [0.0, 1.0]) for task in ("t", "u")]
    await ledger.take(batch(group, fence, step=1))
    for refused in (
        batch(other, fence, step=1, batch_id="same step"),
        batch(group, fence, step=2),
        batch(other, fence, step=2, epoch=1),
        batch(other, fence, step=2, group_ids=(other.group_id, group.group_id)),
    ):
        with pytest.raises(Conflict):
            await ledger.take(refused)
    assert len(await ledger.last_batches("p", 5)) == 1
    assert await state_of(ledger, "u") == (GroupState.READY, None)


async def test_a_reward_that_came_while_the_credit_was_computed_is_neither_late_nor_left_out(
    ledger: SqlLedger, fence: int
) -> None:
    group = await ready_group(ledger, "t", [0.0, 1.0])
    assert not (await rewarded(ledger, "t-0", 2.0)).late
    with pytest.raises(Conflict) as refused:
        await ledger.take(batch(group, fence), 2)
    assert refused.value.code == "rewards_moved"
    assert await state_of(ledger, "t") == (GroupState.READY, None)
    await ledger.take(batch(group, fence), 3)
    assert (await rewarded(ledger, "t-0", 3.0)).late


async def test_trainers_that_take_together_share_no_group(ledger: SqlLedger, fence: int) -> None:
    group = await ready_group(ledger, "t", [0.0, 1.0])
    asked = (ledger.take(batch(group, fence, step=step)) for step in range(6))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Batch) for answer in answers) == 1
    assert all(isinstance(answer, Batch | Conflict) for answer in answers)


async def test_a_trainer_that_was_replaced_can_write_nothing(ledger: SqlLedger, fence: int) -> None:
    group = await ready_group(ledger, "t", [0.0, 1.0])
    taken = await ledger.take(batch(group, fence))
    other = await ready_group(ledger, "u", [0.0, 1.0])
    assert await ledger.take_lease("p", "successor", 5000, 1000) == 2
    writes = (
        ledger.take(batch(other, fence, step=2)),
        ledger.mark_trained(taken),
        ledger.drop_batch(taken.batch_id, SkipReason.EXPIRED, fence),
        ledger.skip_group(other.group_id, SkipReason.NO_VARIANCE, "p", fence),
    )
    for write in writes:
        with pytest.raises(LeaseLost):
            await write
    assert await state_of(ledger, "t") == (GroupState.TAKEN, None)


async def test_a_trained_batch_keeps_its_version_manifest_and_metrics(ledger: SqlLedger, fence: int) -> None:
    taken = await ledger.take(batch(await ready_group(ledger, "t", [0.0, 1.0]), fence, created_ms=7))
    trained = msgspec.structs.replace(taken, version=3, manifest=b"[1]", metrics=b'{"loss":1}')
    await ledger.mark_trained(trained)
    await ledger.mark_trained(trained)
    assert await ledger.last_batches("p", 5) == [msgspec.structs.replace(trained, state="trained")]
    assert await state_of(ledger, "t") == (GroupState.TRAINED, None)
    with pytest.raises(Conflict):
        await ledger.drop_batch(taken.batch_id, SkipReason.EXPIRED, fence)


async def test_a_dropped_batch_skips_its_groups_and_frees_its_step(ledger: SqlLedger, fence: int) -> None:
    taken = await ledger.take(batch(await ready_group(ledger, "t", [0.0, 1.0]), fence))
    await ledger.drop_batch(taken.batch_id, SkipReason.NO_IDS, fence)
    await ledger.drop_batch(taken.batch_id, SkipReason.NO_IDS, fence)
    assert await state_of(ledger, "t") == (GroupState.SKIPPED, SkipReason.NO_IDS)
    await ledger.take(batch(await ready_group(ledger, "u", [0.0, 1.0]), fence, batch_id="again"))
    with pytest.raises(NotFound):
        await ledger.drop_batch("unknown", SkipReason.NO_IDS, fence)


async def test_a_group_of_two_policies_is_trained_once_both_shares_are(ledger: SqlLedger, fence: int) -> None:
    group = await ready_group(ledger, "t", [0.0, 1.0], policies=("p", "q"))
    other_fence = await ledger.take_lease("q", "trainer", 0, 1000)
    assert other_fence is not None
    taken = await ledger.take(batch(group, fence))
    await ledger.mark_trained(taken)
    assert await state_of(ledger, "t") == (GroupState.TAKEN, None)
    (offered,) = await ledger.ready_groups("q", [group.group_id])
    assert offered.members[0].advantage == 0.25
    await ledger.skip_group(group.group_id, SkipReason.NO_IDS, "q", other_fence)
    await ledger.skip_group(group.group_id, SkipReason.NO_IDS, "q", other_fence)
    assert await state_of(ledger, "t") == (GroupState.TRAINED, None)
    with pytest.raises(HoneError):
        await ledger.skip_group(group.group_id, SkipReason.NO_IDS, "p", fence)


async def test_a_group_that_every_policy_skipped_is_skipped_with_the_reason(ledger: SqlLedger, fence: int) -> None:
    group = await ready_group(ledger, "t", [1.0, 1.0])
    await ledger.skip_group(group.group_id, SkipReason.NO_VARIANCE, "p", fence)
    assert await state_of(ledger, "t") == (GroupState.SKIPPED, SkipReason.NO_VARIANCE)
    assert await ledger.ready_heads("p") == []
