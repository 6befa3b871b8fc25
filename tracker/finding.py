"""Finding episodes: the filters of lists, pages in both directions, and what the filters need written down.

Lists go by the time of creation, over indexes that begin with the tenant and the filter. What only the archive or the
reward events of an episode tell stands beside it: its score (the effective reward, brought up to date before anybody
filters by it) and its kinds of calls, by policy, version and role. Those of archives of before revision 0006 are noted
by whoever runs `note_kinds`; until then such an episode is not found by them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, select, tuple_, update

from tracker import tables
from tracker.codec import decode_calls
from tracker.credit import episode_reward
from tracker.episode_rows import episode_rows
from tracker.episodes import get_timeline
from tracker.errors import BadRequest, CorruptRecord, Gone
from tracker.members import RunCache, rewards_of
from tracker.rounds import task_digest
from tracker.samples import kinds_of
from tracker.sql import Database, insert_new
from tracker.types import (
    ID_PATTERN,
    CallKind,
    EpisodeFilter,
    EpisodePage,
    EpisodeRow,
    EpisodeState,
    EpisodeStatus,
)
from tracker.vault import Vault

CURSOR: Final = rf"(<?)([0-9]{{1,15}}):({ID_PATTERN})"
NEWER: Final = "<"
"""Begins a cursor that leads back to what is newer."""
BATCH: Final = 500
"""How many episodes one transaction scores."""


class Finding(Database):
    """Lists of episodes."""

    _vault: Vault

    async def find_episodes(
        self, tenant: str, wanted: EpisodeFilter, limit: int, cursor: str | None = None
    ) -> EpisodePage:
        """Newest first. `BadRequest` on a status that is none, and on a cursor that is none of ours."""
        if wanted.min_reward is not None or wanted.max_reward is not None:
            await self.score_episodes()
        return await self.read(_find, tenant, wanted, limit, cursor)

    async def list_episodes(
        self, tenant: str, *, run: str | None, task: str | None, status: str | None, limit: int, cursor: str | None
    ) -> tuple[list[EpisodeRow], str | None]:
        """`find_episodes` by what most ask for: the rows, and the cursor of the next page."""
        page = await self.find_episodes(tenant, EpisodeFilter(run=run, task=task, status=status), limit, cursor)
        return list(page.rows), page.older

    async def score_episodes(self) -> int:
        """Bring the scores of all episodes up to date; how many were not."""
        num_scored = 0
        while await self.read(_to_score, 1):
            num_scored += await self.write(_score)
        return num_scored

    async def note_kinds(self, limit: int) -> int:
        """Look into up to `limit` archives of which nobody has noted the kinds of calls; how many there were."""
        episode_ids = await self.read(_without_kinds, limit)
        for episode_id in episode_ids:
            try:
                blob = await self.read(get_timeline, episode_id, self._vault)
                calls = () if blob is None else await asyncio.to_thread(decode_calls, blob)
            except (CorruptRecord, Gone):
                calls = ()  # nobody can tell any more
            await self.write(put_kinds, episode_id, kinds_of(calls))
        return len(episode_ids)


def put_kinds(connection: Connection, episode_id: str, kinds: Iterable[CallKind]) -> None:
    """Note an archived episode's kinds of calls; what is noted stays. Nothing of an episode that was deleted."""
    episodes = tables.episodes
    where = (episodes.c.episode_id == episode_id, episodes.c.deleted_ms.is_(None))
    if connection.execute(update(episodes).where(*where).values(has_kinds=True)).rowcount:
        for kind in kinds:
            values = {name: getattr(kind, name) for name in CallKind.__struct_fields__}
            insert_new(connection, tables.call_kinds, {"episode_id": episode_id, **values})


