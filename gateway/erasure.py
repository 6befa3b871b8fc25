"""Deleting episodes: one, or everything of one key.

The episode store comes first: its tombstone holds off calls in flight, and an id is never used again. Each episode is
deleted by itself, so whoever is killed midway leaves the rest to be deleted by the same request again. Episodes that a
key opened, or in which any call was made with it, are the key's: archived and open ones, also of before its calls were
written down. What is opened while it is deleted may be missed; revoke the key first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from gateway.dependencies import Services
from tracker.archive import key_ids_of
from tracker.codec import decode_calls
from tracker.errors import CorruptRecord, Gone, NotFound
from tracker.types import Record

PAGE: Final = 100
TIME_S: Final = 30.0
"""How long one request goes on; the next one goes on from there."""


class Erased(Record, frozen=True):
    """What came of deleting everything of a key."""

    key_id: str
    deleted: int
    """Episodes that this request deleted."""
    done: bool
    """False: time was up, and the same request deletes the rest."""


async def erase_episode(services: Services, tenant: str, episode_id: str) -> None:
    """Drop an episode's calls, text and tokens; raises `NotFound`."""
    await services.ledger.get_episode(tenant, episode_id)
    await services.store.delete(episode_id)
    await services.ledger.delete_episode(tenant, episode_id)


async def delete_of_key(services: Services, tenant: str, key_id: str, time_s: float = TIME_S) -> Erased:
    """Delete everything of one key."""
    until_s = asyncio.get_running_loop().time() + time_s
    num_deleted = 0
    async with aclosing(_of_key(services, tenant, key_id)) as found:
        async for episode_id in found:
            if asyncio.get_running_loop().time() >= until_s:
                return Erased(key_id=key_id, deleted=num_deleted, done=False)
            num_deleted += episode_id is not None and await _is_erased(services, tenant, episode_id)
    return Erased(key_id=key_id, deleted=num_deleted, done=True)


async def _is_erased(services: Services, tenant: str, episode_id: str) -> bool:
    """Delete an episode; False if somebody else has."""
    try:
        await erase_episode(services, tenant, episode_id)
    except NotFound:
        return False
    return True


async def _of_key(services: Services, tenant: str, key_id: str) -> AsyncGenerator[str | None]:
    """The episodes of a key, each to be deleted before the next is asked for; `None` after one that was looked into
    and is none of them."""
    async for _ in _sorted(services, tenant):
        yield None
    while page := await services.ledger.episodes_of_key(tenant, key_id, PAGE):
        for episode_id in page:
            yield episode_id
    for row in await services.ledger.open_episodes(services.clock.now_ms() + 1):
        if row.head.tenant == tenant:
            yield row.head.episode_id if await _calls_with(services, row.head.episode_id, key_id) else None


async def _sorted(services: Services, tenant: str) -> AsyncGenerator[None]:
    """Open what was archived before the keys of calls were written down, and write them down."""
    while page := await services.ledger.unsorted_episodes(tenant, PAGE):
        for episode_id in page:
            try:
                blob = await services.ledger.get_timeline(episode_id)
                calls = () if blob is None else await asyncio.to_thread(decode_calls, blob)
            except (CorruptRecord, Gone):
                calls = ()  # nobody can tell whose it was
            await services.ledger.sort_episode(episode_id, key_ids_of(calls))
            yield None


async def _calls_with(services: Services, episode_id: str, key_id: str) -> bool:
    """Whether an open episode has a call, ended or in flight, that was made with the key."""
    try:
        view = await services.store.view(episode_id)
    except (NotFound, Gone):
        return False
    return any(call.key_id == key_id for call in (*view.calls, *view.intents))
