"""Which versions were trained on an episode, and on which episodes a version was trained.

What was trained is told by manifests, and by frozen credit while a batch has none; a batch that was dropped trained
nothing. A manifest stays when its episodes are deleted, so a deleted episode can still be asked for. Only episodes of
the caller's tenant are told. Which steps are on the line of a version is worked out in `lines.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, select, tuple_

from tracker import tables
from tracker.batches import read_batch
from tracker.episode_rows import no_episode, row_of
from tracker.errors import BadRequest, NotFound
from tracker.lines import (
    TRAINED,
    CarriedBatch,
    EpisodeLineage,
    StepTaken,
    TrainedEpisode,
    TrainedIn,
    carries,
    line_of,
)
from tracker.manifests import readable_manifest
from tracker.rounds import DROPPED
from tracker.sql import Database
from tracker.types import Batch, VersionState

SCAN: Final = 50
"""Manifests that are read at once where all of a policy have to be looked through."""

UNPUBLISHED: Final = (VersionState.RESERVED, VersionState.LOADING, VersionState.FAILED)


class Lineage(Database):
    """What was trained on what."""

    async def episode_lineage(self, tenant: str, episode_id: str) -> EpisodeLineage:
        """Raises `NotFound`; a deleted episode is found."""
        return await self.read(_episode_lineage, tenant, episode_id)

    async def version_lineage(
        self, tenant: str, policy: str, version: int, limit: int, cursor: str | None
    ) -> tuple[list[CarriedBatch], str | None]:
        """The batches that a version carries, newest first. `NotFound` if there is no such version."""
        return await self.read(_version_lineage, (tenant, policy), version, limit, cursor)


def _episode_lineage(connection: Connection, tenant: str, episode_id: str) -> EpisodeLineage:
    row = row_of(connection, episode_id)
    if row is None or row.tenant != tenant:
        raise no_episode(episode_id)
    is_deleted = row.deleted_ms is not None
    found = _scanned(connection, episode_id) if is_deleted else _of_group(connection, row)
    batches = tuple(told for batch in found for told in _trained_in(connection, batch, episode_id))
    versions = {
        policy: tuple(sorted({one for told in batches if told.policy == policy for one in told.carried_by}))
        for policy in sorted({told.policy for told in batches})
    }
    group = _group(connection, row.group_id)
    return EpisodeLineage(
        episode_id=episode_id,
        is_deleted=is_deleted,
        group_id=row.group_id,
        group_state=None if group is None else group.state,
        reason=None if group is None else group.reason,
        batches=batches,
        versions=versions,
    )


def _group(connection: Connection, group_id: str | None) -> Row[Any] | None:
    return connection.execute(select(tables.groups).where(tables.groups.c.group_id == group_id)).one_or_none()


def _of_group(connection: Connection, episode: Row[Any]) -> list[Batch]:
    batches, shares = tables.batches, tables.batch_groups
    joined = batches.join(shares, shares.c.batch_id == batches.c.batch_id)
    where = (shares.c.group_id == episode.group_id, batches.c.state != DROPPED)
    statement = select(batches).select_from(joined).where(*where).order_by(batches.c.created_ms, batches.c.batch_id)
    return [read_batch(connection, row) for row in connection.execute(statement).all()]


def _scanned(connection: Connection, episode_id: str) -> list[Batch]:
    """The trained batches whose manifest names an episode, looked for in all of them: a deleted one left its group."""
    batches, named = tables.batches, episode_id.encode()
    statement = select(batches).where(batches.c.state == TRAINED).order_by(batches.c.created_ms, batches.c.batch_id)
    with connection.execute(statement.execution_options(yield_per=SCAN)) as result:
        rows = [row for row in result if named in row.manifest]
    return [read_batch(connection, row) for row in rows]


def _trained_in(connection: Connection, batch: Batch, episode_id: str) -> Iterable[TrainedIn]:
    """What a batch has of an episode; nothing if the episode counted for the baseline of its group alone."""
    is_trained = batch.state == TRAINED
    tokens = _tokens(batch)
    num_tokens = None if tokens is None else tokens[episode_id]
    if num_tokens == 0 or (tokens is None and episode_id not in {item.episode_id for item in batch.credit}):
        return
    yield TrainedIn(
        batch_id=batch.batch_id,
        policy=batch.policy,
        epoch=batch.epoch,
        step=batch.step,
        state=batch.state,
        num_tokens=num_tokens,
        version=batch.version,
        carried_by=_carriers(connection, batch) if is_trained else (),
        created_ms=batch.created_ms,
    )


def _tokens(batch: Batch) -> Counter[str] | None:
    """episode_id -> tokens that are trained; `None` where there is no manifest to be read."""
    manifest = readable_manifest(batch.manifest)
    if manifest is None:
        return None
    counted: Counter[str] = Counter()
    for span in manifest.spans:
        counted[span.episode_id] += span.num_tokens
    return counted


def _carriers(connection: Connection, batch: Batch) -> tuple[int, ...]:
    steps, epochs, roots = _history(connection, batch.policy)
    lines = {version: line_of(version, steps, epochs, roots) for version in epochs if epochs[version] >= batch.epoch}
    return tuple(version for version, line in lines.items() if carries(line, batch.epoch, batch.step))


def _history(connection: Connection, policy: str) -> tuple[list[StepTaken], dict[int, int], dict[int, int]]:
    """The trained steps of a policy, the epochs of its versions, and what its epochs began from."""
    batches, versions, rollbacks = tables.batches, tables.versions, tables.rollbacks
    steps = connection.execute(
        select(batches.c.epoch, batches.c.step, batches.c.version).where(
            batches.c.policy == policy, batches.c.state == TRAINED
        )
    )
    epochs = connection.execute(
        select(versions.c.version, versions.c.epoch)
        .where(versions.c.policy == policy, versions.c.state.not_in(UNPUBLISHED))
        .order_by(versions.c.version)
    )
    roots = connection.execute(select(rollbacks.c.epoch, rollbacks.c.version).where(rollbacks.c.policy == policy))
    return (
        [StepTaken(epoch=row.epoch, step=row.step, version=row.version) for row in steps],
        {row.version: row.epoch for row in epochs},
        {row.epoch: row.version for row in roots},
    )


def _version_lineage(
    connection: Connection, owner: tuple[str, str], version: int, limit: int, cursor: str | None
) -> tuple[list[CarriedBatch], str | None]:
    tenant, policy = owner
    steps, epochs, roots = _history(connection, policy)
    if version not in epochs:
        raise NotFound(f"Policy {policy!r} has no version {version} that was trained.", param="version")
    line = line_of(version, steps, epochs, roots)
    carried = [(one.epoch, one.step) for one in steps if carries(line, one.epoch, one.step)]
    page = sorted((place for place in carried if _is_behind(place, cursor)), reverse=True)
    rows = _batches_at(connection, policy, page[:limit])
    told = [_carried(connection, tenant, read_batch(connection, row), version) for row in rows]
    return told, f"{page[limit - 1][0]}-{page[limit - 1][1]}" if len(page) > limit else None


def _is_behind(place: tuple[int, int], cursor: str | None) -> bool:
    """Whether a step (epoch, step) comes after the page that ended with `cursor`."""
    if cursor is None:
        return True
    parts = cursor.split("-")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise BadRequest("Pass next_cursor of the page before, unchanged.", param="cursor")
    return place < (int(parts[0]), int(parts[1]))


def _batches_at(connection: Connection, policy: str, places: Collection[tuple[int, int]]) -> Sequence[Row[Any]]:
    batches = tables.batches
    where: tuple[ColumnElement[bool], ...] = (
        batches.c.policy == policy,
        batches.c.state == TRAINED,
        tuple_(batches.c.epoch, batches.c.step).in_(list(places)),
    )
    statement = select(batches).where(*where).order_by(batches.c.epoch.desc(), batches.c.step.desc())
    return connection.execute(statement).all()


def _carried(connection: Connection, tenant: str, batch: Batch, version: int) -> CarriedBatch:
    tokens = _tokens(batch) or Counter({item.episode_id: 0 for item in batch.credit})
    episodes = tables.episodes
    rows = connection.execute(select(episodes).where(episodes.c.episode_id.in_(list(tokens)))).all()
    own = {row.episode_id: row for row in rows if row.tenant == tenant}
    return CarriedBatch(
        batch_id=batch.batch_id,
        epoch=batch.epoch,
        step=batch.step,
        version=batch.version,
        is_own=batch.version == version,
        created_ms=batch.created_ms,
        num_foreign=len(tokens) - len(own),
        episodes=tuple(
            TrainedEpisode(
                episode_id=name,
                num_tokens=num_tokens,
                is_deleted=own[name].deleted_ms is not None,
                group_id=own[name].group_id,
                run=own[name].run,
                task=own[name].task,
            )
            for name, num_tokens in tokens.items()
            if name in own
        ),
    )
