"""The episodes of the ledger: their creation, their end, their archive, and what is left of a deleted one.

The row exists before anything is in the episode store and outlives it. An id is used once: a deleted episode stays as
a row without content, so the id is refused for ever. How rows are found and told is in `episode_rows.py`, places in
groups are given in `rounds.py`, lists are in `finding.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from tracker import tables
from tracker.arms import draw_arms, pack_arms
from tracker.clock import Clock
from tracker.episode_rows import (
    COUNTERS,
    claim,
    commit_end,
    episode_rows,
    find_episode,
    head_of,
    lock_episode,
    no_episode,
    row_of,
    set_episode,
)
from tracker.errors import BadRequest, Conflict, Gone
from tracker.families import check_task
from tracker.in_flight import refuse_if_full
from tracker.registry import freeze_run, lock_run
from tracker.rounds import DONE, settle_shares, take_place, task_digest
from tracker.sql import Database, insert_new
from tracker.trial_rows import draws, note_arms
from tracker.types import (
    MAX_TASK_CHARS,
    EpisodeHead,
    EpisodeRow,
    EpisodeState,
    EpisodeStatus,
    Event,
    GroupState,
    Spent,
)
from tracker.vault import Vault


class Episodes(Database):
    """Episodes, their events and their archived timelines."""

    _clock: Clock
    _vault: Vault

    async def create_episode(
        self, head: EpisodeHead, idempotency_key: str | None, body_digest: str, *, bounded: bool = False
    ) -> tuple[EpisodeHead, bool]:
        """Insert and give it a place in the open round of (run, task), in one transaction; freezes the run.

        Returns the stored head (with `group_id`; None in eval runs) and whether it is new. The same idempotency key
        and digest give the same head back, also when it has ended; another digest raises `Conflict`, a deleted
        episode `Gone`. A task of none of the run's families is a `BadRequest`. `bounded`: `TooManyRequests` where it
        would need another round and what is in flight is as much as can be trained before it is too stale.
        """
        if len(head.task) > MAX_TASK_CHARS:
            raise BadRequest(f"A task has at most {MAX_TASK_CHARS} characters.", param="task")
        return await self.write(_create, head, (idempotency_key, body_digest), self._clock.now_ms(), bounded)

    async def get_episode(self, tenant: str, episode_id: str) -> EpisodeRow:
        return await self.read(_get, tenant, episode_id)

    async def open_episodes(self, older_than_ms: int) -> list[EpisodeRow]:
        """Episodes of every tenant not archived yet and created before that time, oldest first."""
        return await self.read(_open, older_than_ms)

    async def end_episode(self, episode_id: str, status: EpisodeStatus, at_ms: int) -> None:
        """Commit that it ends. Same status again: no-op; another: `Conflict`. Frees its place on `infra_error` and
        `cancelled` while the round is open."""
        await self.write(_end, episode_id, status, at_ms)

    async def archive_episode(self, row: EpisodeRow, blob: bytes, digest: str, receipts: bytes | None = None) -> bool:
        """In one transaction: insert the timeline, state archived with the counters and versions of `row`. False if it
        was archived or deleted before."""
        timeline = {"blob": blob, "digest": digest, "receipts": receipts}
        return await self.write(_archive, row, timeline, self._vault)

    async def get_timeline(self, episode_id: str) -> bytes | None:
        """The archived blob; `Gone` if it was shredded."""
        return await self.read(get_timeline, episode_id, self._vault)

    async def delete_episode(self, tenant: str, episode_id: str) -> None:
        """Only the id stays, so that it is never used again."""
        await self.write(_delete, tenant, episode_id, self._clock.now_ms())

    async def add_event(self, episode_id: str, event: Event) -> None:
        """Note what happened; the same event again is a no-op."""
        await self.write(add_event, episode_id, event)


def add_event(connection: Connection, episode_id: str, event: Event) -> None:
    table = tables.episode_events
    same = (
        table.c.episode_id == episode_id,
        table.c.at_ms == event.at_ms,
        table.c.kind == event.kind,
        table.c.detail == event.detail,
    )
    lock_episode(connection, episode_id)
    if connection.execute(select(table.c.seq).where(*same).limit(1)).one_or_none() is None:
        values = {"episode_id": episode_id, "at_ms": event.at_ms, "kind": event.kind, "detail": event.detail}
        connection.execute(insert(table).values(values))


def _create(
    connection: Connection, head: EpisodeHead, repeats: tuple[str | None, str], now_ms: int, bounded: bool
) -> tuple[EpisodeHead, bool]:
    key, body_digest = repeats
    if key is not None:
        before = claim(connection, head.tenant, "episode", key, (body_digest, head.episode_id))
        if before is not None:
            return _stored_head(connection, head.tenant, before), False
    run = lock_run(connection, head.tenant, head.run, now_ms)
    if row_of(connection, head.episode_id) is not None:
        return _stored_head(connection, head.tenant, head.episode_id), False
    check_task(head.task, run)
    if bounded:
        refuse_if_full(connection, head, run, now_ms)
    freeze_run(connection, head.tenant, head.run)
    group_id, place, arms = None, None, ()
    if run.mode == "train" and not head.implicit:
        group_id, place, arms = take_place(connection, head, run, head.created_ms)
        arms = () if head.version is not None else arms
    elif run.mode == "train":
        arms = draw_arms(draws(connection, head.policy), head.episode_id)
    values = {name: getattr(head, name) for name in EpisodeHead.__struct_fields__} | {
        "task_digest": task_digest(head.task),
        "group_id": group_id,
        "place": place,
        "state": EpisodeState.OPEN,
        "arms": pack_arms(arms),
    }
    row = connection.execute(insert(tables.episodes).values(values).returning(tables.episodes)).one()
    note_arms(connection, head.episode_id, arms)
    return head_of(row), True


def _stored_head(connection: Connection, tenant: str, episode_id: str) -> EpisodeHead:
    row = row_of(connection, episode_id)
    if row is None or row.tenant != tenant:
        raise Conflict(f"The episode id {episode_id!r} is taken.", param="episode_id")
    if row.deleted_ms is not None:
        raise Gone(f"Episode {episode_id!r} was deleted.", code="episode_deleted")
    return head_of(row)


def _get(connection: Connection, tenant: str, episode_id: str) -> EpisodeRow:
    return episode_rows(connection, [find_episode(connection, tenant, episode_id)])[0]


def _open(connection: Connection, older_than_ms: int) -> list[EpisodeRow]:
    episodes = tables.episodes
    where = (
        episodes.c.state != EpisodeState.ARCHIVED,
        episodes.c.created_ms < older_than_ms,
        episodes.c.deleted_ms.is_(None),
    )
    statement = select(episodes).where(*where).order_by(episodes.c.created_ms, episodes.c.episode_id)
    return episode_rows(connection, connection.execute(statement).all())


def _end(connection: Connection, episode_id: str, status: EpisodeStatus, at_ms: int) -> None:
    locked = lock_episode(connection, episode_id)
    ended = locked[0].status
    if ended is None:
        commit_end(connection, locked, status, at_ms)
    elif ended != status:
        raise Conflict(f"Episode {episode_id!r} ended as {ended} and cannot end as {status}.", param="status")


def _archive(connection: Connection, row: EpisodeRow, timeline: dict[str, Any], vault: Vault) -> bool:
    episode_id = row.head.episode_id
    known = row_of(connection, episode_id)
    if known is None:
        raise no_episode(episode_id)
    if known.deleted_ms is not None:
        return False
    stored, _ = lock_episode(connection, episode_id)
    if stored.state == EpisodeState.ARCHIVED:
        return False
    blob = vault.sealed(connection, stored, timeline["blob"], timeline["digest"])
    insert_new(connection, tables.timelines, {"episode_id": episode_id, **timeline, "blob": blob})
    for policy, version in row.versions.items():
        values = {"episode_id": episode_id, "policy": policy, "version": version}
        insert_new(connection, tables.episode_policies, values)
    for key_id in row.key_ids:
        insert_new(connection, tables.episode_keys, {"key_id": key_id, "episode_id": episode_id})
    for kind in row.kinds:
        insert_new(connection, tables.call_kinds, {"episode_id": episode_id, **msgspec.structs.asdict(kind)})
    for policy, (version, numbers) in row.measures.items():
        values = {"episode_id": episode_id, "policy": policy, "version": version, "archived_ms": row.archived_ms}
        insert_new(connection, tables.measures, values | {"numbers": msgspec.json.encode(numbers)})
    counters = {name: getattr(row, name) for name in COUNTERS}
    ended = {"status": stored.status or row.status, "ended_ms": stored.ended_ms or row.ended_ms}
    archived = {"state": EpisodeState.ARCHIVED, "archived_ms": row.archived_ms, "has_kinds": True}
    spent = {} if row.spent is None else msgspec.structs.asdict(row.spent)
    set_episode(connection, episode_id, **counters, **spent, **ended, **archived)
    return True


def get_timeline(connection: Connection, episode_id: str, vault: Vault) -> bytes | None:
    """The blob of an archived episode; raises `Gone` if it was shredded."""
    timelines, episodes = tables.timelines, tables.episodes
    joined = timelines.join(episodes, timelines.c.episode_id == episodes.c.episode_id)
    statement = select(timelines.c.blob, timelines.c.digest, episodes.c.tenant).select_from(joined)
    row = connection.execute(statement.where(timelines.c.episode_id == episode_id)).one_or_none()
    return None if row is None else vault.opened(connection, row.tenant, (episode_id, row.digest), row.blob)


def put_timeline(connection: Connection, row: Row[Any], blob: bytes, vault: Vault) -> None:
    """Put another blob in the place of an archived episode's; what it was sealed with stays."""
    timelines = tables.timelines
    where = timelines.c.episode_id == row.episode_id
    digest = connection.execute(select(timelines.c.digest).where(where)).scalar_one()
    stored = vault.sealed(connection, row, blob, digest)
    connection.execute(update(timelines).where(where).values(blob=stored))