def _find(connection: Connection, tenant: str, wanted: EpisodeFilter, limit: int, cursor: str | None) -> EpisodePage:
    episodes = tables.episodes
    place, back = _place(cursor)
    key = tuple_(episodes.c.created_ms, episodes.c.episode_id)
    statement = select(episodes).where(episodes.c.tenant == tenant, episodes.c.deleted_ms.is_(None), *_where(wanted))
    if place is not None:
        statement = statement.where(key > place if back else key < place)
    columns = (episodes.c.created_ms, episodes.c.episode_id)
    ordered = statement.order_by(*columns) if back else statement.order_by(*(column.desc() for column in columns))
    found = connection.execute(ordered.limit(limit + 1)).all()
    rows = list(reversed(found[:limit])) if back else found[:limit]
    more = len(found) > limit
    return EpisodePage(
        rows=tuple(episode_rows(connection, rows)),
        older=_cursor(rows[-1]) if rows and (more or back) else None,
        newer=_cursor(rows[0], NEWER) if rows and (more if back else cursor is not None) else None,
    )


def _where(wanted: EpisodeFilter) -> list[ColumnElement[bool]]:
    episodes = tables.episodes
    where: list[ColumnElement[bool]] = []
    where += [] if wanted.run is None else [episodes.c.run == wanted.run]
    where += [] if wanted.task is None else [episodes.c.task_digest == task_digest(wanted.task)]
    where += [] if wanted.status is None else [in_status(wanted.status)]
    where += [] if wanted.min_reward is None else [episodes.c.score >= wanted.min_reward]
    where += [] if wanted.max_reward is None else [episodes.c.score <= wanted.max_reward]
    kinds = tables.call_kinds
    asked = {name: value for name in ("policy", "version", "role") if (value := getattr(wanted, name)) is not None}
    if asked:
        same = (kinds.c[name] == value for name, value in asked.items())
        where.append(episodes.c.episode_id.in_(select(kinds.c.episode_id).where(*same)))
    return where


def in_status(status: str) -> ColumnElement[bool]:
    """The condition for a state or a status."""
    if status in set(EpisodeState):
        return tables.episodes.c.state == status
    if status in set(EpisodeStatus):
        return tables.episodes.c.status == status
    known = ", ".join((*EpisodeState, *EpisodeStatus))
    raise BadRequest(f"status is one of {known}, not {status!r}.", param="status")


def _place(cursor: str | None) -> tuple[tuple[int, str] | None, bool]:
    """Where a page goes on, and whether it goes back to what is newer."""
    if cursor is None:
        return None, False
    try:
        decoded = base64.urlsafe_b64decode(cursor.encode()).decode()
    except (ValueError, binascii.Error):
        decoded = ""
    found = re.fullmatch(CURSOR, decoded)
    if found is None:
        raise BadRequest("Pass next_cursor of the page before, unchanged.", param="cursor")
    return (int(found[2]), found[3]), found[1] == NEWER


def _cursor(row: Row[Any], direction: str = "") -> str:
    return base64.urlsafe_b64encode(f"{direction}{row.created_ms}:{row.episode_id}".encode()).decode()


def _to_score(connection: Connection, limit: int) -> Sequence[Row[*tuple[Any, ...]]]:
    episodes = tables.episodes
    columns = (episodes.c.episode_id, episodes.c.tenant, episodes.c.run)
    return connection.execute(select(*columns).where(~episodes.c.is_scored).limit(limit)).all()


def _score(connection: Connection) -> int:
    """Some episodes that are not scored, each under the lock of its row: no reward comes in between."""
    episodes, runs = tables.episodes, RunCache(connection)
    found = _to_score(connection, BATCH)
    ids = [row.episode_id for row in found]
    locked = select(episodes.c.episode_id).where(episodes.c.episode_id.in_(ids)).order_by(episodes.c.episode_id)
    connection.execute(locked.with_for_update()).all()
    rewards = rewards_of(connection, ids)
    for row in found:
        score = episode_reward(rewards.get(row.episode_id, ()), runs.get(row.tenant, row.run).reward_weights)
        where = episodes.c.episode_id == row.episode_id
        connection.execute(update(episodes).where(where).values(score=score, is_scored=True))
    return len(found)


def _without_kinds(connection: Connection, limit: int) -> list[str]:
    episodes = tables.episodes
    where = (~episodes.c.has_kinds, episodes.c.archived_ms.is_not(None), episodes.c.deleted_ms.is_(None))
    statement = select(episodes.c.episode_id).where(*where).order_by(episodes.c.archived_ms).limit(limit)
    return list(connection.execute(statement).scalars())
