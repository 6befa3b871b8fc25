"""Removing what a run does not keep any longer from its archived episodes.

Nothing is removed while it may still be trained: an episode whose group is open, ready or taken is left alone until
that is settled. Each episode is one transaction, under the locks of its group and its row, and says what it removed in
an event; so all gateways may do this at once, and one that dies leaves nothing half done. Receipts, chains, manifests
and counts stay. An archive that cannot be read is left as it is, since it cannot be sorted and somebody may mend it:
an event and the log say so, and it is looked at again a day later. What removing means for a call is in `removal.py`;
how often it is done is left to the gateway.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, exists, insert, or_, select, update

from tracker import tables
from tracker.clock import Clock
from tracker.codec import decode_calls, encode_calls
from tracker.episode_rows import lock_episode, set_episode
from tracker.episodes import add_event, get_timeline, put_timeline
from tracker.errors import CorruptRecord, Gone, NotFound
from tracker.registry import all_runs
from tracker.removal import DAY_MS, EVENT, Kept, cutoffs, due, without, words
from tracker.rounds import DONE
from tracker.sql import Database
from tracker.types import EpisodeState, Event, Record, Retention, RunSettings
from tracker.vault import Vault

LOG: Final = logging.getLogger("hone.retention")
UNREADABLE: Final = "retention_left"
"""The kind of the event that tells what could not be removed; its time is when that was last tried."""
MAX_EPISODES: Final = 100
"""How many one round looks at, so that it never keeps the database for long."""


class Due(Record, frozen=True):
    """An episode of which something is to be removed."""

    episode_id: str
    kept: int
    retention: Retention
    archived_ms: int


class Retaining(Database):
    """What runs keep, and no longer."""

    _clock: Clock
    _vault: Vault

    async def apply_retention(self, limit: int = MAX_EPISODES) -> int:
        """Remove what is due from up to `limit` episodes, the longest archived first; how many were changed."""
        now_ms = self._clock.now_ms()
        found = await self.read(_find_due, now_ms, limit)
        changed = [await self._remove(one, now_ms) for one in found]
        return sum(changed)

    async def _remove(self, one: Due, now_ms: int) -> bool:
        """The blob is rewritten in a thread, outside of any transaction; it is stored if nothing changed meanwhile."""
        gone = due(one.retention, one.archived_ms, one.kept, now_ms)
        try:
            blob = await self._rest(one, gone)
        except CorruptRecord as error:
            return await self._leave(one, gone, error.message, now_ms)
        return await self._commit(one, gone, blob, now_ms)

    async def _rest(self, one: Due, gone: Kept) -> bytes | None:
        """The blob without what goes; `None` where there is none, or nothing of it goes."""
        if not gone & (Kept.TOKENS | Kept.TEXT):
            return None
        try:
            before = await self.read(get_timeline, one.episode_id, self._vault)
        except Gone:
            return None  # it was shredded: there is nothing to take out any more
        return None if before is None else await asyncio.to_thread(_rewritten, before, gone)

    async def _leave(self, one: Due, gone: Kept, why: str, now_ms: int) -> bool:
        """Remove what stands outside of an archive that cannot be read, and say of the rest that it was left."""
        parts = ", ".join(words(Kept.ALL & ~(gone & ~Kept.METADATA)))
        LOG.warning("retention leaves %s of episode %s: %s", parts, one.episode_id, why)
        try:
            await self.write(_tell_left, one.episode_id, f"{parts}: {why}", now_ms)
        except NotFound:
            return False
        return await self._commit(one, gone & Kept.METADATA, None, now_ms)

    async def _commit(self, one: Due, gone: Kept, blob: bytes | None, now_ms: int) -> bool:
        try:
            return await self.write(_commit, one, gone, (blob, self._vault), now_ms)
        except NotFound:
            return False  # it was deleted meanwhile


def _rewritten(blob: bytes, gone: Kept) -> bytes:
    return encode_calls(without(decode_calls(blob), gone))


def _find_due(connection: Connection, now_ms: int, limit: int) -> list[Due]:
    found: dict[str, Due] = {}
    for tenant, run in all_runs(connection):
        for part, until_ms in cutoffs(run.retention, now_ms).items():
            statement = _due_in(tenant, run, part, until_ms, now_ms).limit(limit - len(found))
            for row in connection.execute(statement):
                found[row.episode_id] = Due(
                    episode_id=row.episode_id, kept=row.kept, retention=run.retention, archived_ms=row.archived_ms
                )
            if len(found) >= limit:
                return list(found.values())
    return list(found.values())


def _due_in(tenant: str, run: RunSettings, part: Kept, until_ms: int, now_ms: int) -> Select[str, int, int]:
    """The episodes of a run of which this part is due; the index has those that still have it together."""
    episodes, groups, events = tables.episodes, tables.groups, tables.episode_events
    left = (events.c.episode_id == episodes.c.episode_id, events.c.kind == UNREADABLE)
    with_part = [bits for bits in range(Kept.ALL + 1) if bits & part]
    return (
        select(episodes.c.episode_id, episodes.c.kept, episodes.c.archived_ms)
        .select_from(episodes.outerjoin(groups, groups.c.group_id == episodes.c.group_id))
        .where(
            episodes.c.tenant == tenant,
            episodes.c.run == run.run,
            episodes.c.kept.in_(with_part),
            episodes.c.archived_ms <= until_ms,
            episodes.c.deleted_ms.is_(None),
            or_(groups.c.group_id.is_(None), groups.c.state.in_(DONE)),
            ~exists().where(*left, events.c.at_ms > now_ms - DAY_MS),
        )
        .order_by(episodes.c.archived_ms, episodes.c.episode_id)
    )


def _commit(connection: Connection, one: Due, gone: Kept, left: tuple[bytes | None, Vault], now_ms: int) -> bool:
    """Store what is left, if the episode is still what was looked at and may not be trained any more."""
    row, group = lock_episode(connection, one.episode_id)
    if row.kept != one.kept or row.state != EpisodeState.ARCHIVED or not gone or not _is_settled(group):
        return False
    blob, vault = left
    if blob is not None:
        put_timeline(connection, row, blob, vault)
    if gone & Kept.METADATA:
        _forget_metadata(connection, one.episode_id)
    kept = one.kept & ~gone
    set_episode(connection, one.episode_id, kept=kept)
    removed = ", ".join(word for word in words(kept) if word not in words(one.kept))
    add_event(connection, one.episode_id, Event(at_ms=now_ms, kind=EVENT, detail=removed))
    return True


def _tell_left(connection: Connection, episode_id: str, detail: str, now_ms: int) -> None:
    """Say what could not be removed and why, in the one event of its kind."""
    events = tables.episode_events
    told = {"at_ms": now_ms, "detail": detail}
    lock_episode(connection, episode_id)
    same = (events.c.episode_id == episode_id, events.c.kind == UNREADABLE)
    if connection.execute(update(events).where(*same).values(told)).rowcount == 0:
        connection.execute(insert(events).values(episode_id=episode_id, kind=UNREADABLE, **told))


def _is_settled(group: Row[Any] | None) -> bool:
    return group is None or group.state in DONE


def _forget_metadata(connection: Connection, episode_id: str) -> None:
    rewards = tables.rewards
    set_episode(connection, episode_id, metadata=b"null")
    where = rewards.c.episode_id == episode_id
    connection.execute(update(rewards).where(where).values(metadata=b"null", source=""))
