"""An episode as it stands: live from the episode store while it is open, from its archived timeline afterwards.

Reading endpoints, rewards and pages all ask here, so that nobody sees a difference when an episode moves from Redis to
SQL. Folding and crediting are left to `tracker`.
"""

from __future__ import annotations

from gateway.dependencies import Services
from tracker.codec import decode_calls
from tracker.credit import call_rewards, episode_reward
from tracker.errors import Gone, NotFound
from tracker.store import EpisodeView, Ledger
from tracker.types import Call, EpisodeRow, EpisodeState, EpisodeStatus, Event, Intent, Record, Reward, RunSettings


class Story(Record, frozen=True):
    """Everything known of one episode."""

    row: EpisodeRow
    run: RunSettings
    state: EpisodeState
    status: EpisodeStatus | None
    versions: dict[str, int]
    calls: tuple[Call, ...]
    intents: tuple[Intent, ...]
    events: tuple[Event, ...]
    rewards: tuple[Reward, ...]
    shredded: str = ""
    """Why nothing can be read of its calls, for people; empty where they are there."""

    def reward(self) -> float | None:
        """The episode's effective reward, without those of its calls."""
        return episode_reward(self.rewards, self.run.reward_weights)

    def call_rewards(self) -> dict[str, float]:
        """Effective reward of each call that has one."""
        return call_rewards(self.rewards, self.run.reward_weights)


async def read_story(services: Services, tenant: str, episode_id: str) -> Story:
    """Read an episode; raises `NotFound`."""
    row = await services.ledger.get_episode(tenant, episode_id)
    run = await services.ledger.get_run(tenant, row.head.run)  # its reward weights may be others than a moment ago
    rewards = tuple(await services.ledger.rewards(episode_id))
    view = await find_view(services, row)
    if view is not None:
        return Story(
            row=row,
            run=run,
            state=view.state,
            status=view.status or row.status,
            versions=view.pins,
            calls=view.calls,
            intents=view.intents,
            events=merged_events(row.events, view.events),
            rewards=rewards,
        )
    row = await services.ledger.get_episode(tenant, episode_id)  # it may have been archived meanwhile
    calls, shredded = await archived_calls(services.ledger, episode_id)
    return Story(
        row=row,
        run=run,
        state=row.state,
        status=row.status,
        versions=row.versions,
        calls=calls,
        intents=(),
        events=row.events,
        rewards=rewards,
        shredded=shredded,
    )


async def archived_calls(ledger: Ledger, episode_id: str) -> tuple[tuple[Call, ...], str]:
    """The calls of an archived episode, or why there are none."""
    try:
        blob = await ledger.get_timeline(episode_id)
    except Gone as gone:
        return (), gone.message
    return () if blob is None else decode_calls(blob), ""


async def find_view(services: Services, row: EpisodeRow) -> EpisodeView | None:
    """What the episode store holds of an episode that is not archived yet."""
    if row.state is EpisodeState.ARCHIVED:
        return None
    try:
        return await services.store.view(row.head.episode_id)
    except NotFound:
        return None


async def has_call(services: Services, row: EpisodeRow, call_id: str) -> bool:
    """Whether the episode has this call: recorded, in flight or archived."""
    view = await find_view(services, row)
    if view is not None:
        return any(call.call_id == call_id for call in (*view.calls, *view.intents))
    return any(call.call_id == call_id for call in await _archived_calls(services, row))


async def recorded_calls(services: Services, row: EpisodeRow) -> tuple[Call, ...]:
    """The calls of an episode that have ended, live or archived."""
    view = await find_view(services, row)
    return await _archived_calls(services, row) if view is None else view.calls


async def _archived_calls(services: Services, row: EpisodeRow) -> tuple[Call, ...]:
    blob = await services.ledger.get_timeline(row.head.episode_id)
    return () if blob is None else decode_calls(blob)


async def num_waiting(services: Services, episode_id: str) -> int:
    """Calls of an episode that are in flight."""
    try:
        return await services.store.num_in_flight(episode_id)
    except NotFound:
        return 0


def merged_events(stored: tuple[Event, ...], live: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events of both stores, each once, by time."""
    return tuple(sorted(dict.fromkeys((*stored, *live)), key=lambda event: event.at_ms))
