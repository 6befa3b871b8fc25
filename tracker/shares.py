"""How much of what was sampled was trained, and how much of that was found to be what the engine saw. Pure.

Counts add up over batches; the shares are worked out of the sums and stored nowhere. The context-faithful share is that
of trained tokens whose whole context was compared with the call's receipt and was equal; the sampled-faithful share is
that of trained tokens whose own ids were. Coverage is trained by sampled tokens of the policy in the episodes of the
batches' groups. Who compared, the trainer before its step or `hone verify` now, is for the caller to say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from tracker.manifests import Coverage, Manifest, readable_manifest
from tracker.types import Batch, Record


class VersionGap(Record, frozen=True):
    """How far the trainer's log-probabilities were from the engine's, over the tokens that one version sampled."""

    mean: float
    """Mean absolute difference in nats."""
    maximum: float
    ratio: float
    """Mean of exp(ours - engine's)."""
    num_tokens: int

    def plus(self, other: VersionGap) -> VersionGap:
        total = self.num_tokens + other.num_tokens
        own, its = self.num_tokens / total, other.num_tokens / total
        return VersionGap(
            mean=own * self.mean + its * other.mean,
            maximum=max(self.maximum, other.maximum),
            ratio=own * self.ratio + its * other.ratio,
            num_tokens=total,
        )


class Shares(Record, frozen=True):
    """Counts of tokens of one batch, or of several."""

    batches: int = 0
    trained: int = 0
    context: int = 0
    """Trained tokens whose context is the receipt's."""
    sampled: int = 0
    """Trained tokens that are the receipt's sampled ids."""
    coverage: Coverage = Coverage()
    gaps: dict[str, VersionGap] = msgspec.field(default_factory=dict[str, VersionGap])
    """By version."""

    def view(self) -> dict[str, Any]:
        """As it is told to people and programs; a share of nothing is null."""
        all_sampled = self.coverage.sampled_tokens
        return {
            "batches": self.batches,
            "trained_tokens": self.trained,
            "context_faithful": _share(self.context, self.trained),
            "sampled_faithful": _share(self.sampled, self.trained),
            "sampled_tokens": all_sampled,
            "coverage": _share(self.trained, all_sampled),
            "excluded_tokens": self.coverage.excluded,
            "gap_by_version": {version: msgspec.structs.asdict(gap) for version, gap in sorted(self.gaps.items())},
        }


def total(shares: Iterable[Shares]) -> Shares:
    """The sum of several."""
    listed = list(shares)
    gaps: dict[str, VersionGap] = {}
    excluded = Counter[str]()
    for one in listed:
        excluded.update(one.coverage.excluded)
        for version, gap in one.gaps.items():
            gaps[version] = gaps[version].plus(gap) if version in gaps else gap
    sampled_tokens = sum(one.coverage.sampled_tokens for one in listed)
    return Shares(
        batches=sum(one.batches for one in listed),
        trained=sum(one.trained for one in listed),
        context=sum(one.context for one in listed),
        sampled=sum(one.sampled for one in listed),
        coverage=Coverage(sampled_tokens=sampled_tokens, excluded=dict(sorted(excluded.items()))),
        gaps=gaps,
    )


def shares_of(batch: Batch) -> Shares:
    """What a stored batch says of itself: the counts of the check before its step."""
    return shares_told(batch, readable_manifest(batch.manifest))


def shares_told(batch: Batch, manifest: Manifest | None) -> Shares:
    """The same of a batch whose manifest was read before; `None` where it is none that can be.

    How many tokens were trained is what the step counted; tokens that no valid manifest speaks of were not checked.
    """
    metrics = metrics_of(batch)
    if manifest is None:
        return Shares(batches=1, trained=_trained(metrics, 0), gaps=gaps_of(metrics))
    return Shares(
        batches=1,
        trained=_trained(metrics, manifest.num_tokens),
        context=manifest.checked.context,
        sampled=manifest.checked.sampled,
        coverage=manifest.coverage,
        gaps=gaps_of(metrics),
    )


def metrics_of(batch: Batch) -> dict[str, Any]:
    """The metrics of a batch as an object; empty where they are none."""
    try:
        found: Any = json.loads(batch.metrics)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def gaps_of(metrics: dict[str, Any]) -> dict[str, VersionGap]:
    """The gaps that a step measured; those over no token say nothing."""
    try:
        gaps = msgspec.convert(metrics.get("gap_by_version", {}), dict[str, VersionGap])
    except msgspec.ValidationError:
        return {}
    return {version: gap for version, gap in gaps.items() if gap.num_tokens > 0}


def _trained(metrics: dict[str, Any], otherwise: int) -> int:
    counted = metrics.get("trained_tokens")
    return counted if isinstance(counted, int) else otherwise


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