def _delete(connection: Connection, tenant: str, episode_id: str, now_ms: int) -> None:
    known = row_of(connection, episode_id)
    if known is None or known.tenant != tenant:
        raise no_episode(episode_id)
    if known.deleted_ms is not None:
        return
    _, group = lock_episode(connection, episode_id)
    for table in (
        tables.rewards,
        tables.episode_events,
        tables.timelines,
        tables.episode_policies,
        tables.episode_keys,
        tables.call_kinds,
        tables.standings,
        tables.measures,
        tables.trial_episodes,
    ):
        connection.execute(delete(table).where(table.c.episode_id == episode_id))
    set_episode(connection, episode_id, **_emptied(now_ms))
    if group is not None and group.state != GroupState.OPEN and group.state not in DONE:
        settle_shares(connection, group.group_id)


def _emptied(now_ms: int) -> dict[str, Any]:
    """What is left of a deleted episode: that it was there."""
    content = {"task": "", "task_digest": "", "metadata": b"null", "policy": None, "version": None, "ttl_ms": None}
    seat = {"group_id": None, "place": None, "key_id": None}
    end = {"state": EpisodeState.ARCHIVED, "status": None, "deleted_ms": now_ms}
    found_by = {"score": None, "is_scored": True}
    spent = dict.fromkeys(Spent.__struct_fields__)
    return content | seat | end | found_by | spent | dict.fromkeys(COUNTERS, 0)
