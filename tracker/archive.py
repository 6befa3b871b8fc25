"""From the episode store to the archive in SQL, and the sweeping that brings every episode there.

`archive_episode` seals an episode, reads all of it, and commits it to SQL in one transaction; only then may the episode
store let it go. Each step is safe to repeat and is derived from what is stored, so a process that dies between two of
them leaves something that the next sweep finishes, in any gateway. Episodes that one sweep cannot finish do not keep it
from the others; what went wrong is raised when it is through. `sweep` does what an ended episode waits for; `audit`
looks at every open one, takes longer, and keeps nobody waiting. When they run is left to their owner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tracker.clock import Clock
from tracker.codec import encode_calls
from tracker.errors import Gone, HoneError, NotFound, Unavailable
from tracker.exclusion import exclusions
from tracker.measures import measure
from tracker.outcomes import spent_on
from tracker.receipts import seal
from tracker.samples import counts, kinds_of
from tracker.store import EpisodeStore, EpisodeView, Ledger
from tracker.types import Call, EpisodeRow, EpisodeState, EpisodeStatus, Event, Group, Reason, Record, RunSettings

KEEP_MS: Final = 600_000
"""How long the episode store keeps an archived episode: late callers are told that it ended, not that it is unknown."""
Tell = Callable[[Mapping[Reason, int]], None]
ORPHAN_MS: Final = 60_000
"""How long an episode may stand in SQL alone: it is created there first."""
LOOK_AGAIN_S: Final = 6.0
"""Before an episode that stands in SQL alone is given up: clocks jump, and whoever is just opening it has done so or
failed by then."""


SESSION: Final = "session:"
"""What the id of a session key begins with, before that of its episode."""


class Packed(Record, frozen=True):
    """An episode as SQL takes it."""

    row: EpisodeRow
    blob: bytes
    digest: str
    """The chain over the receipts of its calls, in order of `index` (hex)."""
    receipts: bytes = b""
    excluded: dict[Reason, int] = msgspec.field(default_factory=dict[Reason, int])
    """reason -> calls of which no choice is trained."""


def nobody(reasons: Mapping[Reason, int]) -> None:
    """Whoever counts nothing."""


async def sweep(store: EpisodeStore, ledger: Ledger, clock: Clock, tell: Tell = nobody) -> list[Group]:
    """What ended episodes wait for, each step in the order that leads to the next; the groups that were settled.

    Of each episode that is archived `tell` hears how many calls are not trained, by reason.
    """
    await abandon_due(store, clock.now_ms())
    troubles = await archive_finishing(store, ledger, clock, tell)
    settled = await ledger.settle_groups(clock.now_ms())
    _raise_first(troubles)
    return settled


async def audit(store: EpisodeStore, ledger: Ledger, clock: Clock, again_s: float = LOOK_AGAIN_S) -> None:
    """Compare what SQL holds as not archived with the episode store, and end what has no future."""
    rows = await ledger.open_episodes(clock.now_ms() + 1)
    alone: list[EpisodeRow] = []
    troubles = await _each(_audit(store, ledger, row, clock.now_ms(), alone) for row in rows)
    if alone:
        await asyncio.sleep(again_s)
        troubles += await _each(_give_up(store, ledger, row, clock.now_ms()) for row in alone)
    _raise_first(troubles)


async def archive_episode(
    store: EpisodeStore, ledger: Ledger, episode_id: str, clock: Clock, tell: Tell = nobody
) -> bool:
    """Seal the episode and move it to SQL; False while calls are in flight. Safe to repeat at any point."""
    if not await store.seal(episode_id):
        return False
    if await _commit(ledger, await store.view(episode_id), clock.now_ms(), tell):
        await store.expire(episode_id, KEEP_MS)
    else:
        await store.delete(episode_id)  # it was deleted from SQL, and whoever did so died before this
    return True


async def abandon_due(store: EpisodeStore, now_ms: int) -> None:
    """Calls whose worker is gone or whose deadline passed become lost calls: their episodes need not wait for them."""
    for episode_id, call_id in await store.due_calls(now_ms):
        await store.abandon_call(episode_id, call_id, now_ms)


async def archive_finishing(store: EpisodeStore, ledger: Ledger, clock: Clock, tell: Tell = nobody) -> list[HoneError]:
    """Archive what has ended and has no call in flight any more; what kept some of them from it."""
    finishing = await store.finishing()
    return await _each(archive_episode(store, ledger, episode_id, clock, tell) for episode_id in finishing)


def packed(view: EpisodeView, run: RunSettings, now_ms: int) -> Packed:
    """What SQL takes of a sealed episode."""
    numbers = counts(view.calls, run)
    row = EpisodeRow(
        head=view.head,
        state=EpisodeState.ARCHIVED,
        status=view.status,
        versions=_versions(view.calls) | view.pins,
        num_calls=numbers.num_calls,
        num_samples=numbers.num_samples,
        num_excluded=numbers.num_excluded,
        num_truncated=numbers.num_truncated,
        num_raw_tokens=numbers.num_raw_tokens,
        num_distinct_tokens=numbers.num_distinct_tokens,
        ended_ms=now_ms,
        archived_ms=now_ms,
        key_ids=key_ids_of(view.calls),
        measures=dict(measure(view.calls)),
        kinds=kinds_of(view.calls),
        spent=spent_on(view.calls),
    )
    digest, receipts = seal(view.calls)
    return Packed(
        row=row, blob=encode_calls(view.calls), digest=digest, receipts=receipts, excluded=_reasons(view.calls, run)
    )


async def _commit(ledger: Ledger, view: EpisodeView, now_ms: int, tell: Tell = nobody) -> bool:
    """Have SQL hold the episode; False if it was deleted there. A thread packs: the work grows with the episode."""
    head = view.head
    run = await ledger.get_run(head.tenant, head.run)
    episode = await asyncio.to_thread(packed, view, run, now_ms)
    if not await _archive(ledger, episode) and await _is_deleted(ledger, view):
        return False
    tell(episode.excluded)
    for event in view.events:
        await ledger.add_event(head.episode_id, event)
    return True


async def _archive(ledger: Ledger, episode: Packed) -> bool:
    """An episode that SQL never heard of is no reason to let its calls go."""
    try:
        return await ledger.archive_episode(episode.row, episode.blob, episode.digest, episode.receipts)
    except NotFound as error:
        raise HoneError(f"Episode {episode.row.head.episode_id} is not in SQL and was not archived.") from error


async def _is_deleted(ledger: Ledger, view: EpisodeView) -> bool:
    try:
        await ledger.get_episode(view.head.tenant, view.head.episode_id)
    except NotFound:
        return True
    return False


async def _audit(store: EpisodeStore, ledger: Ledger, row: EpisodeRow, now_ms: int, alone: list[EpisodeRow]) -> None:
    """End one episode in the episode store if it ended in SQL, and in both if its time is up. One whose calls are gone
    is put down in `alone`.

    Whether an implicit one was idle for too long only the episode store can tell, so that is where it ends first; SQL
    may hear of it with the archive."""
    head = row.head
    status = row.status
    if status is None and head.ttl_ms is not None and now_ms >= head.created_ms + head.ttl_ms:
        await ledger.add_event(head.episode_id, Event(at_ms=head.created_ms + head.ttl_ms, kind="expired"))
        await ledger.end_episode(head.episode_id, EpisodeStatus.INFRA_ERROR, now_ms)
        status = EpisodeStatus.INFRA_ERROR
    try:
        if status is not None:
            await store.finish(head.episode_id, status)
        elif not head.implicit:
            await store.head(head.episode_id)
        elif await store.end_idle(head.episode_id, now_ms):
            await ledger.end_episode(head.episode_id, EpisodeStatus.OK, now_ms)
    except Gone:
        await ledger.delete_episode(head.tenant, head.episode_id)  # its deletion stopped halfway
    except NotFound:
        if now_ms - head.created_ms >= ORPHAN_MS:
            alone.append(msgspec.structs.replace(row, status=status))


async def _give_up(store: EpisodeStore, ledger: Ledger, row: EpisodeRow, now_ms: int) -> None:
    """End an episode that the episode store still does not hold. A tombstone keeps out whoever opens it too late: calls
    that joined it then would never be archived."""
    try:
        await store.head(row.head.episode_id)
    except NotFound:
        await _archive_orphan(ledger, row, now_ms)
        await store.delete(row.head.episode_id)


async def _archive_orphan(ledger: Ledger, row: EpisodeRow, now_ms: int) -> None:
    """The episode store does not know the episode: whatever calls it had are lost, which is said, not hidden."""
    episode_id = row.head.episode_id
    if row.status is None:
        await ledger.end_episode(episode_id, EpisodeStatus.INFRA_ERROR, now_ms)
    detail = "the episode store holds nothing of this episode"
    await ledger.add_event(episode_id, Event(at_ms=row.ended_ms or row.head.created_ms, kind="lost", detail=detail))
    status = row.status or EpisodeStatus.INFRA_ERROR
    view = EpisodeView(head=row.head, state=EpisodeState.SEALED, status=status, calls=(), intents=(), pins={})
    await _commit(ledger, view, now_ms)


async def _each(steps: Iterable[Awaitable[object]]) -> list[HoneError]:
    """Take every step; an episode that vanished meanwhile needs none. A store that is away ends the round at once."""
    troubles: list[HoneError] = []
    for step in steps:
        try:
            await step
        except (NotFound, Gone):
            continue
        except Unavailable:
            raise
        except HoneError as trouble:
            troubles.append(trouble)
    return troubles


def _raise_first(troubles: list[HoneError]) -> None:
    if troubles:
        raise HoneError(f"{len(troubles)} episodes could not be swept: {troubles[0].message}") from troubles[0]


def key_ids_of(calls: Iterable[Call]) -> tuple[str, ...]:
    """The API keys that calls were made with; a session key is its own episode's alone."""
    return tuple(sorted({call.key_id for call in calls if call.key_id and not call.key_id.startswith(SESSION)}))


def _reasons(calls: Sequence[Call], run: RunSettings) -> dict[Reason, int]:
    """Calls of which no choice is trained, by the reason of their first."""
    reasons = exclusions(calls, run)
    found = ([reasons.get((call.call_id, choice.index)) for choice in call.choices] for call in calls if call.choices)
    empty = (reasons[call.call_id, 0] for call in calls if not call.choices)
    whole = (each[0] for each in found if all(each))
    return dict(Counter(reason for reason in (*whole, *empty) if reason is not None))


def _versions(calls: Iterable[Call]) -> dict[str, int]:
    """policy -> version of its last call."""
    return {call.policy: call.version for call in calls if call.policy is not None}
