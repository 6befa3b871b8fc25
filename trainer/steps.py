"""What passes between the parts of the trainer: the step that was taken, and what came of it.

Plain records, so that feed, loss, publishing and loop know each other only by these. No logic beyond what is derived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tracker.samples import Row
from tracker.types import Batch


@dataclass(frozen=True, slots=True)
class FamilyShare:
    """What one family of tasks has in a step."""

    groups: int
    reward_mean: float | None
    """Over the episodes that are scored."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch, ready to be trained."""

    batch: Batch
    rows: tuple[Row, ...]
    """At least one, each with at least one trained token."""
    advantages: tuple[float, ...]
    """One a row, from the frozen credit."""
    loss: str
    lags: tuple[int, ...]
    """One a row: versions published between the one that sampled it and the newest."""
    reward_mean: float | None = None
    call_reward_mean: float | None = None
    """Over the policy's calls that are scored themselves."""
    families: dict[str, FamilyShare] = field(default_factory=dict[str, FamilyShare])
    """Empty where the run has none."""
    num_groups: int = 0
    manifest: bytes = b"null"
    waited_s: float = 0.0

    @property
    def num_trained(self) -> int:
        return sum(len(row.sampled_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Gap:
    """How far the trainer's log-probabilities are from the engine's, in nats, for the tokens of one kind."""

    mean: float
    maximum: float
    ratio: float
    """Mean of exp(ours - engine's): 1 where both compute the same distribution."""
    num_tokens: int


OffPolicyLevel = Literal["token", "sequence", "none"]
"""What truncated importance sampling weighs; `none`: nothing, since the engine's are taken as the old ones."""


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """How a step corrected for rows that another version sampled, or the same one in other arithmetic."""

    level: OffPolicyLevel
    cap: float
    """The greatest weight."""
    ess: float
    """Effective sample size of the weights before the cap, as a share of the tokens or rows; 1: all weigh the same."""
    capped: float
    """Share of the tokens or rows whose weight was cut."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one optimiser step did."""

    loss: float
    grad_norm: float
    entropy: float
    kl: float | None
    off_policy: OffPolicy
    num_raw_tokens: int
    """Prompt and sampled ids of all rows."""
    num_merged_tokens: int
    """The same as merged rows: what is a whole prefix of another row counts once."""
    num_run_tokens: int
    """What went through the model: the distinct tokens, and what micro-batches share once in each of them."""
    num_distinct_tokens: int
    num_branches: int
    num_micro_batches: int
    train_s: float
    gap_at_no_lag: Gap | None = None
    gap_by_version: dict[int, Gap] = field(default_factory=dict[int, Gap])
    problem: str = ""
    """Why the optimiser did not step; empty where it did."""

    @property
    def ess(self) -> float:
        return self.off_policy.ess

    @property
    def merge_ratio(self) -> float:
        return self.num_raw_tokens / self.num_merged_tokens

    @property
    def trie_ratio(self) -> float:
        """How many times fewer tokens were run than one row a call has."""
        return self.num_raw_tokens / self.num_run_tokens
