"""Which episodes are a key's: those it opened, and those that have calls made with it.

Of an archived episode SQL knows both. One that was archived before revision 0005 has to be opened to be told; what was
found is written down, so it is opened once. Deleting them, and looking into open ones, is left to the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, or_, select

from tracker import tables
from tracker.episode_rows import lock_episode, set_episode
from tracker.errors import NotFound
from tracker.sql import Database, insert_new
from tracker.types import EpisodeState


class Erasure(Database):
    """Episodes by key."""

    async def episodes_of_key(self, tenant: str, key_id: str, limit: int) -> list[str]:
        """Up to `limit` episodes of the key that are not deleted, oldest first."""
        return await self.read(_of_key, tenant, key_id, limit)

    async def unsorted_episodes(self, tenant: str, limit: int) -> list[str]:
        """Up to `limit` archived episodes of which nobody has written down yet whose they are, oldest first."""
        return await self.read(_unsorted, tenant, limit)

    async def sort_episode(self, episode_id: str, key_ids: Sequence[str]) -> None:
        """Write down the keys that an archived episode's calls were made with."""
        await self.write(_sort, episode_id, key_ids)


def _of_key(connection: Connection, tenant: str, key_id: str, limit: int) -> list[str]:
    episodes, keys = tables.episodes, tables.episode_keys
    called = exists().where(keys.c.episode_id == episodes.c.episode_id, keys.c.key_id == key_id)
    return _page(connection, tenant, or_(episodes.c.key_id == key_id, called), limit=limit)


def _unsorted(connection: Connection, tenant: str, limit: int) -> list[str]:
    episodes, keys = tables.episodes, tables.episode_keys
    known = exists().where(keys.c.episode_id == episodes.c.episode_id)
    where = (episodes.c.key_id.is_(None), episodes.c.state == EpisodeState.ARCHIVED, ~known)
    return _page(connection, tenant, *where, limit=limit)


def _page(connection: Connection, tenant: str, *where: Any, limit: int) -> list[str]:
    episodes = tables.episodes
    of_tenant: tuple[ColumnElement[bool], ...] = (episodes.c.tenant == tenant, episodes.c.deleted_ms.is_(None))
    statement = select(episodes.c.episode_id).where(*of_tenant, *where)
    ordered = statement.order_by(episodes.c.created_ms, episodes.c.episode_id).limit(limit)
    return list(connection.execute(ordered).scalars())


def _sort(connection: Connection, episode_id: str, key_ids: Sequence[str]) -> None:
    try:
        row, _ = lock_episode(connection, episode_id)
    except NotFound:
        return  # it was deleted meanwhile
    for key_id in key_ids:
        insert_new(connection, tables.episode_keys, {"key_id": key_id, "episode_id": episode_id})
    if row.key_id is None:
        set_episode(connection, episode_id, key_id="")
