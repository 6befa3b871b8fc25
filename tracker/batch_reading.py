"""What SQL holds to check a batch by: its manifest, the archives of its groups, and the runs they belong to.

One batch is read at one moment. The manifest is written once, before the step, under the lease's fence; from then on it
only can be read. What it proves is left to `evidence.py` and `verification.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Row, exists, func, select, update

from tracker import tables
from tracker.batches import check_fence, read_batch
from tracker.errors import CorruptRecord, Gone, NotFound
from tracker.evidence import Archived, Fault, Sealed
from tracker.manifests import NO_MANIFEST
from tracker.members import RunCache
from tracker.removal import EVENT, Kept, removed_line, words
from tracker.sql import Database
from tracker.types import Batch, GroupState, Record, RunSettings
from tracker.vault import Vault
from tracker.verification import Removed, Stored
from tracker.wholes import StoredTimeline

RunKey = tuple[str, str]
"""(tenant, run)."""


class _Evidence(Record, frozen=True):
    """What SQL holds of a batch, not opened yet."""

    batch: Batch
    timelines: tuple[tuple[StoredTimeline, RunSettings], ...]
    """With the run of each."""
    gone: dict[str, str]
    """episode_id -> why its tokens are not there any more."""
    deleted: frozenset[str]


class BatchReading(Database):
    """Batches with their evidence."""

    _vault: Vault

    async def archived(self, episode_id: str) -> Archived | None:
        """An archived episode, opened; `None` if there is none. Raises `CorruptRecord`."""
        stored = await self.read(_timeline, episode_id, self._vault)
        return None if stored is None else stored.opened()

    async def sealed(self, episode_id: str) -> Sealed | None:
        """The archive of an episode as it lies there; `None` if there is none."""
        stored = await self.read(_timeline, episode_id, self._vault)
        if stored is None:
            return None
        return Sealed(
            episode_id=episode_id,
            blob=stored.blob,
            chain=stored.digest,
            receipts=stored.receipts,
            shredded=stored.shredded,
        )

    async def archived_of_groups(self, group_ids: Sequence[str]) -> list[StoredTimeline]:
        """The archives of the episodes that have a place in these groups."""
        return await self.read(_timelines_of_groups, group_ids, self._vault)

    async def put_manifest(self, batch: Batch, manifest: bytes) -> None:
        """Store the manifest of a batch that is taken, before its step; one that is stored is kept as it is."""
        await self.write(_put_manifest, batch, manifest)

    async def list_batches(
        self, policy: str | None = None, run: RunKey | None = None, batch_ids: Sequence[str] = ()
    ) -> list[Batch]:
        """Oldest first: all, or those of a policy, of a run, of these ids. `NotFound` names an id that is none."""
        return await self.read(_list_batches, policy, run, batch_ids)

    async def stored_batch(self, batch_id: str) -> Stored:
        """A batch and the archives of its groups, as of one moment; without adapters, which are no business of SQL.

        They are opened after the transaction, in a thread: it grows with the batch, and PostgreSQL ends a transaction
        in which nothing comes for a while.
        """
        return await asyncio.to_thread(_opened, await self.read(_read_batch, batch_id, self._vault))

    async def skipped_groups(self, run: RunKey) -> dict[str, int]:
        """reason -> groups of the run that were not trained at all."""
        return await self.read(_skipped_groups, run)


def _timeline(connection: Connection, episode_id: str, vault: Vault) -> StoredTimeline | None:
    found = _timelines(connection, [tables.timelines.c.episode_id == episode_id], vault)
    return found[0] if found else None


def _timelines_of_groups(connection: Connection, group_ids: Sequence[str], vault: Vault) -> list[StoredTimeline]:
    seated = [tables.episodes.c.group_id.in_(group_ids), tables.episodes.c.place.is_not(None)]
    return _timelines(connection, seated, vault)


def timelines_of(connection: Connection, episode_ids: Sequence[str], vault: Vault) -> list[StoredTimeline]:
    """The archives of these episodes, in no order."""
    return _timelines(connection, [tables.timelines.c.episode_id.in_(episode_ids)], vault)


def _timelines(connection: Connection, where: Sequence[ColumnElement[bool]], vault: Vault) -> list[StoredTimeline]:
    timelines, episodes = tables.timelines, tables.episodes
    joined = timelines.join(episodes, timelines.c.episode_id == episodes.c.episode_id)
    statement = select(timelines, episodes.c.tenant, episodes.c.run, episodes.c.kept).select_from(joined).where(*where)
    ordered = statement.order_by(episodes.c.group_id, episodes.c.place, episodes.c.episode_id)
    return [_unsealed(connection, StoredTimeline(**_fields(row)), vault) for row in connection.execute(ordered).all()]


def _unsealed(connection: Connection, stored: StoredTimeline, vault: Vault) -> StoredTimeline:
    try:
        blob = vault.opened(connection, stored.tenant, (stored.episode_id, stored.digest), stored.blob)
    except Gone as gone:
        return replace(stored, blob=b"", shredded=gone.message)
    except CorruptRecord:
        return replace(stored, blob=b"")  # whoever opens it is told, with the others' troubles
    return replace(stored, blob=blob)


def _put_manifest(connection: Connection, batch: Batch, manifest: bytes) -> None:
    check_fence(connection, batch.policy, batch.fence)
    batches = tables.batches
    statement = update(batches).where(batches.c.batch_id == batch.batch_id, batches.c.manifest == NO_MANIFEST)
    connection.execute(statement.values(manifest=manifest))


def _list_batches(
    connection: Connection, policy: str | None, run: RunKey | None, batch_ids: Sequence[str]
) -> list[Batch]:
    batches = tables.batches
    where: list[ColumnElement[bool]] = [] if policy is None else [batches.c.policy == policy]
    where += [] if run is None else [_is_of_run(run)]
    where += [batches.c.batch_id.in_(batch_ids)] if batch_ids else []
    statement = select(batches).where(*where).order_by(batches.c.created_ms, batches.c.step, batches.c.batch_id)
    found = [read_batch(connection, row) for row in connection.execute(statement).all()]
    missing = set(batch_ids) - {batch.batch_id for batch in found}
    if missing:
        raise NotFound(f"There is no batch {sorted(missing)[0]!r} of what was asked for.")
    return found


def _is_of_run(run: RunKey) -> ColumnElement[bool]:
    shares, groups = tables.batch_groups, tables.groups
    return exists().where(
        shares.c.batch_id == tables.batches.c.batch_id,
        shares.c.group_id == groups.c.group_id,
        groups.c.tenant == run[0],
        groups.c.run == run[1],
    )


def _read_batch(connection: Connection, batch_id: str, vault: Vault) -> _Evidence:
    (batch,) = _list_batches(connection, None, None, [batch_id])
    runs = RunCache(connection)
    timelines = _timelines_of_groups(connection, batch.group_ids, vault)
    return _Evidence(
        batch=batch,
        timelines=tuple((stored, runs.get(stored.tenant, stored.run)) for stored in timelines),
        gone={
            stored.episode_id: stored.shredded or _removed(connection, stored.episode_id)
            for stored in timelines
            if stored.shredded or not stored.kept & Kept.TOKENS
        },
        deleted=_deleted(connection, {item.episode_id for item in batch.credit}),
    )


def _opened(evidence: _Evidence) -> Stored:
    episodes: dict[str, tuple[Archived, RunSettings]] = {}
    gone: dict[str, Removed] = {}
    troubles: list[Fault] = []
    for stored, run in evidence.timelines:
        why = evidence.gone.get(stored.episode_id)
        try:
            if why is None:
                episodes[stored.episode_id] = stored.opened(), run
            else:
                gone[stored.episode_id] = Removed(why=why, sealed=stored.sealed())
        except CorruptRecord as error:
            # The message names the episode already.
            what = error.message.removeprefix(f"episode {stored.episode_id}: ")
            troubles.append(Fault(what=what, episode_id=stored.episode_id))
    return Stored(
        batch=evidence.batch, episodes=episodes, troubles=tuple(troubles), deleted=evidence.deleted, gone=gone
    )


def _removed(connection: Connection, episode_id: str) -> str:
    """When retention removed the tokens of an episode, for people."""
    events = tables.episode_events
    where = (events.c.episode_id == episode_id, events.c.kind == EVENT)
    rows = connection.execute(select(events).where(*where).order_by(events.c.seq)).all()
    return removed_line(next((row.at_ms for row in rows if words(Kept.ALL - Kept.TOKENS)[0] in row.detail), None))


def _deleted(connection: Connection, episode_ids: set[str]) -> frozenset[str]:
    """Those that were deleted on request, which leaves a row that says so."""
    episodes = tables.episodes
    where = (episodes.c.episode_id.in_(episode_ids), episodes.c.deleted_ms.is_not(None))
    return frozenset(connection.execute(select(episodes.c.episode_id).where(*where)).scalars())


def _skipped_groups(connection: Connection, run: RunKey) -> dict[str, int]:
    groups = tables.groups
    where = (groups.c.tenant == run[0], groups.c.run == run[1], groups.c.state == GroupState.SKIPPED)
    statement = select(groups.c.reason, func.count()).where(*where).group_by(groups.c.reason).order_by(groups.c.reason)
    return {str(reason): int(number) for reason, number in connection.execute(statement)}


def _fields(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
