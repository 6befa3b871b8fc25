"""`AsyncHone`: a gateway for a driver that is async. `Hone` (`blocking.py`) is the same for one that is not."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Self, TypeVar, Unpack

import httpx

from gateway.client.episodes import AsyncEpisode, EpisodeFields, RewardFields
from gateway.client.finding import find_access
from gateway.client.rest import Client
from gateway.client.rollout import AsyncAgent, Attempt, Rollout, RolloutFields, bar_of, named, planned, tell
from gateway.client.views import (
    BatchView,
    EngineView,
    EpisodeView,
    GroupView,
    PolicyView,
    RecordT,
    Rewarded,
    SamplesView,
    TimelineView,
    read_as,
)
from tracker.errors import HoneError, NotFound
from tracker.types import DEFAULT, EpisodeStatus, RunSettings

T = TypeVar("T")
LOOK_S: Final = 1.0
"""Between two looks for a new version."""


class TimedOut(HoneError, TimeoutError):
    """What was waited for did not come in time."""

    status = 504
    code = "timeout"


class AsyncHone:
    """A gateway. Use it as an async context manager, or close it."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Without arguments: HONE_BASE_URL and HONE_API_KEY, else what `hone up` wrote (`finding.py`)."""
        folder = None if data_dir is None else Path(data_dir)
        access = find_access(base_url, api_key, folder, os.environ)
        self.base_url = access.base_url
        self.client = Client(access.base_url, access.keys, transport=transport)
        """The requests themselves, for what has no method here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self.client.close()

    # playing

    def episode(self, task: str, **fields: Unpack[EpisodeFields]) -> AsyncEpisode:
        """One attempt at a task: `async with hone.episode(task) as episode:`."""
        return AsyncEpisode(self.client, task, fields)

    def rollout(
        self,
        tasks: Iterable[T],
        agent: AsyncAgent[T],
        *,
        name: Callable[[T], str] = named,
        **fields: Unpack[RolloutFields],
    ) -> AsyncGenerator[Attempt[T]]:
        """Play an agent on each task, a group of attempts for each; they are given as they end (`rollout.py`).

        `tasks` may be without end, and anything that has a `name`; `agent` is called with an episode and a task.
        """
        if not inspect.iscoroutinefunction(agent):
            raise TypeError("AsyncHone plays an agent that is an `async def`; Hone plays any other.")
        return self._attempts(tasks, agent, name, fields)

    async def reward(self, episode_id: str, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score an episode, which ends it unless `final=False`."""
        return read_as(Rewarded, await self.client.reward(episode_id, value, **fields))

    async def reward_call(self, call_id: str, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score one call by the id of its answer."""
        return read_as(Rewarded, await self.client.reward_call(call_id, value, **fields))

    async def finish(self, episode_id: str, status: EpisodeStatus | str = EpisodeStatus.OK) -> None:
        """End an episode without a score."""
        await self.client.finish(episode_id, EpisodeStatus(status))

    # what became of it

    async def wait_for_version(
        self, policy: str, *, newer_than: int | None = None, timeout_s: float | None = None, every_s: float = LOOK_S
    ) -> int:
        """Wait until new episodes get a newer version than this, or than now; that version. Raises `TimedOut`."""
        before = (await self.policy(policy)).active if newer_than is None else newer_than
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    active = (await self.policy(policy)).active
                    if active > before:
                        return active
                    await asyncio.sleep(every_s)
        except TimeoutError as error:
            raise TimedOut(f"No version of {policy} came after {before} within {timeout_s:g} s.") from error

    async def policy(self, name: str) -> PolicyView:
        """One policy with its versions."""
        known = {policy.policy: policy for policy in await self.policies()}
        if name not in known:
            raise NotFound(f"There is no policy {name!r}; there is {', '.join(known)}.", param="policy")
        return known[name]

    async def policies(self) -> tuple[PolicyView, ...]:
        """Every policy with its versions."""
        return tuple([policy async for policy in self._each(PolicyView, "/v1/policies")])

    async def engines(self) -> tuple[EngineView, ...]:
        """Every engine, and what it has loaded."""
        return tuple([engine async for engine in self._each(EngineView, "/v1/engines")])

    def batches(self, policy: str | None = None) -> AsyncGenerator[BatchView]:
        """What was trained, newest first."""
        return self._each(BatchView, "/v1/batches", policy=policy)

    def groups(self, *, run: str | None = None, task: str | None = None) -> AsyncGenerator[GroupView]:
        """Groups, newest first."""
        return self._each(GroupView, "/v1/groups", run=run, task=task)

    def episodes(
        self, *, run: str | None = None, task: str | None = None, status: EpisodeStatus | str | None = None
    ) -> AsyncGenerator[EpisodeView]:
        """Episodes, newest first."""
        wanted = None if status is None else EpisodeStatus(status).value
        return self._each(EpisodeView, "/v1/episodes", run=run, task=task, status=wanted)

    async def get_episode(self, episode_id: str) -> EpisodeView:
        """One episode in numbers, as it stands."""
        return read_as(EpisodeView, await self.client.episode(episode_id))

    async def timeline(self, episode_id: str) -> TimelineView:
        """The trees of an episode's calls."""
        return read_as(TimelineView, await self.client.timeline(episode_id))

    async def samples(self, episode_id: str) -> SamplesView:
        """What of an episode is trained, and what is not."""
        return read_as(SamplesView, await self.client.samples(episode_id))

    async def create_run(self, run: str, **settings: Any) -> RunSettings:
        """Create a run, or change one that has no episode yet."""
        return read_as(RunSettings, await self.client.create_run(run, **settings))

    async def run(self, run: str = DEFAULT) -> RunSettings:
        """The settings of a run."""
        return read_as(RunSettings, await self.client.run(run))

    async def _attempts(
        self, tasks: Iterable[T], agent: AsyncAgent[T], name: Callable[[T], str], fields: RolloutFields
    ) -> AsyncGenerator[Attempt[T]]:
        plan = await planned(self.client, fields)
        attempts = Rollout(self.client, agent, plan).attempts(tasks, name)
        async with aclosing(attempts):
            with bar_of(tasks, plan) as bar:
                async for attempt in attempts:
                    tell(bar, attempt)
                    yield attempt

    async def _each(self, kind: type[RecordT], path: str, **query: str | None) -> AsyncGenerator[RecordT]:
        async for item in self.client.pages(path, **query):
            yield read_as(kind, item)
