"""Episodes in the ledger, on SQLite and PostgreSQL: one contract, no difference a reader could see."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.tracker.databases import Clock
from tests.tracker.filling import archived, created, rewarded
from tracker.errors import BadRequest, Conflict, Gone, NotFound, Unavailable
from tracker.ledger import SqlLedger
from tracker.sql import open_engine
from tracker.types import EpisodeHead, EpisodeState, EpisodeStatus, Event, RunSettings


async def test_a_created_episode_is_read_back_as_it_was_given(ledger: SqlLedger) -> None:
    head = EpisodeHead(
        episode_id="e",
        tenant="a",
        task="né\x00\ud800" + "x" * 508,
        policy="p",
        version=3,
        created_ms=7,
        ttl_ms=9,
        metadata=b'{"a":1}',
    )
    stored, is_new = await ledger.create_episode(head, "key", "digest")
    assert is_new
    assert stored.group_id is not None
    row = await ledger.get_episode("a", "e")
    assert row.head == stored
    assert (row.head.task, row.head.metadata) == (head.task, head.metadata)
    assert (row.state, row.status, row.member, row.reward) == (EpisodeState.OPEN, None, 0, None)


async def test_a_task_of_more_than_512_characters_is_refused(ledger: SqlLedger) -> None:
    with pytest.raises(BadRequest):
        await created(ledger, "e", "x" * 513)


async def test_a_foreign_episode_reads_like_an_unknown_one(ledger: SqlLedger) -> None:
    await created(ledger, "e", tenant="a")
    for tenant, episode_id in (("b", "e"), ("a", "f")):
        with pytest.raises(NotFound):
            await ledger.get_episode(tenant, episode_id)
    with pytest.raises(Conflict):
        await created(ledger, "e", tenant="b")


async def test_the_same_idempotency_key_gives_the_same_episode_also_when_it_has_ended(ledger: SqlLedger) -> None:
    first, _ = await ledger.create_episode(EpisodeHead(episode_id="e1"), "key", "digest")
    await ledger.end_episode("e1", EpisodeStatus.OK, 5)
    await archived(ledger, "e1")
    assert await ledger.create_episode(EpisodeHead(episode_id="e2"), "key", "digest") == (first, False)
    with pytest.raises(Conflict):
        await ledger.create_episode(EpisodeHead(episode_id="e3"), "key", "other digest")
    other, is_new = await ledger.create_episode(EpisodeHead(episode_id="e4", tenant="b"), "key", "other digest")
    assert is_new
    assert other.episode_id == "e4"


async def test_one_key_sent_many_times_at_once_creates_one_episode(ledger: SqlLedger) -> None:
    heads = [EpisodeHead(episode_id=f"e{number}") for number in range(8)]
    answers = await asyncio.gather(*(ledger.create_episode(head, "key", "digest") for head in heads))
    assert sum(is_new for _, is_new in answers) == 1
    assert len({head.episode_id for head, _ in answers}) == 1
    listed, _ = await ledger.list_episodes("default", run=None, task=None, status=None, limit=200, cursor=None)
    assert len(listed) == 1


async def test_an_unknown_run_is_not_created_and_leaves_nothing_behind(ledger: SqlLedger) -> None:
    with pytest.raises(NotFound):
        await ledger.create_episode(EpisodeHead(episode_id="e", run="nobody"), "key", "digest")
    await ledger.create_episode(EpisodeHead(episode_id="e"), "key", "another digest")


async def test_an_episode_ends_once(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    await ledger.end_episode("e", EpisodeStatus.FAILED, 5)
    await ledger.end_episode("e", EpisodeStatus.FAILED, 6)
    row = await ledger.get_episode("default", "e")
    assert (row.state, row.status, row.ended_ms) == (EpisodeState.FINISHING, EpisodeStatus.FAILED, 5)
    with pytest.raises(Conflict):
        await ledger.end_episode("e", EpisodeStatus.OK, 7)
    with pytest.raises(NotFound):
        await ledger.end_episode("f", EpisodeStatus.OK, 7)


async def test_an_archived_episode_keeps_its_first_timeline(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    await ledger.end_episode("e", EpisodeStatus.OK, 5)
    assert await ledger.get_timeline("e") is None
    assert await archived(ledger, "e", ("p", "q"), at_ms=9)
    row = await ledger.get_episode("default", "e")
    assert not await ledger.archive_episode(row, b"other", "other")
    assert await ledger.get_timeline("e") == b"calls of e"
    assert (row.state, row.versions, row.num_calls, row.num_samples) == (EpisodeState.ARCHIVED, {"p": 0, "q": 0}, 3, 2)
    assert (row.ended_ms, row.archived_ms) == (5, 9)


async def test_of_a_deleted_episode_only_the_id_stays(ledger: SqlLedger) -> None:
    head, _ = await ledger.create_episode(EpisodeHead(episode_id="e", task="secret"), "key", "digest")
    await rewarded(ledger, "e")
    await ledger.add_event("e", Event(at_ms=1, kind="repinned"))
    await archived(ledger, "e")
    row = await ledger.get_episode("default", "e")
    with pytest.raises(NotFound):
        await ledger.delete_episode("b", "e")
    await ledger.delete_episode("default", "e")
    await ledger.delete_episode("default", "e")
    with pytest.raises(NotFound):
        await ledger.get_episode("default", "e")
    assert await ledger.get_timeline("e") is None
    assert await ledger.rewards("e") == []
    assert not await ledger.archive_episode(row, b"again", "digest")
    assert await ledger.list_episodes("default", run=None, task=None, status=None, limit=9, cursor=None) == ([], None)
    for key in (None, "key"):
        with pytest.raises(Gone):
            await ledger.create_episode(head, key, "digest")


async def test_events_are_kept_in_order_and_once(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    events = [Event(at_ms=3, kind="repinned", detail="1 -> 2"), Event(at_ms=1, kind="lost", detail="\x00")]
    for event in (*events, events[0]):
        await ledger.add_event("e", event)
    assert list((await ledger.get_episode("default", "e")).events) == events


async def test_pages_are_newest_first_and_meet_every_episode_once(ledger: SqlLedger) -> None:
    for number in range(7):
        await created(ledger, f"e{number}", created_ms=number // 2)
    seen: list[str] = []
    cursor = None
    while True:
        rows, cursor = await ledger.list_episodes("default", run=None, task=None, status=None, limit=3, cursor=cursor)
        seen += [row.head.episode_id for row in rows]
        if cursor is None:
            break
    assert seen == ["e6", "e5", "e4", "e3", "e2", "e1", "e0"]


async def test_lists_are_filtered_by_run_task_state_and_status(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="r"))
    await created(ledger, "a", "x", run="r")
    await created(ledger, "b", "y")
    await ledger.end_episode("b", EpisodeStatus.FAILED, 1)

    async def ids(run: str | None = None, task: str | None = None, status: str | None = None) -> list[str]:
        rows, _ = await ledger.list_episodes("default", run=run, task=task, status=status, limit=9, cursor=None)
        return [row.head.episode_id for row in rows]

    assert await ids(run="r") == await ids(task="x") == await ids(status="open") == ["a"]
    assert await ids(status="failed") == await ids(status="finishing") == await ids(run="default", task="y") == ["b"]
    with pytest.raises(BadRequest):
        await ids(status="asleep")


@pytest.mark.parametrize("cursor", ["", "!", "bm90aGluZw==", "é", "MTI="])
async def test_a_cursor_that_is_none_of_ours_is_refused(ledger: SqlLedger, cursor: str) -> None:
    with pytest.raises(BadRequest):
        await ledger.list_episodes("default", run=None, task=None, status=None, limit=9, cursor=cursor)


async def test_the_sweeper_sees_unarchived_episodes_of_every_tenant(ledger: SqlLedger) -> None:
    await created(ledger, "a", created_ms=1)
    await created(ledger, "b", tenant="other", created_ms=2)
    await created(ledger, "c", created_ms=3)
    await created(ledger, "d", created_ms=1)
    await archived(ledger, "d")
    assert [row.head.episode_id for row in await ledger.open_episodes(3)] == ["a", "b"]


async def test_a_database_that_is_away_is_unavailable() -> None:
    before = set(threading.enumerate())
    for url in ("sqlite:////nowhere/at/all.db", "postgresql://postgres@127.0.0.1:1/hone"):
        away = SqlLedger(open_engine(url), Clock())
        with pytest.raises(Unavailable):
            await away.ping()
        with pytest.raises(Unavailable):
            await away.secret("any")
        await away.close()
    while set(threading.enumerate()) - before:  # the driver's thread of a connection that failed ends by itself
        await asyncio.sleep(0)


async def test_a_request_that_is_cancelled_midway_leaves_no_lock_behind(ledger: SqlLedger) -> None:
    tasks = [asyncio.create_task(created(ledger, f"e{number}")) for number in range(24)]
    while not any(task.done() for task in tasks):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await created(ledger, "after")
    assert (await ledger.get_episode("default", "after")).head.episode_id == "after"
