"""A policy's release as its page shows it, and what each act of a person would do to it, in words. Pure.

How versions stand is worked out by the gateway (`gateway/releasing.py`); here it becomes rows, shares of evidence and
sentences. What cannot be done now has no sentence and so no button.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from gateway.dashboard.wording import number
from gateway.releasing import Release
from gateway.routes.release_views import tally_view
from tracker.trials import Guard, Trial, TrialState, Verdict
from tracker.types import Version, VersionState

DIRECT: Final = "direct"
MAX_CANARY: Final = 95.0
MAX_SHADOW: Final = 100.0
SHADOWED: Final = (VersionState.ACTIVE, VersionState.RETIRED)


class ReleaseAct(enum.StrEnum):
    """What a person may do to a release."""

    PROMOTE = "promote"
    PAUSE = "pause"
    RESUME = "resume"
    SHARE = "share"
    SHADOW = "shadow"
    END_SHADOW = "end-shadow"


@dataclass(frozen=True, slots=True)
class Evidence:
    """How far a claim has come."""

    claim: str
    share: float
    """Of the way to what it needs, on the scale of its logarithm."""
    told: str


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a trial."""

    name: str
    version: int
    share: float
    """Of new groups, from 0 to 1."""
    num_begun: int
    num_scored: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """How the versions of a policy stand."""

    mode: str
    stable: int
    trial: Trial | None
    arms: tuple[Arm, ...]
    lower: float | None
    upper: float | None
    reach: float
    """The greatest difference that rewards allow."""
    evidence: tuple[Evidence, ...]
    guards: tuple[Guard, ...]
    unit: str
    waiting: tuple[int, ...]
    comparisons: tuple[dict[str, Any], ...]
    shadow_version: int | None
    shadow_share: float | None
    candidates: tuple[int, ...]
    """Versions that may be the shadow, newest first."""
    acts: tuple[ReleaseAct, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """An act before it is done."""

    act: ReleaseAct
    title: str
    button: str
    lines: tuple[str, ...]
    version: int | None = None
    share: float | None = None


def view_of(release: Release, versions: Sequence[Version]) -> ReleaseView:
    """Rows for the page."""
    trial, verdict, rules = release.trial, release.verdict, release.settings.release.rules
    return ReleaseView(
        mode=release.settings.release.mode,
        stable=release.policy.active,
        trial=trial,
        arms=() if trial is None or verdict is None else _arms(trial, verdict, release.counts),
        lower=None if verdict is None else verdict.lower,
        upper=None if verdict is None else verdict.upper,
        reach=rules.reward_high - rules.reward_low,
        evidence=() if verdict is None else _evidence(verdict),
        guards=() if verdict is None else verdict.guards,
        unit=rules.unit,
        waiting=tuple(one.version for one in release.trials if one.state is TrialState.WAITING),
        comparisons=tuple(tally_view(tally) for tally in release.tallies),
        shadow_version=None if release.shadow is None else release.shadow.version,
        shadow_share=None if release.shadow is None else release.shadow.share,
        candidates=tuple(one.version for one in reversed(versions) if one.state in SHADOWED),
        acts=_possible(release, versions),
    )


def tell(act: ReleaseAct, release: Release, version: int | None, share: float | None) -> Told:
    """What an act would do now."""
    name, trial = release.policy.policy, release.trial
    stable = _named(release.policy.active)
    on_trial = _named(version if trial is None else trial.version)
    match act:
        case ReleaseAct.PROMOTE:
            lines = (
                f"All new episodes get {on_trial} at once, whatever is known of it; {stable} is retired.",
                "Its trial ends. Of the versions that wait, the newest is next.",
            )
            return Told(act, f"Promote {on_trial} of {name}", f"Promote {on_trial}", lines, version)
        case ReleaseAct.PAUSE:
            lines = (
                f"New groups get {stable}. Groups that have begun with {on_trial} go on with it.",
                "Nothing is promoted until it is resumed; guards still roll back.",
            )
            return Told(act, f"Pause the trial of {on_trial}", "Pause the trial", lines)
        case ReleaseAct.RESUME:
            lines = (f"New groups get {on_trial} again, by its share.",)
            return Told(act, f"Resume the trial of {on_trial}", "Resume the trial", lines)
        case ReleaseAct.SHARE:
            lines = (
                f"{number(share)} % of new groups get {on_trial}, the others {stable}.",
                "Groups that have begun keep what they have.",
            )
            return Told(act, f"Change the share of {on_trial}", f"Give it {number(share)} %", lines, version, share)
        case ReleaseAct.SHADOW:
            lines = (
                f"Copies of {number(share)} % of the calls to {stable} go to {_named(version)} after their agent has "
                "its answer.",
                "Nobody is answered with what it says, nothing of it is trained or counted against a budget.",
            )
            return Told(act, f"Shadow calls of {name}", f"Shadow with {_named(version)}", lines, version, share)
        case ReleaseAct.END_SHADOW:
            lines = ("No more calls are copied. What was compared so far stays.",)
            return Told(act, f"End the shadow of {name}", "End the shadow", lines)
        case _:
            assert_never(act)


def _possible(release: Release, versions: Sequence[Version]) -> tuple[ReleaseAct, ...]:
    found: list[ReleaseAct] = []
    if release.trial is not None:
        is_paused = release.trial.state is TrialState.PAUSED
        found += [ReleaseAct.PROMOTE, ReleaseAct.RESUME if is_paused else ReleaseAct.PAUSE, ReleaseAct.SHARE]
    if any(one.state in SHADOWED for one in versions):
        found.append(ReleaseAct.SHADOW)
    if release.shadow is not None:
        found.append(ReleaseAct.END_SHADOW)
    return tuple(found)


def _arms(trial: Trial, verdict: Verdict, counts: dict[str, int]) -> tuple[Arm, ...]:
    canary_share = 0.0 if trial.state is TrialState.PAUSED else trial.share
    return (
        Arm(
            name="stable",
            version=trial.stable,
            share=1 - canary_share,
            num_begun=counts.get("stable", 0),
            num_scored=verdict.num_stable,
            mean=verdict.mean_stable,
        ),
        Arm(
            name="canary",
            version=trial.version,
            share=canary_share,
            num_begun=counts.get("canary", 0),
            num_scored=verdict.num_canary,
            mean=verdict.mean_canary,
        ),
    )


def _evidence(verdict: Verdict) -> tuple[Evidence, ...]:
    return (
        _claim("It is better", verdict.evidence_better, verdict.needed_better),
        _claim("It is worse", verdict.evidence_worse, verdict.needed_worse),
    )


def _claim(claim: str, evidence: float, needed: float) -> Evidence:
    """Evidence multiplies, so its way is told on the scale of its logarithm."""
    share = math.log(max(evidence, 1.0)) / math.log(needed) if needed > 1 else float(evidence >= needed)
    return Evidence(claim=claim, share=min(1.0, share), told=f"{number(evidence)} of {number(needed)}")


def _named(version: int | None) -> str:
    return f"version {version}" if version else "the base model"
