"""One step of a policy as its page shows it: numbers in words, shares that were proven, spans of the manifest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.dashboard.curves import StepView, read_step
from gateway.dashboard.wording import lasted, number, percent
from tracker.errors import NotFound
from tracker.manifests import NO_MANIFEST, Manifest
from tracker.overview import StepTold
from tracker.shares import Shares, VersionGap, shares_told
from tracker.types import Batch
from tracker.verification import DROPPED, Finding

MAX_FAULTS: Final = 50
ELSEWHERE: Final = "of another tenant"
REASONS: Final = {
    "no_credit": "its episode did not count in its group, or its advantage was never worked out",
    "too_old": "its version was too old when the batch was taken",
    "no_ids": "the engine gave no token ids",
    "no_prompt_ids": "the engine gave no ids of the prompt",
    "ids_usage_mismatch": "ids and usage disagreed",
    "ids_logprobs_mismatch": "ids and log-probabilities disagreed",
    "bad_logprob": "a log-probability was missing or not finite",
    "upstream_failed": "the engine failed",
    "context_limit": "the context was full",
    "client_gone": "the agent left before its answer",
    "superseded": "a retry was answered instead",
    "ambiguous_retry": "a retry could belong to several attempts",
    "lost": "it was lost with its gateway",
    "stale": "its version had become too old",
    "not_policy_distribution": "it was not sampled from the policy's own distribution",
    "role": "its role is not trained",
    "images": "it had images",
    "truncated": "its limit cut it",
    "unrecorded": "it was served without being recorded",
    "redacted": "a redaction rule matched",
    "removed": "its tokens were removed",
}
"""Why sampled tokens are not trained, for people."""

NUMBERS: Final = (
    ("Reward of its calls", "call_reward_mean"),
    ("Loss", "loss"),
    ("Gradient norm", "grad_norm"),
    ("Entropy (nats a token)", "entropy"),
    ("KL to the base model (nats a token)", "kl"),
    ("Episodes", "episodes"),
    ("Rows", "rows"),
    ("Branches", "branches"),
    ("Micro-batches", "micro_batches"),
    ("Tokens of all rows", "raw_tokens"),
    ("Tokens as merged rows", "merged_tokens"),
    ("Tokens that were run", "run_tokens"),
)
TIMES: Final = (("Waited", "wait_s"), ("Trained", "train_s"), ("Published", "publish_s"))
WORDS: Final = (("Loss type", "loss_type"), ("Off-policy weights by", "off_policy"), ("Probe", "detail"))


@dataclass(frozen=True, slots=True)
class Left:
    """Sampled tokens that are not trained, for one reason."""

    reason: str
    why: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPage:
    """What a step's page shows above its groups and its manifest."""

    batch: Batch
    view: StepView
    shares: dict[str, Any]
    gaps: tuple[tuple[str, VersionGap], ...]
    left_out: tuple[Left, ...]
    facts: tuple[tuple[str, str], ...]
    """(name, value) in words."""
    why_no_manifest: str
    """Empty where there is one that can be read."""


@dataclass(frozen=True, slots=True)
class Span:
    """The trained tokens of one choice."""

    episode_id: str
    call_id: str
    choice: int
    version: int
    start: int
    end: int
    advantage: float
    receipt: str
    is_own: bool = False

    def seen_by(self, own: Collection[str]) -> Span:
        """As a viewer sees it to whom these episodes belong."""
        if self.episode_id in own:
            return replace(self, is_own=True)
        return replace(self, episode_id=ELSEWHERE, call_id="")


@dataclass(frozen=True, slots=True)
class FindingView:
    """What checking a batch came to."""

    is_ok: bool
    is_checked: bool
    """False where there is nothing to check."""
    line: str
    at_ms: int
    faults: tuple[str, ...]
    num_more: int


def chosen_policy(names: Sequence[str], asked: str | None) -> str:
    """The policy that is asked for, else the first; raises `NotFound`."""
    if asked is None:
        return names[0] if names else ""
    if asked not in names:
        raise NotFound(f"There is no policy {asked!r}; there is {', '.join(names) or 'none'}.", param="policy")
    return asked


def step_page(batch: Batch, manifest: Manifest | None) -> StepPage:
    """Everything of a batch that stands in its row."""
    view = read_step(
        StepTold(
            batch_id=batch.batch_id,
            policy=batch.policy,
            epoch=batch.epoch,
            step=batch.step,
            state=batch.state,
            num_groups=len(batch.group_ids),
            created_ms=batch.created_ms,
            version=batch.version,
            metrics=batch.metrics,
        )
    )
    shares = shares_told(batch, manifest)
    return StepPage(
        batch=batch,
        view=view,
        shares=shares.view(),
        gaps=tuple(sorted(shares.gaps.items(), key=lambda item: int(item[0]) if item[0].isdecimal() else -1)),
        left_out=left_out(shares),
        facts=tuple(_facts(view)),
        why_no_manifest="" if manifest is not None else _why_no_manifest(batch),
    )


def left_out(shares: Shares) -> tuple[Left, ...]:
    """Most tokens first."""
    counted = sorted(shares.coverage.excluded.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Left(reason, REASONS.get(reason, ""), tokens) for reason, tokens in counted)


def manifest_page(manifest: Manifest | None, start: int, limit: int) -> list[Span]:
    """Some of the trained spans of a manifest, in its order."""
    return [
        Span(
            episode_id=span.episode_id,
            call_id=span.call_id,
            choice=span.choice,
            version=span.version,
            start=span.start,
            end=span.end,
            advantage=span.advantage,
            receipt=span.receipt,
        )
        for span in (manifest.spans[start : start + limit] if manifest is not None else ())
    ]


def finding_view(finding: Finding, line: str, own: Collection[str], at_ms: int) -> FindingView:
    """What was found, without the names of episodes of other tenants."""
    faults = [
        fault.line() if not fault.episode_id or fault.episode_id in own else f"an episode {ELSEWHERE}: {fault.what}"
        for fault in finding.faults
    ]
    told = line if not faults else f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'}"
    return FindingView(
        is_ok=not faults,
        is_checked=finding.is_trained_on,
        line=told.partition(": ")[2] or told,
        at_ms=at_ms,
        faults=tuple(faults[:MAX_FAULTS]),
        num_more=max(0, len(faults) - MAX_FAULTS),
    )


def _why_no_manifest(batch: Batch) -> str:
    if batch.manifest != NO_MANIFEST:
        return "Its manifest cannot be read: it breaks its own digest, or has a form that this Hone does not know."
    if batch.state == DROPPED:
        return "It was dropped before it was checked, so it has no manifest."
    return "It has no manifest yet: the trainer writes it right before the step."


def _facts(view: StepView) -> Iterator[tuple[str, str]]:
    """What of a step is not told by tiles, as far as its trainer told it."""
    told = [
        *((name, _shown(view.number(field), number)) for name, field in NUMBERS),
        ("Weights that were cut", _shown(view.number("capped"), _tenth)),
        ("Idle", _shown(view.idle_share, _tenth)),
        *((name, _shown(view.number(field), lambda seconds: lasted(1000 * seconds))) for name, field in TIMES),
        *((name, str(view.metrics.get(field) or "")) for name, field in WORDS),
    ]
    return (fact for fact in told if fact[1])


def _tenth(share: float) -> str:
    return percent(share, 1)


def _shown(value: float | None, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value)
