"""What a rehearsal showed: from recorded calls and refusals to numbers, reasons and a verdict. Pure.

An agent is trainable if its command ended well and at least one token that it made the model sample would be trained.
Drift, refused requests and settings that were not honoured do not make it untrainable by themselves; they are told,
with what they cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.doctor.drift import Step, StepKind, steps_of
from gateway.routing import BIASES, NEUTRAL, uses_policy_sampling
from tracker.exclusion import exclusions
from tracker.samples import counts
from tracker.timeline import fold
from tracker.types import Call, Reason, Record, RunSettings

RETRIED: Final = frozenset({Reason.SUPERSEDED, Reason.AMBIGUOUS_RETRY})
OURS: Final = ("temperature", "top_p", "top_k", "min_p")
"""Fields of which a call records what was really sent."""


class Refusal(Record, frozen=True):
    """A request that the gateway refused; it is recorded nowhere else."""

    path: str
    status: int
    message: str
    param: str | None = None


class Rehearsed(Record, frozen=True):
    """One episode of a rehearsal."""

    episode_id: str
    run: RunSettings
    calls: tuple[Call, ...]


class Seen(Record, frozen=True):
    """Everything that a rehearsal saw."""

    exit_status: int
    """Of the command; negative where a signal ended it."""
    engine: str
    episodes: tuple[Rehearsed, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    paths: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Path -> number of requests."""
    was_stopped: bool = False
    """The user ended it, which says nothing about it."""
    timeout_s: float | None = None
    """It took longer than this, and was ended for it."""


class Overridden(Record, frozen=True):
    """A field of the agent's that was not honoured."""

    field: str
    asked: str
    sent: str
    """What stood in its place."""


class Left(Record, frozen=True):
    """What is not trained for one reason."""

    num_calls: int
    num_tokens: int


class Report(Record, frozen=True):
    """What is told."""

    reasons: tuple[str, ...]
    """Why it is not trainable; none where it is."""
    seen: Seen
    num_calls: int
    """Of policies."""
    num_text_calls: int
    """Of models that are no policy."""
    dialects: dict[str, int]
    roles: dict[str, int]
    models: dict[str, int]
    overridden: tuple[tuple[Overridden, int], ...]
    """With the number of calls."""
    steps: tuple[Step, ...]
    num_sampled: int
    num_trained: int
    left: dict[str, Left]
    """Reason -> what it leaves out."""
    num_rows: int
    num_samples: int
    num_raw_tokens: int
    num_distinct_tokens: int
    num_retries: int
    num_superseded: int
    cost: float | None

    @property
    def is_trainable(self) -> bool:
        return not self.reasons

    @property
    def share(self) -> float:
        """Of the sampled tokens, those that would be trained."""
        return self.num_trained / self.num_sampled if self.num_sampled else 0.0

    @property
    def trie_ratio(self) -> float:
        """How many times fewer tokens one trie has than one row a choice."""
        return self.num_raw_tokens / self.num_distinct_tokens if self.num_distinct_tokens else 1.0

    @property
    def split(self) -> tuple[Step, ...]:
        """Drifts that opened another episode."""
        homes = {call.call_id: episode.episode_id for episode in self.seen.episodes for call in episode.calls}
        return tuple(d for d in self.drifts if d.place is not None and homes[d.call_id] != homes[d.place.call_id])

    @property
    def drifts(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind is StepKind.DRIFTS)


