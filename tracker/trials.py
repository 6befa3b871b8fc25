"""The nouns of a release: a version's trial, the rules it is judged by, what was seen of it, a shadow. Pure.

A version on trial is the canary; the one that all other groups get is stable; a shadow gets copies of calls. What a
trial amounts to is `judging.py`'s, who acts on it `releases.py`'s.
"""

from __future__ import annotations

import enum
from typing import Final

from tracker.likeness import UNSEEN, Likeness
from tracker.measures import Measures
from tracker.types import Record

RUN_WEIGHT: Final = 8
"""For how many attempts at a new task counts what its run had before the trial."""
UNKNOWN: Final = 4.0
"""Attempts at a task before the trial that weigh as much as everything since, in what is expected there."""


class TrialState(enum.StrEnum):
    """Where a version's trial stands."""

    WAITING = "waiting"
    """Another version is on trial; of those that wait the newest is next."""
    RUNNING = "running"
    PAUSED = "paused"
    """New groups get stable; nothing is promoted, and guards still roll back."""
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"
    """A newer version got its turn, or all traffic."""


NOT_TRIED: Final = "it was not tried"
"""How the detail of a version begins that was superseded before it got anything."""


OPEN: Final = (TrialState.RUNNING, TrialState.PAUSED)


class Trial(Record, frozen=True):
    """One version's trial."""

    policy: str
    version: int
    epoch: int
    stable: int
    state: TrialState
    share: float
    """From 0 to 1."""
    salt: str
    created_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None


class ReleaseEvent(Record, frozen=True):
    """What became of a version, as the list that only grows keeps it."""

    policy: str
    version: int
    at_ms: int
    kind: str
    """`waiting`, `started`, `share`, `paused`, `resumed`, `promoted`, `rolled_back`, `shadow` …"""
    by: str = "hone"
    """The key it was done with; `hone` where the rules did it."""
    why: str = ""
    numbers: bytes = b"null"
    """The verdict it was done on (JSON)."""
    seq: int = 0


class Shadow(Record, frozen=True):
    """The version of a policy that gets copies of calls."""

    policy: str
    version: int
    share: float
    """Of the calls to the stable version, from 0 to 1."""


class Tally(Record, frozen=True):
    """How a shadow compares with the version whose calls it got copies of."""

    policy: str
    version: int
    against: int
    numbers: dict[str, float]


class Rules(Record, frozen=True):
    """What a trial is judged by: the fields of `ReleaseSettings`, where they are told."""

    unit: str = "episode"
    min_episodes: int = 48
    max_episodes: int = 400
    undecided: str = "promote"
    alpha_roll_back: float = 0.04
    alpha_promote: float = 0.005
    alpha_guard: float = 0.002
    margin: float = 0.0
    reward_low: float = 0.0
    reward_high: float = 1.0
    min_reward: float | None = None
    max_kl: float | None = None
    min_entropy: float | None = None
    max_parse_errors: float | None = 0.1
    max_truncation: float | None = 0.2
    max_latency_ratio: float | None = 3.0

    def scaled(self, reward: float) -> float:
        """A reward as a part of the range; what lies outside counts as its end."""
        part = (reward - self.reward_low) / (self.reward_high - self.reward_low)
        return min(max(part, 0.0), 1.0)


class Seen(Record, frozen=True):
    """What is known of an archived episode of a trial that got what its arm says."""

    is_canary: bool
    share: float
    reward: float | None = None
    """`None` is unscored: it counts for the guards only."""
    measures: Measures = Measures()
    group_id: str | None = None
    group_size: int = 0
    """How many of its group there are; 0 while it may get more."""
    task_mean: float | None = None
    """What attempts at its task had before the trial, on average; at a new task, those of its run."""
    num_before: int = 0
    """How many those were, or `RUN_WEIGHT` where they are only of its run."""
    num_attempts: int = 1
    """How many episodes its group is to have."""
    likeness: Likeness = UNSEEN
    """How alike attempts at a task of its run were before the trial, as far as `task_mean` does not explain it."""


class Facts(Record, frozen=True):
    """What is known of the canary beside its episodes, in nats a token."""

    trained_kl: float | None = None
    """As its trainer told it."""
    shadow_kl: float | None = None
    """As its scores of the stable version's answers say."""


class Outcome(enum.StrEnum):
    """What follows."""

    GOES_ON = "goes_on"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"


class Guard(Record, frozen=True, omit_defaults=False):
    """How a guard stands."""

    name: str
    limit: float
    stable: float | None = None
    canary: float | None = None
    evidence: float | None = None
    """`None` where a number is compared as it is."""
    needed: float | None = None
    tripped: bool = False
    side: str = "over"
    """Where of its limit nothing may be: `over` or `under`."""


class Verdict(Record, frozen=True, omit_defaults=False):
    """What a trial amounts to now. Rewards are in the units in which they were given."""

    outcome: Outcome = Outcome.GOES_ON
    why: str = ""
    num_stable: int = 0
    """Scored episodes (or groups)."""
    num_canary: int = 0
    num_clipped: int = 0
    """Rewards outside of the range."""
    mean_stable: float | None = None
    mean_canary: float | None = None
    lower: float | None = None
    """Of the difference, canary minus stable; never wrong with probability 1 - alpha_promote."""
    upper: float | None = None
    """The same with alpha_roll_back."""
    weight: float = 1.0
    """What the newest episode counted for: 1 where attempts at a task have nothing in common, one over their number
    where they are all the same."""
    evidence_worse: float = 1.0
    needed_worse: float = 1.0
    evidence_better: float = 1.0
    needed_better: float = 1.0
    guards: tuple[Guard, ...] = ()
