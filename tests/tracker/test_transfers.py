"""Whole episodes in and out of the ledger, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.fakes.archived import RUN, episode
from tests.tracker.filling import created
from tracker.errors import Conflict, Gone
from tracker.ledger import SqlLedger
from tracker.types import Act, EpisodeFilter, Event, GroupState, SkipReason
from tracker.wholes import GroupPlace, Standing, WholeEpisode


async def test_what_was_brought_reads_as_it_was_given(ledger: SqlLedger) -> None:
    given = episode(5)
    row = replace(given.row, key_ids=("k1", "k2"), events=(Event(at_ms=7, kind="repinned", detail="a\0b"),))
    group = replace(given.group, standing=Standing(reward=0.25, advantage=-1.5, why=""))  # type: ignore[type-var]
    given = replace(given, row=row, group=group)
    assert await ledger.bring_episode(given)
    (found,) = await ledger.whole_episodes("default", ["none", "ep-00000005", "ep-00000005"])
    assert (found.run, found.group) == (RUN, group)
    assert found.timeline.opened() == given.timeline.opened()
    assert found.row.events == row.events
    assert (found.row.key_ids, found.row.versions, found.row.reward) == (("k1", "k2"), {"solver": 1}, 0.25)
    assert [replace(reward, seq=0) for reward in found.rewards] == [replace(reward, seq=0) for reward in given.rewards]
    assert not await ledger.bring_episode(given)
    assert await ledger.whole_episodes("acme", ["ep-00000005"]) == []
    assert (await ledger.list_groups("default", run="r", task=None, limit=5, cursor=None))[0][0].members[
        0
    ].advantage == -1.5


async def test_what_was_brought_is_found_and_never_trained(ledger: SqlLedger) -> None:
    for number in range(4):
        assert await ledger.bring_episode(ready(number))
    assert await ledger.ready_heads("solver") == []
    assert await ledger.settle_groups(10**12) == []
    (group,), _ = await ledger.list_groups("default", run="r", task=None, limit=5, cursor=None)
    assert (group.state, group.reason, len(group.members)) == (GroupState.SKIPPED, SkipReason.EXPIRED, 4)
    by_kind = EpisodeFilter(policy="solver", version=1, role="main", min_reward=0.5)
    assert len((await ledger.find_episodes("default", by_kind, 10)).rows) == 2
    opened = await created(ledger, "live", task="task 0", run="r")
    assert opened.group_id != group.group_id  # a live one opens the next round


async def test_what_is_here_and_another_one_is_refused_and_leaves_nothing(ledger: SqlLedger) -> None:
    live = await created(ledger, "live", task="task 0", run="default")
    seat = replace(ready(0).group, group_id=live.group_id, size=8)  # type: ignore[type-var]
    in_default = replace(ready(0), run=replace(RUN, run="default", group_size=8))
    head = replace(in_default.row.head, run="default", group_id=live.group_id)
    going = replace(in_default, row=replace(in_default.row, head=head), group=seat)
    with pytest.raises(Conflict, match="group_size of run 'default'"):
        await ledger.bring_episode(replace(going, run=replace(going.run, group_size=4)), act())
    with pytest.raises(Conflict, match="is open here and goes on"):
        await ledger.bring_episode(going, act())
    assert (await ledger.list_acts("default", 5, None))[0] == []
    assert await ledger.bring_episode(ready(0), act())
    with pytest.raises(Conflict, match="another episode in its place"):
        await ledger.bring_episode(named(ready(1), place=0))
    with pytest.raises(Conflict, match="is taken"):
        await ledger.bring_episode(tenant_of(ready(0), "acme"))
    await ledger.delete_episode("default", "ep-00000000")
    with pytest.raises(Gone, match="never used again"):
        await ledger.bring_episode(ready(0))
    assert [told.act for told in (await ledger.list_acts("default", 5, None))[0]] == ["episode.import"]


def ready(number: int) -> WholeEpisode:
    """One whose group could have been trained where it comes from."""
    given = episode(number)
    return replace(given, group=replace(given.group, state=GroupState.READY))  # type: ignore[type-var]


def named(given: WholeEpisode, place: int) -> WholeEpisode:
    group: GroupPlace = replace(given.group, place=place)  # type: ignore[type-var]
    return replace(given, group=group)


def tenant_of(given: WholeEpisode, tenant: str) -> WholeEpisode:
    return replace(given, row=replace(given.row, head=replace(given.row.head, tenant=tenant)))


def act() -> Act:
    return Act(at_ms=1, tenant="default", key_id="cli", act="episode.import", target="e")
