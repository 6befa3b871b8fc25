"""An agent played on many tasks: so many episodes at a time, a whole group for each task, results as they come.

What an agent raises is the end of its attempt and of nothing else; the attempt says what it was. What the gateway
refuses when an episode is to be opened (a run or a key that it does not know) ends the rollout, since the next would be
refused as well; what it can take a little later is waited for. An attempt that broke for what is nobody's doing is
played again in an episode of its own, so that its group can fill. Whoever stops listening stops the rollout: the
episodes that are being played end as `cancelled`, and their agents' calls are refused from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from gateway.client.episodes import AsyncEpisode, EpisodeFields
from gateway.client.progress import Bar
from gateway.client.rest import Client
from gateway.client.views import read_as
from tracker.errors import BadRequest
from tracker.types import DEFAULT, EpisodeStatus, Record, RunSettings

T = TypeVar("T")
R = TypeVar("R")
CONCURRENCY: Final = 16
INFRA_RETRIES: Final = 1
AsyncAgent = Callable[[AsyncEpisode, T], Awaitable[float | None]]
"""Plays one episode of a task. What it returns is the episode's reward; `None` where it has given its own, or another
will."""


class RolloutFields(EpisodeFields, total=False):
    """How a rollout is played, and what its episodes are opened with."""

    group_size: int
    """Attempts at each task; by default the group size of the run, and 1 where the run is no training."""
    concurrency: int
    """Episodes that are played at a time; 16 by default."""
    infra_retries: int
    """How often an attempt is played again that broke for what is nobody's doing; 1 by default."""
    progress: bool
    """Whether a bar is shown where there is a terminal or a notebook; it is by default."""


class Plan(Record, frozen=True):
    """The same, decided."""

    group_size: int
    concurrency: int = CONCURRENCY
    infra_retries: int = INFRA_RETRIES
    progress: bool = True
    fields: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Of each episode."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """An episode of a rollout that was played to its end."""

    item: T
    """What was given as a task."""
    task: str
    """Its name at the gateway: attempts of the same name are compared with each other."""
    number: int
    """Which attempt at the task it is, from 0."""
    episode_id: str
    status: EpisodeStatus
    reward: float | None
    """The last that the driver or the agent gave to the whole episode."""
    error: BaseException | None = None
    """What the agent raised."""


class Caller(Protocol):
    """Calls a function of the driver's."""

    async def __call__(self, work: Callable[[], R]) -> R: ...


async def in_loop(work: Callable[[], R]) -> R:
    """Where whoever is async may do so himself."""
    return work()


@dataclass(frozen=True, slots=True)
class Rollout(Generic[T]):
    """A rollout before it is played."""

    client: Client
    agent: AsyncAgent[T]
    plan: Plan
    call: Caller = in_loop
    """How the next task is asked for."""

    async def attempts(self, items: Iterable[T], name: Callable[[T], str]) -> AsyncGenerator[Attempt[T]]:
        """Play them; attempts in the order in which they end.

        The next task is asked for while others are played, so it may depend on what they came to. An attempt that has
        ended keeps its place until it was taken: who takes none is not played for without end.
        """
        if isinstance(items, str):
            raise TypeError(f"The tasks are one text: write [{items[:40]!r}], or each of its letters would be a task.")
        places = asyncio.Semaphore(self.plan.concurrency)
        playing: set[asyncio.Task[Attempt[T]]] = set()
        ended = asyncio.Queue[asyncio.Task[Any]]()

        async def begin() -> None:
            jobs = _jobs(items, name, self.plan.group_size)
            await places.acquire()
            while (job := await self.call(partial(next, jobs, None))) is not None:
                task = asyncio.create_task(self._attempt(job))
                playing.add(task)
                task.add_done_callback(ended.put_nowait)
                await places.acquire()

        beginning = asyncio.create_task(begin())
        beginning.add_done_callback(ended.put_nowait)
        try:
            while playing or not beginning.done():
                task = await ended.get()
                if task is beginning:
                    task.result()
                    continue
                playing.discard(task)
                places.release()
                yield task.result()
            beginning.result()
        finally:
            await _cancelled([beginning, *playing])

    async def _attempt(self, job: _Job[T]) -> Attempt[T]:
        """One attempt, again where it broke for what is nobody's doing."""
        for _ in range(self.plan.infra_retries):
            attempt = await self._episode(job)
            if attempt.status is not EpisodeStatus.INFRA_ERROR:
                return attempt
        return await self._episode(job)

    async def _episode(self, job: _Job[T]) -> Attempt[T]:
        episode = AsyncEpisode(self.client, job.task, self.plan.fields)
        await episode.open()
        playing = asyncio.create_task(self._block(episode, job.item))
        try:
            await asyncio.wait({playing})
        finally:
            await _cancelled([playing])
        return Attempt(
            item=job.item,
            task=job.task,
            number=job.number,
            episode_id=episode.episode_id,
            status=episode.status or EpisodeStatus.FAILED,
            reward=episode.reward_given,
            error=asyncio.CancelledError() if playing.cancelled() else playing.exception(),
        )

    async def _block(self, episode: AsyncEpisode, item: T) -> None:
        async with episode:
            value = await self.agent(episode, item)
            if value is not None:
                await episode.reward(value)


async def planned(client: Client, fields: RolloutFields) -> Plan:
    """The plan that these fields ask for; raises `BadRequest` for one that cannot be played."""
    group_size = fields.get("group_size")
    if group_size is None:
        run = read_as(RunSettings, await client.run(fields.get("run", DEFAULT)))
        group_size = run.group_size if run.mode == "train" else 1
    plan = Plan(
        group_size=group_size,
        concurrency=fields.get("concurrency", CONCURRENCY),
        infra_retries=fields.get("infra_retries", INFRA_RETRIES),
        progress=fields.get("progress", True),
        fields={name: value for name, value in fields.items() if name not in Plan.__struct_fields__},
    )
    if plan.concurrency < 1 or plan.group_size < 1 or plan.infra_retries < 0:
        raise BadRequest("A rollout has a concurrency and a group size of at least 1, and 0 or more infra_retries.")
    return plan


def bar_of(items: Iterable[T], plan: Plan) -> Bar:
    """A bar for these tasks, to be told by whoever goes through the attempts: in a notebook it shows in his cell."""
    total = len(items) * plan.group_size if isinstance(items, Sized) else None
    return Bar(total, is_wanted=plan.progress)


def tell(bar: Bar, attempt: Attempt[Any]) -> None:
    """One more attempt has ended."""
    bar.tell(attempt.reward, is_broken=attempt.error is not None)


def named(item: object) -> str:
    """The task of an item that is one."""
    if not isinstance(item, str):
        kind = type(item).__name__
        raise TypeError(f"A task that is no text ({kind}) needs a name: rollout(..., name=lambda task: task['id']).")
    return item


@dataclass(frozen=True, slots=True)
class _Job(Generic[T]):
    item: T
    task: str
    number: int


def _jobs(items: Iterable[T], name: Callable[[T], str], group_size: int) -> Iterator[_Job[T]]:
    """Group after group, so that one is complete before many are begun."""
    for item in items:
        task = name(item)
        yield from (_Job(item, task, number) for number in range(group_size))


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has cleaned up; what it raises is nobody's any more."""
    known = list(tasks)
    for task in known:
        task.cancel()
    await asyncio.gather(*known, return_exceptions=True)
