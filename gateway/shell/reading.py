"""One episode as the shell shows it, from the stores of a data folder, also while a gateway runs on them.

An episode that is not archived yet has its calls in the episode store: they are read there if it can be reached, and an
episode whose calls cannot be read says so.
"""

from __future__ import annotations

from gateway.desk import open_ledger
from gateway.story import Story, archived_calls, merged_events
from tracker.errors import NotFound, Unavailable
from tracker.redis_server import EmbeddedRedis
from tracker.redis_store import RedisStore
from tracker.settings import StoreSettings
from tracker.store import EpisodeView
from tracker.types import EpisodeState


async def episode_story(stores: StoreSettings, tenant: str, episode_id: str) -> tuple[Story, str]:
    """An episode, and why its calls are not all there, if so. Raises `NotFound`."""
    async with open_ledger(stores) as ledger:
        row = await ledger.get_episode(tenant, episode_id)
        view, amiss = (None, "") if row.state is EpisodeState.ARCHIVED else await _live(stores, episode_id)
        if view is None:
            row = await ledger.get_episode(tenant, episode_id)  # it may have been archived meanwhile
        calls, shredded = await archived_calls(ledger, episode_id) if view is None else (view.calls, "")
        story = Story(
            row=row,
            run=await ledger.get_run(tenant, row.head.run),
            state=row.state if view is None else view.state,
            status=row.status if view is None else view.status or row.status,
            versions=row.versions if view is None else view.pins,
            calls=calls,
            intents=() if view is None else view.intents,
            events=row.events if view is None else merged_events(row.events, view.events),
            rewards=tuple(await ledger.rewards(episode_id)),
            shredded=shredded,
        )
    return story, "" if row.state is EpisodeState.ARCHIVED else amiss


async def _live(stores: StoreSettings, episode_id: str) -> tuple[EpisodeView | None, str]:
    """What the episode store holds, or why that is not known."""
    try:
        store = await RedisStore.connect(stores.redis_url or EmbeddedRedis(stores.data_dir).url)
        try:
            return await store.view(episode_id), ""
        finally:
            await store.close()
    except NotFound:
        return None, ""
    except Unavailable as error:
        return None, f"Its calls are in the episode store, which cannot be read: {error.message}"
