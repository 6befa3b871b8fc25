"""Places in rounds, and how rounds are settled, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from tests.tracker.filling import archived, batch, created, ready_group, rewarded
from tracker.errors import BadRequest, NotFound
from tracker.ledger import SqlLedger
from tracker.types import EpisodeStatus, Group, GroupShare, GroupState, RunSettings, SkipReason

AFTER_GRACE = 61_000
AFTER_TIMEOUT = 1_000_000 + 601_000


@pytest.fixture(autouse=True)
async def small_groups(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))


async def groups(ledger: SqlLedger, **filters: str) -> list[Group]:
    found, _ = await ledger.list_groups("default", run=None, task=filters.get("task"), limit=50, cursor=None)
    return sorted(found, key=lambda group: group.round)


async def states(ledger: SqlLedger) -> list[GroupState]:
    return [group.state for group in await groups(ledger)]


async def test_a_full_round_opens_the_next(ledger: SqlLedger) -> None:
    heads = [await created(ledger, f"e{number}") for number in range(3)]
    assert heads[0].group_id == heads[1].group_id != heads[2].group_id
    assert [(group.round, group.size, len(group.members)) for group in await groups(ledger)] == [(0, 2, 2), (1, 2, 1)]
    assert (await created(ledger, "f", "another task")).group_id not in {head.group_id for head in heads}


async def test_episodes_created_together_take_each_place_once(ledger: SqlLedger) -> None:
    heads = await asyncio.gather(*(created(ledger, f"e{number}") for number in range(11)))
    assert sorted(Counter(head.group_id for head in heads).values()) == [1, 2, 2, 2, 2, 2]
    assert [group.round for group in await groups(ledger)] == [0, 1, 2, 3, 4, 5]


async def test_an_eval_run_has_no_groups(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="check", mode="eval"))
    assert (await created(ledger, "e", run="check")).group_id is None
    assert await groups(ledger) == []


@pytest.mark.parametrize("status", [EpisodeStatus.INFRA_ERROR, EpisodeStatus.CANCELLED])
async def test_a_member_that_did_not_run_frees_its_place(ledger: SqlLedger, status: EpisodeStatus) -> None:
    first = await created(ledger, "e0")
    await created(ledger, "e1")
    await ledger.end_episode("e0", status, 5)
    assert (await created(ledger, "e2")).group_id == first.group_id
    assert (await created(ledger, "e3")).group_id != first.group_id
    members = {member.episode_id: member for member in (await groups(ledger))[0].members}
    assert members.keys() == {"e0", "e1", "e2"}
    assert (members["e0"].member, members["e0"].why) == (False, status.value)


async def test_a_member_that_failed_keeps_its_place(ledger: SqlLedger) -> None:
    first = await created(ledger, "e0")
    await ledger.end_episode("e0", EpisodeStatus.FAILED, 5)
    await created(ledger, "e1")
    assert (await created(ledger, "e2")).group_id != first.group_id


async def test_a_round_is_ready_when_all_members_are_archived_and_scored(ledger: SqlLedger) -> None:
    for number in range(2):
        assert await ledger.settle_groups(1_000_001) == []
        await created(ledger, f"e{number}")
        await rewarded(ledger, f"e{number}", float(number))
    assert await ledger.settle_groups(1_000_001) == []
    await archived(ledger, "e0")
    await archived(ledger, "e1")
    (group,) = await ledger.settle_groups(1_000_001)
    assert (group.state, group.reason) == (GroupState.READY, None)
    assert [round(member.advantage or 0, 3) for member in group.members] == [-0.707, 0.707]
    assert await ledger.settle_groups(1_000_001) == []


async def test_an_unscored_member_is_waited_for_until_its_grace_is_over(ledger: SqlLedger) -> None:
    for episode_id in ("e0", "e1"):
        await created(ledger, episode_id)
        await ledger.end_episode(episode_id, EpisodeStatus.OK, 1_000_000)
        await archived(ledger, episode_id)
    await rewarded(ledger, "e0", final=False)
    await rewarded(ledger, "e1", None, final=False)
    assert await ledger.settle_groups(1_000_000 + 59_000) == []
    (group,) = await ledger.settle_groups(1_000_000 + AFTER_GRACE)
    assert group.state == GroupState.READY
    assert [(member.member, member.why) for member in group.members] == [(True, ""), (False, "unscored")]


async def test_at_its_timeout_a_round_goes_on_with_those_that_are_done(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=3))
    for number in range(3):
        await created(ledger, f"e{number}")
    for number in range(2):
        await rewarded(ledger, f"e{number}", float(number))
        await archived(ledger, f"e{number}")
    assert await ledger.settle_groups(1_000_000 + 599_000) == []
    (group,) = await ledger.settle_groups(AFTER_TIMEOUT)
    assert group.state == GroupState.READY
    assert {member.episode_id: member.member for member in group.members} == {"e0": True, "e1": True, "e2": False}
    assert (await rewarded(ledger, "e2")).late
    (ready,) = await ledger.ready_groups("p", [group.group_id])
    assert [member.episode_id for member in ready.members] == ["e0", "e1"]


@pytest.mark.parametrize(("num_archived", "reason"), [(0, SkipReason.EXPIRED), (1, SkipReason.TOO_FEW_SCORED)])
async def test_at_its_timeout_a_round_without_two_scored_members_is_skipped(
    ledger: SqlLedger, num_archived: int, reason: SkipReason
) -> None:
    for number in range(2):
        await created(ledger, f"e{number}")
    for number in range(num_archived):
        await rewarded(ledger, f"e{number}")
        await archived(ledger, f"e{number}")
    (group,) = await ledger.settle_groups(AFTER_TIMEOUT)
    assert (group.state, group.reason) == (GroupState.SKIPPED, reason)
    assert (await created(ledger, "next")).group_id != group.group_id


async def test_a_round_whose_members_called_no_policy_is_skipped(ledger: SqlLedger) -> None:
    group = await ready_group(ledger, "t", [0.0, 1.0], policies=())
    assert (group.state, group.reason) == (GroupState.SKIPPED, SkipReason.NO_IDS)


async def test_a_deleted_member_leaves_its_group(ledger: SqlLedger) -> None:
    group = await ready_group(ledger, "t", [0.0, 1.0])
    await ledger.delete_episode("default", "t-0")
    assert [member.episode_id for member in (await groups(ledger))[0].members] == ["t-1"]
    await ledger.delete_episode("default", "t-1")
    (empty,) = await groups(ledger)
    assert (empty.group_id, empty.state, empty.reason) == (group.group_id, GroupState.SKIPPED, SkipReason.NO_IDS)


async def test_an_implicit_episode_takes_its_place_when_it_is_first_rewarded(ledger: SqlLedger) -> None:
    assert (await created(ledger, "e", implicit=True)).group_id is None
    assert await groups(ledger) == []
    await rewarded(ledger, "e", final=False)
    row = await ledger.get_episode("default", "e")
    (group,) = await groups(ledger)
    assert (row.head.group_id, row.member) == (group.group_id, 0)
    assert not (await rewarded(ledger, "e")).late
    await created(ledger, "f", implicit=True)
    await ledger.end_episode("f", EpisodeStatus.CANCELLED, 5)
    assert (await rewarded(ledger, "f")).late


async def test_groups_are_listed_by_page_and_filter(ledger: SqlLedger) -> None:
    for number in range(5):
        await created(ledger, f"e{number}", f"task {number}", created_ms=number)
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = await ledger.list_groups("default", run="default", task=None, limit=2, cursor=cursor)
        seen += [group.task for group in page]
        if cursor is None:
            break
    assert seen == [f"task {number}" for number in (4, 3, 2, 1, 0)]
    assert [group.task for group in await groups(ledger, task="task 3")] == ["task 3"]
    assert await ledger.list_groups("other", run=None, task=None, limit=2, cursor=None) == ([], None)


async def test_a_run_that_drops_cut_episodes_tells_so_in_the_group(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="short", group_size=3, truncated="drop"))
    for name, calls in {"a": (2, 0, 0), "b": (2, 1, 1), "c": (2, 2, 1)}.items():  # all, left out, cut
        await created(ledger, name, run="short")
        await rewarded(ledger, name, 1.0 if name == "a" else 0.0)
        row = await ledger.get_episode("default", name)
        numbers = dict(zip(("num_calls", "num_excluded", "num_truncated"), calls, strict=True))
        row = msgspec.structs.replace(row, versions={"p": 0}, archived_ms=9, ended_ms=9, **numbers)
        assert await ledger.archive_episode(row, b"", "digest")
    (group,) = await ledger.settle_groups(10)
    told = {member.episode_id: (member.member, member.why) for member in group.members}
    assert told == {"a": (True, ""), "b": (True, ""), "c": (False, "truncated")}


async def test_groups_are_found_by_their_state_and_one_by_its_id(ledger: SqlLedger) -> None:
    ready = await ready_group(ledger, "t", [0.0, 1.0])
    await created(ledger, "waiting", "u")
    asked = {"run": None, "task": None, "limit": 9, "cursor": None}
    found, _ = await ledger.list_groups("default", **asked, state="ready")  # type: ignore[arg-type]
    assert [group.group_id for group in found] == [ready.group_id]
    with pytest.raises(BadRequest, match="open, ready"):
        await ledger.list_groups("default", **asked, state="rady")  # type: ignore[arg-type]
    assert await ledger.get_group("default", ready.group_id) == ready
    with pytest.raises(NotFound):
        await ledger.get_group("other", ready.group_id)


async def test_a_share_of_a_group_names_its_batch_or_why_there_is_none(ledger: SqlLedger) -> None:
    await ledger.ensure_policy("p")
    fence = await ledger.take_lease("p", "me", 1_000_000, 60_000)
    assert fence is not None
    taken = await ready_group(ledger, "t", [0.0, 1.0])
    await ledger.take(batch(taken, fence))
    skipped = await ready_group(ledger, "u", [1.0, 1.0])
    await ledger.skip_group(skipped.group_id, SkipReason.NO_VARIANCE, "p", fence)
    assert await ledger.group_shares([taken.group_id, skipped.group_id, "none"]) == {
        taken.group_id: [GroupShare(policy="p", batch_id="batch-1", state=GroupState.TAKEN, epoch=0, step=1)],
        skipped.group_id: [
            GroupShare(policy="p", batch_id=None, state=GroupState.SKIPPED, reason=SkipReason.NO_VARIANCE)
        ],
    }
