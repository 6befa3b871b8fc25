"""Is it learning: the outcomes of a run's episodes as curves and rows of a table. Pure: what is read is `Progress`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from gateway.dashboard.charts import NUM_SERIES, Chart, Line, legend, line_chart
from tracker.outcomes import Outcome, Progress, VersionOutcome

DEFAULT_SUCCESS: Final = 0.5
"""From which reward on an episode counts as a success, unless somebody says so."""
ALL_TASKS: Final = "all tasks"


@dataclass(frozen=True, slots=True)
class PolicyProgress:
    """One policy's curve and its rows."""

    policy: str
    curve: Markup
    legend: Markup
    rows: tuple[VersionOutcome, ...]
    """Newest version first, all tasks before families."""
    verdict: str


def policy_progress(progress: Progress) -> tuple[PolicyProgress, ...]:
    """Each policy that the episodes called."""
    policies = dict.fromkeys(each.policy for each in progress.versions)
    return tuple(_of(policy, [each for each in progress.versions if each.policy == policy]) for policy in policies)


def chart_of(policy: str, found: Sequence[VersionOutcome]) -> Chart:
    """Mean reward by version: all tasks with their interval, and a line for each of the first families."""
    versions = sorted({each.version for each in found})
    families = sorted({each.family for each in found if each.family is not None})[: NUM_SERIES - 1]
    by_key = {(each.family, each.version): each.outcome for each in found}
    lines = tuple(
        _line(family, [by_key.get((family, version)) for version in versions]) for family in (None, *families)
    )
    return Chart(
        title=f"Reward of {policy} by version",
        labels=tuple(str(version) for version in versions),
        lines=lines,
        x_name="version",
        is_wide=True,
    )


def verdict_of(found: Sequence[VersionOutcome]) -> str:
    """The first version beside the newest one, in words: what the intervals allow to say, and no more."""
    known = [each for each in found if each.family is None and each.outcome.reward is not None]
    known.sort(key=lambda each: each.version)
    if not known:
        return "No episode is scored yet."
    first, last = known[0], known[-1]
    before, after = first.outcome.reward, last.outcome.reward
    assert before is not None
    assert after is not None
    if first.version == last.version:
        return f"All scored episodes are of version {last.version}: there is nothing to compare yet."
    told = f"From {before.mean:.3f} at version {first.version} to {after.mean:.3f} at version {last.version}"
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return f"{told}; too few episodes to tell."
    if after.low > before.high:
        return f"{told}: better, beyond both intervals."
    if after.high < before.low:
        return f"{told}: worse, beyond both intervals."
    return f"{told}; the intervals overlap."


def _of(policy: str, found: Sequence[VersionOutcome]) -> PolicyProgress:
    chart = chart_of(policy, found)
    newest_first = sorted(found, key=lambda each: (-each.version, each.family or ""))
    return PolicyProgress(
        policy=policy,
        curve=line_chart(chart),
        legend=legend(chart),
        rows=tuple(newest_first),
        verdict=verdict_of(found),
    )


def _line(family: str | None, outcomes: Sequence[Outcome | None]) -> Line:
    rewards = [None if outcome is None else outcome.reward for outcome in outcomes]
    return Line(
        name=ALL_TASKS if family is None else family,
        values=tuple(None if reward is None else reward.mean for reward in rewards),
        low=tuple(None if reward is None else reward.low for reward in rewards) if family is None else (),
        high=tuple(None if reward is None else reward.high for reward in rewards) if family is None else (),
    )
