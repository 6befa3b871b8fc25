"""What a policy's trainer may take, on SQLite and PostgreSQL."""

from __future__ import annotations

import msgspec
import pytest

from tests.tracker.filling import archived, batch, created, ready_group, rewarded
from tracker.errors import BadRequest
from tracker.ledger import SqlLedger
from tracker.types import GroupState, RunSettings, SkipReason

MIX = RunSettings(run="mix", group_size=1, families={"maths": 1, "code": 1})


@pytest.fixture(autouse=True)
async def small_groups(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))


async def taken(ledger: SqlLedger, task: str, step: int, fence: int, policies: tuple[str, ...] = ("p",)) -> str:
    """A group that policy `p` has taken; its id."""
    group = await ready_group(ledger, task, [0.0, 1.0], policies)
    await ledger.take(batch(group, fence, step))
    return group.group_id


async def test_every_ready_group_is_offered_without_members_and_read_with_them(ledger: SqlLedger) -> None:
    groups = [await ready_group(ledger, f"t{number}", [0.0, 1.0]) for number in range(4)]
    heads = await ledger.ready_heads("p")
    assert sorted(head.task for head in heads) == ["t0", "t1", "t2", "t3"]
    assert all(not head.members and head.state is GroupState.READY for head in heads)
    wanted = [groups[3].group_id, groups[1].group_id, "unknown"]
    found = await ledger.ready_groups("p", wanted)
    assert {group.group_id for group in found} == set(wanted[:2])
    assert all(len(group.members) == 2 for group in found)
    assert await ledger.ready_groups("q", wanted) == []


async def test_groups_that_were_taken_are_counted_by_task_until_they_are_dropped(ledger: SqlLedger) -> None:
    fence = await ledger.take_lease("p", "trainer", 0, 1000) or 0
    await taken(ledger, "a", 1, fence)
    second = await taken(ledger, "b", 2, fence)
    assert await ledger.tasks_taken("p", "default", "default") == {"a": 1, "b": 1}
    await ledger.drop_batch("batch-2", SkipReason.NO_IDS, fence)
    assert second not in {head.group_id for head in await ledger.ready_heads("p")}
    assert await ledger.tasks_taken("p", "default", "default") == {"a": 1}
    for policy, tenant, run in (("q", "default", "default"), ("p", "other", "default"), ("p", "default", "mix")):
        assert await ledger.tasks_taken(policy, tenant, run) == {}


async def test_one_policy_s_pace_holds_up_no_other(ledger: SqlLedger) -> None:
    fence = await ledger.take_lease("p", "trainer", 0, 1000) or 0
    ids = [await taken(ledger, f"t{step}", step, fence, ("p", "q")) for step in (1, 2, 3)]
    for step in (1, 2, 3):
        stored = next(one for one in await ledger.last_batches("p", 5) if one.step == step)
        await ledger.mark_trained(msgspec.structs.replace(stored, version=step))
    assert {head.group_id for head in await ledger.ready_heads("q")} == set(ids)
    assert await ledger.ready_heads("p") == []
    states, _ = await ledger.list_groups("default", run=None, task=None, limit=5, cursor=None)
    assert {group.state for group in states} == {GroupState.TAKEN}


async def test_a_task_of_no_family_gets_no_episode_in_a_run_that_has_families(ledger: SqlLedger) -> None:
    await ledger.put_run("default", MIX)
    with pytest.raises(BadRequest, match="'maths/', 'code/'"):
        await created(ledger, "e0", "history/1", run="mix")
    await created(ledger, "e1", "maths/1", run="mix")
    await rewarded(ledger, "e1")
    await archived(ledger, "e1")
    assert [group.task for group in await ledger.settle_groups(1_000_000)] == ["maths/1"]
