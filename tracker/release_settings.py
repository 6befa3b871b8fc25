"""How versions of a policy are released: the `[policies.release]` table of `hone.toml`.

`direct` (the default) gives a version to all new episodes as soon as it is served. `canary` makes it earn that. What
the rules mean is in `trials.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracker.trials import Rules


class ReleaseSettings(BaseModel):
    """Of one policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["direct", "canary"] = "direct"
    share: float = Field(default=50.0, gt=0, le=95)
    """Percent of new groups that get the version on trial. Half of them decides soonest."""
    unit: Literal["episode", "group"] = "episode"
    """What is compared. `group`: means of whole groups, where tasks differ so much that attempts at one are alike."""
    min_episodes: int = Field(default=48, ge=2)
    """Scored episodes of both arms, below which a claim needs ten times the evidence."""
    max_episodes: int = Field(default=400, ge=2, le=2_000)
    """Scored episodes of both arms, at which `undecided` says what becomes of a version of which nothing was shown."""
    undecided: Literal["promote", "roll_back", "hold"] = "promote"
    alpha_roll_back: float = Field(default=0.04, gt=0, lt=0.5)
    """How often a version that is as good may be rolled back for its reward, at most."""
    alpha_promote: float = Field(default=0.005, gt=0, lt=0.5)
    """How often a version that is as good may be promoted as better, at most."""
    alpha_guard: float = Field(default=0.002, gt=0, lt=0.5)
    """How often each guard may trip for a version that keeps its limit, at most."""
    margin: float = Field(default=0.0, ge=0, lt=1)
    """By how much of the range of rewards a version may be worse and count as good."""
    reward_low: float = Field(default=0.0, allow_inf_nan=False)
    reward_high: float = Field(default=1.0, allow_inf_nan=False)
    """The range of rewards. What lies outside counts as its end, and is counted."""
    min_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Guard: a mean reward that is shown to be lower rolls back, whatever the stable version has."""
    max_kl: float | None = Field(default=None, ge=0)
    """Guard, in nats a token: of the version's own training metrics, and of its answers as a shadow."""
    min_entropy: float | None = Field(default=None, ge=0)
    """Guard, in nats a token."""
    max_parse_errors: float | None = Field(default=0.1, ge=0, lt=1)
    """Guard: by how much more of its answers than of the stable version's nobody can parse."""
    max_truncation: float | None = Field(default=0.2, ge=0, lt=1)
    """Guard: by how much more of its answers than of the stable version's are cut by their limit."""
    max_latency_ratio: float | None = Field(default=3.0, gt=1)
    """Guard: how many times the stable version's median a typical call of it may take."""

    @model_validator(mode="after")
    def _are_in_order(self) -> ReleaseSettings:
        if self.reward_low >= self.reward_high:
            raise ValueError("release.reward_high must be above release.reward_low, as in 0 and 1")
        if self.min_episodes > self.max_episodes:
            raise ValueError("release.min_episodes must not be above release.max_episodes")
        if self.alpha_roll_back + self.alpha_promote >= 0.5:
            raise ValueError(
                "release.alpha_roll_back and release.alpha_promote: write 0.04 and 0.005, or other small numbers"
            )
        return self

    @property
    def rules(self) -> Rules:
        """What a trial is judged by."""
        return Rules(**self.model_dump(exclude={"mode", "share"}))
