"""Archive and sweep: whatever dies where, every episode reaches SQL once, whole, and then leaves the episode store."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from sqlalchemy import select

from tests.tracker.building import call
from tests.tracker.databases import Clock
from tests.tracker.filling import rewarded
from tracker import archive, tables
from tracker.archive import KEEP_MS, ORPHAN_MS, archive_episode
from tracker.codec import decode_calls
from tracker.errors import Conflict, Gone, HoneError, NotFound, Unavailable
from tracker.ledger import SqlLedger
from tracker.memory_store import MemoryStore
from tracker.receipts import chain, decode_receipts, receipt_digest, receipt_of
from tracker.store import EpisodeStore, Ledger
from tracker.types import (
    Call,
    CallState,
    EpisodeHead,
    EpisodeState,
    EpisodeStatus,
    Event,
    Group,
    GroupState,
    Intent,
    Reason,
    RunSettings,
)


async def sweep(store: EpisodeStore, ledger: Ledger, clock: Clock) -> list[Group]:
    """Everything that a gateway does without being asked, once."""
    try:
        await archive.audit(store, ledger, clock, again_s=0)
    finally:
        settled = await archive.sweep(store, ledger, clock)
    return settled


class Killed(Exception):
    """The process died here."""


class Dying:
    """Passes calls on to a store or ledger until the lives it shares with others are used up."""

    def __init__(self, target: object, lives: list[int]) -> None:
        self._target = target
        self._lives = lives

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._target, name)

        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self._lives[0] == 0:
                raise Killed
            self._lives[0] -= 1
            return await method(*args, **kwargs)

        return counted


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


async def opened(store: MemoryStore, ledger: SqlLedger, episode_id: str, **fields: Any) -> EpisodeHead:
    head = EpisodeHead(episode_id=episode_id, **({"task": "t", "created_ms": 1_000_000} | fields))
    stored, _ = await ledger.create_episode(head, None, "")
    await store.open(stored)
    return stored


async def begun(store: MemoryStore, episode_id: str, name: str, deadline_ms: int = 2_000_000) -> Intent:
    intent = Intent(
        call_id=name, episode_id=episode_id, worker="w", deadline_ms=deadline_ms, started_ms=1_000_000, policy="p"
    )
    await store.begin_call(intent, "episode", None)
    return intent


async def called(store: MemoryStore, episode_id: str, number: int) -> Call:
    name = f"{episode_id}-call-{number}"
    await begun(store, episode_id, name)
    recorded = call(name, number, [1, 2, 3 + number], [7, 8], episode_id=episode_id)
    assert await store.end_call(recorded)
    return recorded


async def ended(store: MemoryStore, ledger: SqlLedger, episode_id: str) -> None:
    await ledger.end_episode(episode_id, EpisodeStatus.OK, 1_000_000)
    await store.finish(episode_id, EpisodeStatus.OK)


async def test_an_ended_episode_moves_to_sql_with_its_calls_counters_and_events(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "e")
    calls = [await called(store, "e", number) for number in range(3)]
    await store.add_event("e", Event(at_ms=4, kind="repinned"))
    await ended(store, ledger, "e")
    assert await archive_episode(store, ledger, "e", clock)
    blob = await ledger.get_timeline("e")
    assert blob is not None
    assert list(decode_calls(blob)) == calls
    row = await ledger.get_episode("default", "e")
    assert (row.state, row.versions, row.num_calls, row.num_excluded) == (EpisodeState.ARCHIVED, {"p": 0}, 3, 0)
    assert (row.num_raw_tokens, row.num_distinct_tokens) == (15, 11)
    assert row.events == (Event(at_ms=4, kind="repinned"),)
    clock.at_ms += KEEP_MS
    with pytest.raises(NotFound):
        await store.head("e")


async def test_the_chain_is_closed_over_the_receipts_and_stored_beside_the_calls(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "e")
    calls = [await called(store, "e", number) for number in range(3)]
    await ended(store, ledger, "e")
    assert await archive_episode(store, ledger, "e", clock)
    stored = await ledger.read(lambda connection: connection.execute(select(tables.timelines)).one())
    receipts = decode_receipts(stored.receipts)
    assert receipts == tuple(map(receipt_of, calls))
    assert stored.digest == chain(map(receipt_digest, receipts)).hex()


async def test_an_episode_with_a_call_in_flight_waits_for_it(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "e")
    await begun(store, "e", "slow")
    await ended(store, ledger, "e")
    assert not await archive_episode(store, ledger, "e", clock)
    assert await store.end_call(call("slow", 0, [1], [2], episode_id="e"))
    assert await archive_episode(store, ledger, "e", clock)


async def test_a_process_killed_between_any_two_steps_leaves_what_the_next_one_finishes(
    ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=1))
    for lives in itertools.count():
        store, episode_id = MemoryStore(clock), f"e{lives}"
        await opened(store, ledger, episode_id)
        await called(store, episode_id, 0)
        await store.add_event(episode_id, Event(at_ms=4, kind="repinned"))
        await begun(store, episode_id, f"lost-{lives}", deadline_ms=clock.at_ms)
        await rewarded(ledger, episode_id)
        shared = [lives]
        dying_store, dying_ledger = cast("EpisodeStore", Dying(store, shared)), cast("Ledger", Dying(ledger, shared))
        try:
            moved = await sweep(dying_store, dying_ledger, clock)
        except Killed:
            moved = await sweep(store, ledger, clock)
        row = await ledger.get_episode("default", episode_id)
        assert (row.state, row.status, row.num_calls) == (EpisodeState.ARCHIVED, EpisodeStatus.OK, 2)
        assert [event.kind for event in row.events] == ["repinned"]
        assert [group.state for group in moved] == [GroupState.READY]
        assert await store.finishing() == []
        if shared[0] > 0:
            break
    assert lives > 8


async def test_a_call_whose_worker_died_is_archived_as_lost(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "e")
    await store.heartbeat("w", 5_000)
    await begun(store, "e", "c")
    await ended(store, ledger, "e")
    await sweep(store, ledger, clock)
    assert await ledger.get_timeline("e") is None
    clock.at_ms += 5_000
    await sweep(store, ledger, clock)
    blob = await ledger.get_timeline("e")
    assert blob is not None
    (lost,) = decode_calls(blob)
    assert (lost.state, lost.reason) == (CallState.LOST, Reason.LOST)
    assert (await ledger.get_episode("default", "e")).num_excluded == 1


async def test_an_episode_that_ended_in_sql_only_is_finished_in_the_episode_store(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "e")
    await rewarded(ledger, "e")
    await sweep(store, ledger, clock)
    assert (await ledger.get_episode("default", "e")).state == EpisodeState.ARCHIVED


async def test_an_episode_that_the_episode_store_lost_ends_as_an_infrastructure_error(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.create_episode(EpisodeHead(episode_id="e", task="t", created_ms=clock.at_ms), None, "")
    clock.at_ms += ORPHAN_MS - 1
    await sweep(store, ledger, clock)
    assert (await ledger.get_episode("default", "e")).status is None
    clock.at_ms += 1
    await sweep(store, ledger, clock)
    row = await ledger.get_episode("default", "e")
    assert (row.state, row.status, row.member) == (EpisodeState.ARCHIVED, EpisodeStatus.INFRA_ERROR, None)
    assert [event.kind for event in row.events] == ["lost"]


async def test_calls_lost_after_a_reward_are_reported_and_the_reward_stays(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.create_episode(EpisodeHead(episode_id="e", task="t", created_ms=clock.at_ms), None, "")
    await rewarded(ledger, "e")
    clock.at_ms += ORPHAN_MS
    await sweep(store, ledger, clock)
    row = await ledger.get_episode("default", "e")
    assert (row.state, row.status, row.reward) == (EpisodeState.ARCHIVED, EpisodeStatus.OK, 1.0)
    assert [event.kind for event in row.events] == ["lost"]


async def test_an_episode_whose_time_is_up_ends_and_frees_its_place(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "e", ttl_ms=7_000)
    clock.at_ms += 6_999
    await sweep(store, ledger, clock)
    assert (await ledger.get_episode("default", "e")).status is None
    clock.at_ms += 1
    await sweep(store, ledger, clock)
    row = await ledger.get_episode("default", "e")
    assert (row.state, row.status, row.member) == (EpisodeState.ARCHIVED, EpisodeStatus.INFRA_ERROR, None)
    assert [event.kind for event in row.events] == ["expired"]


async def test_a_deletion_that_stopped_halfway_is_finished_from_either_side(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    for episode_id in ("sql first", "store first"):
        await opened(store, ledger, episode_id)
        await called(store, episode_id, 0)
    await ended(store, ledger, "sql first")
    await ledger.delete_episode("default", "sql first")
    await store.delete("store first")
    await sweep(store, ledger, clock)
    for episode_id in ("sql first", "store first"):
        with pytest.raises(NotFound):
            await ledger.get_episode("default", episode_id)
    assert await store.finishing() == []
    assert await ledger.open_episodes(clock.at_ms + 1) == []


async def test_an_episode_that_sql_never_knew_is_kept_and_reported(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await store.open(EpisodeHead(episode_id="stray"))
    await store.finish("stray", EpisodeStatus.OK)
    await opened(store, ledger, "e")
    await ended(store, ledger, "e")
    with pytest.raises(HoneError, match="stray"):
        await sweep(store, ledger, clock)
    assert (await ledger.get_episode("default", "e")).state == EpisodeState.ARCHIVED
    assert (await store.head("stray")).episode_id == "stray"


async def test_one_episode_that_cannot_be_swept_does_not_stop_the_others(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    await opened(store, ledger, "a")
    await store.finish("a", EpisodeStatus.FAILED)
    await ledger.end_episode("a", EpisodeStatus.OK, 5)
    await opened(store, ledger, "b")
    await rewarded(ledger, "b")
    with pytest.raises(HoneError) as raised:
        await sweep(store, ledger, clock)
    assert isinstance(raised.value.__cause__, Conflict)
    assert (await ledger.get_episode("default", "b")).state == EpisodeState.ARCHIVED


async def test_a_store_that_is_away_ends_the_round(ledger: SqlLedger, clock: Clock) -> None:
    class Away(MemoryStore):
        async def due_calls(self, now_ms: int) -> list[tuple[str, str]]:
            raise Unavailable("Redis does not answer.")

    with pytest.raises(Unavailable):
        await sweep(Away(clock), ledger, clock)


async def test_what_has_ended_does_not_wait_for_the_audit(store: MemoryStore, ledger: SqlLedger, clock: Clock) -> None:
    await opened(store, ledger, "a")
    await ended(store, ledger, "a")
    await opened(store, ledger, "b")
    await rewarded(ledger, "b")
    await archive.sweep(store, ledger, clock)
    assert (await ledger.get_episode("default", "a")).state == EpisodeState.ARCHIVED
    assert (await ledger.get_episode("default", "b")).state == EpisodeState.FINISHING
    await sweep(store, ledger, clock)
    assert (await ledger.get_episode("default", "b")).state == EpisodeState.ARCHIVED


async def test_an_idle_implicit_episode_ends_well_wherever_a_process_is_killed(ledger: SqlLedger, clock: Clock) -> None:
    for lives in itertools.count():
        store, episode_id = MemoryStore(clock), f"e{lives}"
        head = EpisodeHead(episode_id=episode_id, task="t", created_ms=1_000_000, implicit=True)
        await ledger.create_episode(head, None, "")
        await store.open(head, idle_ms=500)
        await called(store, episode_id, 0)
        clock.at_ms = 1_000_499
        await sweep(store, ledger, clock)
        assert (await ledger.get_episode("default", episode_id)).status is None
        clock.at_ms = 1_000_500
        shared = [lives]
        dying_store, dying_ledger = cast("EpisodeStore", Dying(store, shared)), cast("Ledger", Dying(ledger, shared))
        with contextlib.suppress(Killed):
            await sweep(dying_store, dying_ledger, clock)
        await sweep(store, ledger, clock)
        row = await ledger.get_episode("default", episode_id)
        assert (row.state, row.status, row.num_calls) == (EpisodeState.ARCHIVED, EpisodeStatus.OK, 1)
        if shared[0] > 0:
            return


async def test_an_episode_that_is_opened_while_it_is_given_up_goes_on(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    """A clock that jumped makes a moment look like a minute."""
    head, _ = await ledger.create_episode(EpisodeHead(episode_id="ep-1", task="t"), None, "")
    clock.at_ms += ORPHAN_MS

    class Opening:
        """Its driver is quicker than the second look."""

        def __init__(self) -> None:
            self.num_looks = 0

        async def head(self, episode_id: str) -> EpisodeHead:
            self.num_looks += 1
            if self.num_looks == 2:
                await store.open(head)
            return await store.head(episode_id)

    await archive.audit(cast("EpisodeStore", Opening()), ledger, clock, again_s=0)
    assert (await ledger.get_episode("default", "ep-1")).state is EpisodeState.OPEN


async def test_an_episode_that_was_given_up_cannot_be_opened_any_more(
    store: MemoryStore, ledger: SqlLedger, clock: Clock
) -> None:
    """Calls that joined it would never be archived."""
    head, _ = await ledger.create_episode(EpisodeHead(episode_id="ep-1", task="t"), None, "")
    clock.at_ms += ORPHAN_MS
    await archive.audit(store, ledger, clock, again_s=0)
    assert (await ledger.get_episode("default", "ep-1")).status is EpisodeStatus.INFRA_ERROR
    with pytest.raises(Gone):
        await store.open(head)
