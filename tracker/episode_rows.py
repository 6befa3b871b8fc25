"""The rows of episodes: how they are found, locked, changed and told, and the lists and keys that lead to them.

A row is looked up by (tenant, id); one that was deleted, or is another tenant's, is not found. Before anything is
decided on an episode its group is locked, then the episode itself. Functions over a connection; `episodes.py` and
`rewards.py` say what happens to a row and when.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, select, tuple_, update

from tracker import tables
from tracker.arms import unpack_arms
from tracker.credit import episode_reward
from tracker.errors import BadRequest, Conflict, NotFound
from tracker.members import PLACELESS, RunCache, collected, rewards_of
from tracker.removal import words
from tracker.rounds import free_place, lock_group
from tracker.sql import insert_new
from tracker.types import ID_PATTERN, EpisodeHead, EpisodeRow, EpisodeState, EpisodeStatus, Event, GroupState, Spent

CURSOR: Final = rf"([0-9]{{1,15}}):({ID_PATTERN})"
COUNTERS: Final = (
    "num_calls",
    "num_samples",
    "num_excluded",
    "num_truncated",
    "num_raw_tokens",
    "num_distinct_tokens",
)


def claim(connection: Connection, tenant: str, kind: str, key: str, values: tuple[str, str]) -> str | None:
    """Bind an idempotency key to (body digest, target); the target it was bound to before, or None if it is new.

    Raises `Conflict` if the key came with another body.
    """
    digest, target = values
    named = {"tenant": tenant, "kind": kind, "key": key}
    table = tables.idempotency
    if insert_new(connection, table, named | {"body_digest": digest, "target": target}):
        return None
    where = [table.c[name] == value for name, value in named.items()]
    row = connection.execute(select(table.c.body_digest, table.c.target).where(*where)).one()
    if row.body_digest != digest:
        raise Conflict(
            f"The idempotency key {key!r} came with another body before; use a new key.", param="idempotency_key"
        )
    return row.target


def find_episode(connection: Connection, tenant: str, episode_id: str) -> Row[Any]:
    """The row of an episode of this tenant; raises `NotFound`, also if it was deleted."""
    row = row_of(connection, episode_id)
    if row is None or row.tenant != tenant or row.deleted_ms is not None:
        raise no_episode(episode_id)
    return row


def lock_episode(connection: Connection, episode_id: str) -> tuple[Row[Any], Row[Any] | None]:
    """The rows of an episode and its group, both locked, the group first; raises `NotFound`."""
    found = row_of(connection, episode_id)
    if found is None or found.deleted_ms is not None:
        raise no_episode(episode_id)
    group = None if found.group_id is None else lock_group(connection, found.group_id)
    row = connection.execute(
        select(tables.episodes).where(tables.episodes.c.episode_id == episode_id).with_for_update()
    ).one()
    if row.deleted_ms is not None:
        raise no_episode(episode_id)
    return row, group


def commit_end(
    connection: Connection, locked: tuple[Row[Any], Row[Any] | None], status: EpisodeStatus, at_ms: int
) -> None:
    """End a locked episode that has not ended yet."""
    row, group = locked
    values = {"status": status, "state": EpisodeState.FINISHING, "ended_ms": at_ms}
    set_episode(connection, row.episode_id, **values)
    if status in PLACELESS and group is not None and group.state == GroupState.OPEN:
        free_place(connection, row.episode_id)


def set_episode(connection: Connection, episode_id: str, **values: Any) -> None:
    connection.execute(update(tables.episodes).where(tables.episodes.c.episode_id == episode_id).values(values))


def head_of(row: Row[Any]) -> EpisodeHead:
    return EpisodeHead(
        episode_id=row.episode_id,
        tenant=row.tenant,
        run=row.run,
        task=row.task,
        group_id=row.group_id,
        policy=row.policy,
        version=row.version,
        created_ms=row.created_ms,
        ttl_ms=row.ttl_ms,
        metadata=row.metadata,
        implicit=row.implicit,
        key_id=row.key_id or "",
        arms=unpack_arms(row.arms),
    )


def page_after(cursor: str | None, created: Any, named: Any) -> list[Any]:
    """The condition that continues a list ordered newest first after `cursor`."""
    if cursor is None:
        return []
    try:
        decoded = base64.urlsafe_b64decode(cursor.encode()).decode()
    except (ValueError, binascii.Error):
        decoded = ""
    found = re.fullmatch(CURSOR, decoded)
    if found is None:
        raise BadRequest("Pass next_cursor of the page before, unchanged.", param="cursor")
    return [tuple_(created, named) < (int(found[1]), found[2])]


def next_cursor(created_ms: int, last_id: str) -> str:
    return base64.urlsafe_b64encode(f"{created_ms}:{last_id}".encode()).decode()


def episode_rows(connection: Connection, rows: Sequence[Row[Any]]) -> list[EpisodeRow]:
    """Episodes as reading endpoints tell them: with reward, versions and events."""
    ids = [row.episode_id for row in rows]
    rewards, versions, events = rewards_of(connection, ids), _versions(connection, ids), _events(connection, ids)
    runs = RunCache(connection)
    return [
        EpisodeRow(
            head=head_of(row),
            state=EpisodeState(row.state),
            status=None if row.status is None else EpisodeStatus(row.status),
            member=row.place,
            reward=episode_reward(rewards.get(row.episode_id, ()), runs.get(row.tenant, row.run).reward_weights),
            versions=versions.get(row.episode_id, {}),
            ended_ms=row.ended_ms,
            archived_ms=row.archived_ms,
            events=events.get(row.episode_id, ()),
            removed=words(row.kept),
            spent=spent_of(row),
            **{name: getattr(row, name) for name in COUNTERS},
        )
        for row in rows
    ]


def spent_of(row: Row[Any]) -> Spent | None:
    """What an episode's calls took, where it was noted."""
    if row.engine_ms is None:
        return None
    return Spent(
        engine_ms=row.engine_ms,
        prompt_tokens=row.prompt_tokens,
        sampled_tokens=row.sampled_tokens,
        upstream_cost=row.upstream_cost,
    )


def _versions(connection: Connection, episode_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    table = tables.episode_policies
    rows = collected(connection, select(table).order_by(table.c.policy), table.c.episode_id, episode_ids)
    return {episode_id: {row.policy: row.version for row in found} for episode_id, found in rows.items()}


def _events(connection: Connection, episode_ids: Sequence[str]) -> dict[str, tuple[Event, ...]]:
    table = tables.episode_events
    rows = collected(connection, select(table).order_by(table.c.seq), table.c.episode_id, episode_ids)
    return {
        episode_id: tuple(Event(at_ms=row.at_ms, kind=row.kind, detail=row.detail) for row in found)
        for episode_id, found in rows.items()
    }


def row_of(connection: Connection, episode_id: str) -> Row[Any] | None:
    statement = select(tables.episodes).where(tables.episodes.c.episode_id == episode_id)
    return connection.execute(statement).one_or_none()


def no_episode(episode_id: str) -> NotFound:
    return NotFound(f"There is no episode {episode_id!r}; POST /v1/episodes creates one.", param="episode_id")
