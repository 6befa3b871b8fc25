"""`Hone`: a gateway for a driver that is not async, in a script or a notebook. All that it does, `AsyncHone` does for
it in a loop of its own; what is added is that agents are plain functions, each played in a thread."""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import httpx

from gateway.client.asynchronous import LOOK_S, AsyncHone
from gateway.client.episodes import AsyncEpisode, Episode, EpisodeFields, RewardFields
from gateway.client.portal import Portal
from gateway.client.rollout import Attempt, Rollout, RolloutFields, bar_of, named, planned, tell
from gateway.client.threads import in_thread
from gateway.client.views import (
    BatchView,
    EngineView,
    EpisodeView,
    GroupView,
    PolicyView,
    Rewarded,
    SamplesView,
    TimelineView,
)
from tracker.types import DEFAULT, EpisodeStatus, RunSettings

T = TypeVar("T")
Agent = Callable[[Episode, T], float | None]
"""Plays one episode of a task, in a thread of its own. What it returns is the episode's reward; `None` where it has
given its own, or another will."""


class Hone:
    """A gateway. May be used in any thread; a context manager, or closed, or let go."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Without arguments: HONE_BASE_URL and HONE_API_KEY, else what `hone up` wrote (`finding.py`)."""
        self._hone = AsyncHone(base_url, api_key, data_dir=data_dir, transport=transport)
        self._portal = Portal()
        self._let_go = weakref.finalize(self, _close, self._portal, self._hone)
        self.base_url = self._hone.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back, and end the thread."""
        self._let_go()

    # playing

    def episode(self, task: str, **fields: Unpack[EpisodeFields]) -> Episode:
        """One attempt at a task: `with hone.episode(task) as episode:`."""
        return Episode(self._portal, self._hone.episode(task, **fields), self)

    def rollout(
        self,
        tasks: Iterable[T],
        agent: Agent[T],
        *,
        name: Callable[[T], str] = named,
        **fields: Unpack[RolloutFields],
    ) -> Iterator[Attempt[T]]:
        """Play an agent on each task, a group of attempts for each; they are given as they end (`rollout.py`).

        `tasks` may be without end, and anything that has a `name`; it is asked for the next one in a thread, and may
        take its time. `agent` is called with an episode and a task, each attempt in a thread. Where the loop over the
        attempts is left, so is the rollout.
        """
        if inspect.iscoroutinefunction(agent):
            raise TypeError("Hone plays an agent that is a plain function; AsyncHone plays an `async def`.")
        return self._attempts(tasks, agent, name, fields)

    def reward(self, episode_id: str, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score an episode, which ends it unless `final=False`."""
        return self._portal.call(self._hone.reward(episode_id, value, **fields))

    def reward_call(self, call_id: str, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score one call by the id of its answer."""
        return self._portal.call(self._hone.reward_call(call_id, value, **fields))

    def finish(self, episode_id: str, status: EpisodeStatus | str = EpisodeStatus.OK) -> None:
        """End an episode without a score."""
        self._portal.call(self._hone.finish(episode_id, status))

    # what became of it

    def wait_for_version(
        self, policy: str, *, newer_than: int | None = None, timeout_s: float | None = None, every_s: float = LOOK_S
    ) -> int:
        """Wait until new episodes get a newer version than this, or than now; that version. Raises `TimedOut`."""
        waited = self._hone.wait_for_version(policy, newer_than=newer_than, timeout_s=timeout_s, every_s=every_s)
        return self._portal.call(waited)

    def policy(self, name: str) -> PolicyView:
        """One policy with its versions."""
        return self._portal.call(self._hone.policy(name))

    def policies(self) -> tuple[PolicyView, ...]:
        """Every policy with its versions."""
        return self._portal.call(self._hone.policies())

    def engines(self) -> tuple[EngineView, ...]:
        """Every engine, and what it has loaded."""
        return self._portal.call(self._hone.engines())

    def batches(self, policy: str | None = None) -> Iterator[BatchView]:
        """What was trained, newest first."""
        return self._portal.each(self._hone.batches(policy), self)

    def groups(self, *, run: str | None = None, task: str | None = None) -> Iterator[GroupView]:
        """Groups, newest first."""
        return self._portal.each(self._hone.groups(run=run, task=task), self)

    def episodes(
        self, *, run: str | None = None, task: str | None = None, status: EpisodeStatus | str | None = None
    ) -> Iterator[EpisodeView]:
        """Episodes, newest first."""
        return self._portal.each(self._hone.episodes(run=run, task=task, status=status), self)

    def get_episode(self, episode_id: str) -> EpisodeView:
        """One episode in numbers, as it stands."""
        return self._portal.call(self._hone.get_episode(episode_id))

    def timeline(self, episode_id: str) -> TimelineView:
        """The trees of an episode's calls."""
        return self._portal.call(self._hone.timeline(episode_id))

    def samples(self, episode_id: str) -> SamplesView:
        """What of an episode is trained, and what is not."""
        return self._portal.call(self._hone.samples(episode_id))

    def create_run(self, run: str, **settings: Any) -> RunSettings:
        """Create a run, or change one that has no episode yet."""
        return self._portal.call(self._hone.create_run(run, **settings))

    def run(self, run: str = DEFAULT) -> RunSettings:
        """The settings of a run."""
        return self._portal.call(self._hone.run(run))

    def _attempts(
        self, tasks: Iterable[T], agent: Agent[T], name: Callable[[T], str], fields: RolloutFields
    ) -> Iterator[Attempt[T]]:
        async def playing(episode: AsyncEpisode, item: T) -> float | None:
            return await in_thread(partial(agent, Episode(self._portal, episode, self), item))

        client = self._hone.client
        plan = self._portal.call(planned(client, fields))
        rollout = Rollout(client, playing, plan, in_thread)
        attempts = self._portal.each(rollout.attempts(tasks, name), self)
        with closing(attempts), bar_of(tasks, plan) as bar:
            for attempt in attempts:
                tell(bar, attempt)
                yield attempt


def _close(portal: Portal, hone: AsyncHone) -> None:
    """Close both; in another thread where the collector found the client in its own loop."""
    if portal.is_inside:
        threading.Thread(target=_close, args=(portal, hone)).start()
        return
    portal.call(hone.close())
    portal.close()
