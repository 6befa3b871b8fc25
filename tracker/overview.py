"""What the whole ledger looks like in numbers, for whoever watches it: nouns without the SQL that fills them.

They name no tenant and no episode. Reading them is left to `overview_reading.py` and `schema.py`.
"""

from __future__ import annotations

import enum

from tracker.intervals import Interval
from tracker.types import Record


class SchemaState(enum.StrEnum):
    """The schema of a database beside the one that this version of Hone brings along."""

    CURRENT = "current"
    NEWER = "newer"
    BEHIND = "behind"


class LastStep(Record, frozen=True):
    """The newest step of a policy that was trained."""

    step: int
    taken_ms: int
    """When its batch was taken."""
    lag_mean: float | None = None
    lag_max: float | None = None
    reward_mean: float | None = None
    gap_mean: float | None = None
    """Between the trainer's and the engine's log-probabilities where no version lies between them (nats)."""


class PolicyOverview(Record, frozen=True):
    """One policy."""

    policy: str
    active: int
    versions: dict[str, int]
    """state -> versions."""
    batches: dict[str, int]
    """state -> batches."""
    last: LastStep | None = None
    lease_ms: int | None = None
    """Until when a trainer holds it; `None` where none ever did."""


class RunCounts(Record, frozen=True):
    """How much there is of a run."""

    episodes: dict[str, int]
    """state -> episodes."""
    groups: dict[str, int]
    """state -> groups."""
    newest_ms: int | None = None
    """When its newest episode was opened."""


class Overview(Record, frozen=True):
    """All of it, as of one moment."""

    episodes: dict[str, int]
    """state -> episodes that are not archived."""
    groups: dict[str, int]
    """state -> groups."""
    policies: tuple[PolicyOverview, ...]


class StepTold(Record, frozen=True):
    """One batch of a policy, without what proves it."""

    batch_id: str
    policy: str
    epoch: int
    step: int
    state: str
    """`taken`, `trained` or `dropped`."""
    num_groups: int
    created_ms: int
    version: int | None = None
    metrics: bytes = b"{}"
    """As the trainer told them; empty until it stepped."""


class VersionReward(Record, frozen=True):
    """What the episodes of one version came to."""

    num_episodes: int
    reward: Interval | None
    """Over those that are scored."""
