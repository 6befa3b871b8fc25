"""What the gateway tells a driver, as frozen records: the fields of docs/http-api.md, by the same names.

A field that a newer gateway adds is left out, one that an older has not yet is at its default. What has no fixed form
(a message, metrics, a manifest) is the parsed JSON.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tracker.samples import Exclusion, Sample
from tracker.types import CallState, EpisodeState, EpisodeStatus, GroupState, Member, Record, SkipReason, VersionState

Json = dict[str, Any]
RecordT = TypeVar("RecordT", bound=Record)


class Opened(Record, frozen=True):
    """An episode that was opened, and what its agent needs."""

    episode_id: str
    api_key: str
    base_url: str
    env: dict[str, str]
    group_id: str | None = None
    versions: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class Rewarded(Record, frozen=True):
    """A reward as it was taken."""

    reward_id: str
    episode_id: str
    call_id: str | None = None
    late: bool = False
    """It came when the episode had ended without a place in a group: stored, and not trained."""
    ended: bool = False
    waiting: int | None = None
    """Calls in flight that the episode waits for before it ends."""


class EpisodeView(Record, frozen=True):
    """An episode. In a list, what is counted when it is archived is `None` before."""

    episode_id: str
    run: str
    task: str
    created_ms: int
    state: EpisodeState
    group_id: str | None = None
    policy: str | None = None
    ended_ms: int | None = None
    status: EpisodeStatus | None = None
    reward: float | None = None
    versions: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    num_calls: int | None = None
    num_samples: int | None = None
    num_excluded: int | None = None
    num_in_flight: int | None = None
    truncated: bool | None = None
    merge_ratio: float | None = None
    removed: tuple[str, ...] = ()
    metadata: Any = None
    events: tuple[Json, ...] = ()
    rewards: tuple[Json, ...] = ()


class CallView(Record, frozen=True):
    """One call of an episode."""

    call_id: str
    state: CallState
    parent: str | None = None
    policy: str | None = None
    model: str = ""
    version: int = 0
    role: str = "main"
    reason: str | None = None
    """Why it is not trained."""
    detail: str = ""
    request: Any = None
    message: Any = None
    sampling: Any = None
    finish_reason: str | None = None
    truncated: bool = False
    choices: tuple[Json, ...] = ()
    started_ms: int = 0
    ended_ms: int = 0


class TimelineView(Record, frozen=True):
    """The trees of an episode and the calls in them."""

    episode_id: str
    trees: tuple[Any, ...] = ()
    branches: tuple[tuple[Json, ...], ...] = ()
    calls: tuple[CallView, ...] = ()
    in_flight: tuple[Json, ...] = ()
    removed: tuple[str, ...] = ()


class SamplesView(Record, frozen=True):
    """What of an episode is trained, and what is not."""

    episode_id: str
    num_calls: int
    samples: tuple[Sample, ...] = ()
    excluded: tuple[Exclusion, ...] = ()


class GroupView(Record, frozen=True):
    """Episodes that are compared with each other."""

    group_id: str
    run: str
    task: str
    round: int
    size: int
    state: GroupState
    reason: SkipReason | None = None
    created_ms: int = 0
    members: tuple[Member, ...] = ()


class VersionView(Record, frozen=True):
    """A published version of a policy."""

    policy: str
    version: int
    state: VersionState
    epoch: int = 0
    folder: str = ""
    digest: str = ""
    detail: str = ""
    metrics: Json = msgspec.field(default_factory=dict[str, Any])
    created_ms: int = 0
    activated_ms: int | None = None


class PolicyView(Record, frozen=True):
    """A policy; `active` is the version that new episodes get."""

    policy: str
    active: int
    epoch: int = 0
    model: str | None = None
    versions: tuple[VersionView, ...] = ()


class BatchView(Record, frozen=True):
    """What a trainer took for one step, and what came of it."""

    batch_id: str
    policy: str
    step: int
    state: str
    epoch: int = 0
    version: int | None = None
    group_ids: tuple[str, ...] = ()
    metrics: Json = msgspec.field(default_factory=dict[str, Any])
    manifest: Any = None
    checks: Json = msgspec.field(default_factory=dict[str, Any])
    created_ms: int = 0


class EngineView(Record, frozen=True):
    """An engine as the gateway knows it."""

    url: str
    fitness: str
    detail: str = ""
    bases: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    adapters: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    num_in_flight: int = 0


def read_as(kind: type[RecordT], told: Json) -> RecordT:
    """The record of this kind that a JSON object tells."""
    return msgspec.convert(told, kind)