def report_of(seen: Seen) -> Report:
    """Count what was seen, and judge it."""
    calls = [call for episode in seen.episodes for call in episode.calls]
    ours = [call for call in calls if call.policy is not None]
    numbers = [counts(episode.calls, episode.run) for episode in seen.episodes]
    timelines = [fold(episode.calls, episode.run) for episode in seen.episodes]
    trained = [node for timeline in timelines for tree in timeline.trees for node in tree.nodes if node.trained]
    costs = [call.usage.cost for call in calls if call.usage is not None and call.usage.cost is not None]
    left = _left(seen.episodes)
    draft = Report(
        reasons=(),
        seen=seen,
        num_calls=len(ours),
        num_text_calls=len(calls) - len(ours),
        dialects=_counted(call.dialect for call in calls),
        roles=_counted(call.role for call in ours),
        models=_counted(call.model for call in calls),
        overridden=tuple(Counter(one for e in seen.episodes for c in e.calls for one in overridden(c, e.run)).items()),
        steps=steps_of(_as_one(seen.episodes)),
        num_sampled=sum(len(choice.sampled_ids) for call in ours for choice in call.choices),
        num_trained=sum(node.num_sampled for node in trained),
        left=left,
        num_rows=len(trained),
        num_samples=sum(each.num_samples for each in numbers),
        num_raw_tokens=sum(each.num_raw_tokens for each in numbers),
        num_distinct_tokens=sum(each.num_distinct_tokens for each in numbers),
        num_retries=sum(call.retry > 0 for call in calls),
        num_superseded=sum(left[reason].num_calls for reason in RETRIED if reason in left),
        cost=sum(costs) if costs else None,
    )
    return msgspec.structs.replace(draft, reasons=_reasons(draft))


def _as_one(episodes: Iterable[Rehearsed]) -> list[Call]:
    """The calls of all episodes in the order they began: a history that is rewritten may open another episode."""
    calls = sorted((call for episode in episodes for call in episode.calls), key=lambda c: (c.started_ms, c.index))
    return [msgspec.structs.replace(call, index=number) for number, call in enumerate(calls)]


def overridden(call: Call, run: RunSettings) -> list[Overridden]:
    """The sampling fields of a trained call that the policy's stand over."""
    if call.policy is None or not uses_policy_sampling(run):
        return []
    request: dict[str, Any] = msgspec.json.decode(call.request, type=dict[str, Any])
    given = {name: value for name, value in request.items() if value is not None}
    found = [(name, given[name], getattr(call.sampling, name)) for name in OURS if name in given]
    found += [(name, given[name], neutral) for name, neutral in NEUTRAL.items() if name in given]
    told = [Overridden(field=name, asked=f"{was}", sent=f"{now:g}") for name, was, now in found if was != now]
    told += [Overridden(field=name, asked=f"{given[name]}", sent="left out") for name in BIASES if given.get(name)]
    return told


def _left(episodes: Iterable[Rehearsed]) -> dict[str, Left]:
    """What is not trained, by reason, the most tokens first; calls of upstreams are another matter."""
    num_calls: Counter[str] = Counter()
    num_tokens: Counter[str] = Counter()
    for episode in episodes:
        ours = {call.call_id: call for call in episode.calls if call.policy is not None}
        excluded = exclusions(episode.calls, episode.run)
        for call_id, reason in {(call_id, reason.value) for (call_id, _), reason in excluded.items()}:
            num_calls[reason] += call_id in ours
        for (call_id, index), reason in excluded.items():
            choices = ours[call_id].choices if call_id in ours else ()
            num_tokens[reason.value] += sum(len(choice.sampled_ids) for choice in choices if choice.index == index)
    reasons = sorted((reason for reason in num_calls if num_calls[reason]), key=lambda reason: -num_tokens[reason])
    return {reason: Left(num_calls=num_calls[reason], num_tokens=num_tokens[reason]) for reason in reasons}


def _reasons(report: Report) -> tuple[str, ...]:
    """Why the agent cannot be trained as it is."""
    found: list[str] = []
    if report.seen.exit_status != 0 and not report.seen.was_stopped:
        why = "" if report.seen.timeout_s is None else f": --timeout ended it after {report.seen.timeout_s:g} s"
        found.append(f"the command ended with status {report.seen.exit_status}{why}")
    if report.num_calls == 0:
        others = f" ({report.num_text_calls} went to upstreams)" if report.num_text_calls else ""
        found.append(f"no call to a policy was recorded{others}")
    elif report.num_trained == 0:
        found.append(f"no sampled token would be trained: {', '.join(report.left)}")
    return tuple(found)


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def refusals_of(refusals: Sequence[Refusal]) -> Mapping[Refusal, int]:
    """Each refusal with how often it came, in order of the first."""
    return Counter(refusals)
