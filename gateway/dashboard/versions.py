"""The versions of a policy as their page shows them, and what going back to one would do, in words. Pure.

Rewards are counted over episodes, gaps over the tokens that a version sampled and later steps trained, traffic over the
episodes that are open now. What is not known is a dash, never a zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from gateway.dashboard.charts import Chart, Line
from gateway.dashboard.curves import StepView
from tracker.intervals import Interval
from tracker.overview import VersionReward
from tracker.shares import VersionGap, gaps_of
from tracker.trials import NOT_TRIED
from tracker.types import Policy, Version, VersionState

PROBE: Final = "probe: "
BASE: Final = "the base model"
GOOD: Final = (VersionState.ACTIVE, VersionState.RETIRED)
"""States of versions that can be gone back to."""


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version, or 0 for the base model."""

    version: int
    state: str
    epoch: int
    num_episodes: int = 0
    reward: Interval | None = None
    gap: VersionGap | None = None
    probe: str = ""
    """`ok`, `weak`, `failed`, or empty where none was made."""
    detail: str = ""
    digest: str = ""
    folder: str = ""
    num_open: int | None = None
    """Open episodes that are pinned to it; `None` where nobody tells."""
    share: float | None = None
    """Of all open episodes; `None` where there are none."""
    batch_id: str = ""
    """The step that published it."""
    created_ms: int | None = None
    activated_ms: int | None = None
    is_active: bool = False
    can_go_back: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What was read of a policy besides its versions."""

    rewards: Mapping[int, VersionReward]
    gaps: Mapping[int, VersionGap]
    pins: Mapping[int, int] | None
    """version -> open episodes; `None` while the episode store does not answer."""
    has_trial: bool = False
    """Whether a version is on trial: then going back to the active one ends that."""


def version_views(policy: Policy, versions: Iterable[Version], known: Known) -> list[VersionView]:
    """The versions as they are given."""
    return [_view(policy, version, known) for version in versions]


def base_view(policy: Policy, known: Known) -> VersionView:
    """Version 0, which needs no row."""
    reward = known.rewards.get(0)
    is_active = policy.active == 0
    return VersionView(
        version=0,
        state="active" if is_active else "retired",
        epoch=0,
        num_episodes=reward.num_episodes if reward else 0,
        reward=reward.reward if reward else None,
        gap=known.gaps.get(0),
        detail=BASE,
        num_open=_num_open(0, known.pins),
        share=_share(0, known.pins),
        is_active=is_active,
        can_go_back=not is_active or known.has_trial,
    )


def gaps_by_version(steps: Iterable[StepView]) -> dict[int, VersionGap]:
    """What the steps measured of each version, together."""
    found: dict[int, VersionGap] = {}
    for step in steps:
        for name, gap in gaps_of(step.metrics).items():
            if name.isdecimal():
                version = int(name)
                found[version] = found[version].plus(gap) if version in found else gap
    return found


def probe_word(version: Version) -> str:
    """How a version's probe went, in one word.

    >>> probe_word(Version(policy="p", version=1, detail="probe: weak (the digest decides)"))
    'weak'
    """
    if version.state is VersionState.FAILED:
        return "" if was_passed_over(version) else "failed"
    told = version.detail.removeprefix(PROBE)
    return told.split(" ", 1)[0] if version.detail.startswith(PROBE) else ""


def was_passed_over(version: Version) -> bool:
    """Whether a newer version took its turn: it counts as failed, and nothing was wrong with it."""
    return version.state is VersionState.FAILED and version.detail.startswith(NOT_TRIED)


def reward_chart(newest_first: Sequence[VersionView], name: str) -> Chart:
    """Mean reward by version, with its interval."""
    shown = [view for view in reversed(newest_first) if view.reward is not None]
    rewards = [cast(Interval, view.reward) for view in shown]
    bounds = [reward.low is not None for reward in rewards]
    return Chart(
        title=f"Reward by version of {name}",
        labels=tuple(str(view.version) for view in shown),
        lines=(
            Line(
                "reward",
                tuple(reward.mean for reward in rewards),
                low=tuple(reward.low for reward in rewards) if any(bounds) else (),
                high=tuple(reward.high for reward in rewards) if any(bounds) else (),
            ),
        ),
        x_name="version",
        marks=tuple((place, "active") for place, view in enumerate(shown) if view.is_active),
        is_wide=True,
    )


def reach_of(views: Iterable[VersionView]) -> tuple[float, float]:
    """The scale on which the rewards of a table are drawn."""
    seen = [
        value
        for view in views
        if view.reward is not None
        for value in (view.reward.mean, view.reward.low, view.reward.high)
        if value is not None
    ]
    return (min(0.0, *seen), max(1.0, *seen)) if seen else (0.0, 1.0)


def what_rollback_does(
    policy: Policy, versions: Sequence[Version], version: int, pins: Mapping[int, int] | None
) -> list[str]:
    """What happens if a policy goes back to a version, before it does."""
    over = (VersionState.FAILED, VersionState.WITHDRAWN)
    later = [one.version for one in versions if one.version > version and one.state not in over]
    moved = sum(number for pinned, number in (pins or {}).items() if pinned in later)
    told = [f"New episodes get {_named(version)} at once, in place of {_named(policy.active)}."]
    if version == policy.active:
        told = [f"All new episodes get {_named(version)}; what is on trial against it has lost."]
    if later:
        told.append(f"{_listed(later)} {'is' if len(later) == 1 else 'are'} withdrawn and can never be served again.")
    if pins is None:
        told.append("How many open episodes move is not known: the episode store does not answer.")
    if moved:
        told.append(
            f"{moved} open {'episode' if moved == 1 else 'episodes'} move to {_named(version)} at their next call; "
            "what they called before is not trained."
        )
    told.append("Steps that are taken and not trained yet are dropped, and their groups are skipped.")
    told.append(
        f"The epoch rises to {policy.epoch + 1}: what a trainer publishes of epoch {policy.epoch} is refused, "
        f"and it goes on from the checkpoint of {_named(version)}."
    )
    return told


def batch_of(version: Version) -> str:
    """The batch whose step published a version; empty where its metrics name none."""
    try:
        found: Any = json.loads(version.metrics)
    except ValueError:
        return ""
    named = cast("dict[str, object]", found).get("batch_id") if isinstance(found, dict) else None
    return named if isinstance(named, str) else ""


def _view(policy: Policy, version: Version, known: Known) -> VersionView:
    reward = known.rewards.get(version.version)
    is_active = policy.active == version.version
    return VersionView(
        version=version.version,
        state=_state(version, is_active=is_active),
        epoch=version.epoch,
        num_episodes=reward.num_episodes if reward else 0,
        reward=reward.reward if reward else None,
        gap=known.gaps.get(version.version),
        probe=probe_word(version),
        detail=version.detail,
        digest=version.digest,
        folder=version.folder,
        num_open=_num_open(version.version, known.pins),
        share=_share(version.version, known.pins),
        batch_id=batch_of(version),
        created_ms=version.created_ms,
        activated_ms=version.activated_ms,
        is_active=is_active,
        can_go_back=version.state in GOOD and (version.version < policy.active or (is_active and known.has_trial)),
    )


def _state(version: Version, *, is_active: bool) -> str:
    """As the pages name it."""
    if was_passed_over(version):
        return "not_tried"
    return version.state.value if is_active or version.state is not VersionState.ACTIVE else "served"


def _num_open(version: int, pins: Mapping[int, int] | None) -> int | None:
    return None if pins is None else pins.get(version, 0)


def _share(version: int, pins: Mapping[int, int] | None) -> float | None:
    total = sum(pins.values()) if pins is not None else 0
    return (pins or {}).get(version, 0) / total if total else None


def _named(version: int) -> str:
    return f"version {version}" if version else BASE


def _listed(versions: Sequence[int]) -> str:
    """Versions in words.

    >>> _listed([4]), _listed([4, 5]), _listed([4, 5, 6])
    ('Version 4', 'Versions 4 and 5', 'Versions 4, 5 and 6')
    """
    names = [str(version) for version in versions]
    if len(names) == 1:
        return f"Version {names[0]}"
    return f"Versions {', '.join(names[:-1])} and {names[-1]}"
