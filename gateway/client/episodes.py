"""One attempt at a task, from its opening to its end: the block of a `with` statement is the episode.

However the block is left, the episode has ended: by its final reward, as `ok` without one, as `cancelled` where the
driver itself stops, as `infra_error` for what is nobody's doing (a connection, a time limit, a server that failed) and
as `failed` for every other exception. An episode that broke for the infrastructure frees its place in the group; one
that failed keeps it. The exception goes on either way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypedDict, Unpack

from gateway.client.portal import Portal
from gateway.client.rest import Client
from gateway.client.views import Opened, Rewarded, read_as
from tracker.errors import Conflict, Gone, HoneError
from tracker.types import EpisodeStatus

BROKEN: Final = frozenset({"TransportError", "APIConnectionError", "ClientConnectionError"})
"""What the clients of httpx, of OpenAI and Anthropic, and of aiohttp call a connection that broke."""
BUSY: Final = frozenset({408, 429})


class EpisodeFields(TypedDict, total=False):
    """What an episode may be opened with; `docs/http-api.md` says what each does."""

    run: str
    policy: str
    version: int
    metadata: Any
    ttl_s: float
    idempotency_key: str
    """By default a new one: under the same key, the same episode is opened again."""


class RewardFields(TypedDict, total=False):
    """What a reward may have besides its value."""

    name: str
    final: bool
    """Whether it ends the episode; by default true for an episode, false for a call."""
    source: str
    metadata: Any
    idempotency_key: str
    """By default a new one for each reward that is given."""


class AsyncEpisode:
    """An episode; open between `async with` and the end of its block."""

    def __init__(self, client: Client, task: str, fields: Mapping[str, Any]) -> None:
        self._client = client
        self._fields: dict[str, Any] = {"idempotency_key": uuid.uuid4().hex, **fields}
        self._opened: Opened | None = None
        self.task = task
        self.status: EpisodeStatus | None = None
        """How it ended."""
        self.reward_given: float | None = None
        """The last reward of the whole episode."""

    @property
    def opened(self) -> Opened:
        """What the gateway answered."""
        if self._opened is None:
            raise RuntimeError("An episode is opened by `with`: `with hone.episode(task) as episode:`.")
        return self._opened

    @property
    def episode_id(self) -> str:
        return self.opened.episode_id

    @property
    def env(self) -> dict[str, str]:
        """For the environment of the agent, as `subprocess.run(..., env={**os.environ, **episode.env})`."""
        return self.opened.env

    @property
    def base_url(self) -> str:
        """For an OpenAI client, `/v1` included."""
        return self.env["OPENAI_BASE_URL"]

    @property
    def api_key(self) -> str:
        """The session key: good for this episode's calls, and for nothing else."""
        return self.opened.api_key

    async def open(self) -> None:
        """Open it at the gateway; `async with` does so too."""
        if self._opened is None:
            self._opened = read_as(Opened, await self._client.start_episode(self.task, **self._fields))

    async def reward(self, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score the episode, which ends it unless `final=False`; `None` says that it cannot be scored."""
        number = None if value is None else float(value)
        rewarded = read_as(Rewarded, await self._client.reward(self.episode_id, number, **fields))
        self.reward_given = number
        self.status = EpisodeStatus.OK if rewarded.ended else self.status
        return rewarded

    async def reward_call(self, call_id: str, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score one call by the id of its answer."""
        number = None if value is None else float(value)
        return read_as(Rewarded, await self._client.reward_call(call_id, number, **fields))

    async def finish(self, status: EpisodeStatus | str = EpisodeStatus.OK) -> None:
        """End it without a score; a reward may still follow."""
        wanted = EpisodeStatus(status)
        await self._client.finish(self.episode_id, wanted)
        self.status = wanted

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is not None:
            return
        try:
            await self.finish(status_after(error))
        except (Conflict, Gone):
            pass  # somebody else has ended it: the agent may, with its session key
        except HoneError as refused:
            if error is None:
                raise
            error.add_note(f"Episode {self.episode_id} could not be ended: {refused.message}")


class Episode:
    """An episode; open between `with` and the end of its block. May be used in any thread."""

    def __init__(self, portal: Portal, episode: AsyncEpisode, owner: object) -> None:
        self._portal = portal
        self._episode = episode
        self._owner = owner
        """The client, which closes when it is let go: not before its episodes are."""
        self.task = episode.task

    @property
    def opened(self) -> Opened:
        """What the gateway answered."""
        return self._episode.opened

    @property
    def episode_id(self) -> str:
        return self._episode.episode_id

    @property
    def env(self) -> dict[str, str]:
        """For the environment of the agent, as `subprocess.run(..., env={**os.environ, **episode.env})`."""
        return self._episode.env

    @property
    def base_url(self) -> str:
        """For an OpenAI client, `/v1` included."""
        return self._episode.base_url

    @property
    def api_key(self) -> str:
        """The session key: good for this episode's calls, and for nothing else."""
        return self._episode.api_key

    @property
    def status(self) -> EpisodeStatus | None:
        """How it ended."""
        return self._episode.status

    def reward(self, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score the episode, which ends it unless `final=False`; `None` says that it cannot be scored."""
        return self._portal.call(self._episode.reward(value, **fields))

    def reward_call(self, call_id: str, value: float | None, **fields: Unpack[RewardFields]) -> Rewarded:
        """Score one call by the id of its answer."""
        return self._portal.call(self._episode.reward_call(call_id, value, **fields))

    def finish(self, status: EpisodeStatus | str = EpisodeStatus.OK) -> None:
        """End it without a score; a reward may still follow."""
        self._portal.call(self._episode.finish(status))

    def __enter__(self) -> Self:
        self._portal.call(self._episode.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._episode.__aexit__(kind, error, trace))


def status_after(error: BaseException | None) -> EpisodeStatus:
    """How an episode ends whose block was left by this exception."""
    if error is None:
        return EpisodeStatus.OK
    if not isinstance(error, Exception):  # the driver is told to stop: cancelled, Ctrl-C, a generator that is closed
        return EpisodeStatus.CANCELLED
    return EpisodeStatus.INFRA_ERROR if any(map(_is_nobodys, _causes(error))) else EpisodeStatus.FAILED


def _is_nobodys(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError) or BROKEN & {kind.__name__ for kind in type(error).__mro__}:
        return True
    status = error.status if isinstance(error, HoneError) else getattr(error, "status_code", None)
    return isinstance(status, int) and (status >= 500 or status in BUSY)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
