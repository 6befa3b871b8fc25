"""Why a choice of a call is kept and shown but not trained: one reason each, from the calls of an episode alone.

What was amiss when the call ended (`call.reason`, `choice.reason`, its state) is taken as recorded; what only the
whole episode or the run can tell (retries, roles, the distribution, versions left behind) is worked out here, and the
tokens are checked once more, so that nothing ill-formed reaches a row whatever recorded it. Ids are compared with
counts only; they are never repaired. How stale a version is at the time of a step is left to the trainer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tracker.types import Call, CallState, Choice, Reason, RunSettings

ChoiceKey = tuple[str, int]
"""(call_id, index of the choice)."""

TRAIN: Final = "train"
CONTEXT: Final = "context"
DROP: Final = "drop"
UNLESS_NAMED: Final = {"title": DROP}
"""What becomes of a role that the run does not name; every other one is trained."""
MASK: Final = "mask"
"""With `train` and `drop`: what becomes of answers that were cut by their limit."""

MIN_LOGPROB: Final = -9999.0
"""Engines report this, or less, where they have no log-probability."""

_STATE_REASONS: Final = {
    CallState.COMPLETED: None,
    CallState.FAILED: Reason.UPSTREAM_FAILED,
    CallState.ABORTED: Reason.CLIENT_GONE,
    CallState.LOST: Reason.LOST,
}


def in_order(calls: Iterable[Call]) -> list[Call]:
    """Calls in the order they began: the one canonical order, whatever order they finished or were read in."""
    return sorted(calls, key=lambda call: (call.index, call.call_id))


def exclusions(calls: Iterable[Call], run: RunSettings) -> dict[ChoiceKey, Reason]:
    """The reason of every choice that is not trained; a choice that is trained is not in it.

    A call without choices stands under index 0: it is always excluded. What the run says of answers that were cut by
    their limit comes last: it is about answers that would be trained else.
    """
    ordered = in_order(calls)
    retried = _retry_reasons(ordered)
    pinned = {call.policy: call.version for call in ordered if call.state is CallState.COMPLETED}
    reasons: dict[ChoiceKey, Reason] = {}
    for call in ordered:
        whole = _call_reason(call, run, retried.get(call.call_id))
        stale = run.mode == "train" and run.on_stale != "train" and _left_behind(call, run, pinned)
        if not call.choices:
            reasons[call.call_id, 0] = whole or Reason.NO_IDS
        for choice in call.choices:
            reason = whole or choice.reason or token_reason(call, choice) or _distribution_reason(call, run)
            if reason is None and stale:
                reason = Reason.STALE
            if reason is not None:
                reasons[call.call_id, choice.index] = reason
    return reasons | dict.fromkeys(_cut_short(ordered, run, reasons), Reason.TRUNCATED)


def is_dropped(calls: Iterable[Call], run: RunSettings) -> bool:
    """Whether the run drops the episode for an answer that was cut by its limit.

    Told by two counts alone, so that SQL tells the same of an archived episode: nothing is trained, and something was
    cut.
    """
    listed = list(calls)
    if run.truncated != DROP or not any(choice.truncated for call in listed for choice in call.choices):
        return False
    excluded = exclusions(listed, run)
    return all((call.call_id, choice.index) in excluded for call in listed for choice in call.choices)


def role_rule(run: RunSettings, role: str) -> str:
    """What becomes of the calls of a role: `train`, `context` or `drop`.

    >>> role_rule(RunSettings(run="r"), "title"), role_rule(RunSettings(run="r", roles={"title": "train"}), "title")
    ('drop', 'train')
    """
    return run.roles.get(role, UNLESS_NAMED.get(role, TRAIN))


def context_choices(calls: Iterable[Call], run: RunSettings, reasons: Mapping[ChoiceKey, Reason]) -> set[ChoiceKey]:
    """Choices that stand in the tree without being trained: their role is context, or a rule hides some of their words,
    and nothing else is amiss, or the run does not train them since an answer was cut."""
    cut = {key for key, reason in reasons.items() if reason is Reason.TRUNCATED}
    return cut | {
        (call.call_id, choice.index)
        for call in calls
        for choice in call.choices
        if _is_context(call, run, reasons.get((call.call_id, choice.index)))
        and choice.reason in (None, Reason.REDACTED)
        and token_reason(call, choice) is None
    }


def _is_context(call: Call, run: RunSettings, reason: Reason | None) -> bool:
    if reason is Reason.REDACTED:
        return call.reason is None
    return reason is Reason.ROLE and role_rule(run, call.role) == CONTEXT


def token_reason(call: Call, choice: Choice) -> Reason | None:
    """What is amiss with the tokens of a choice, if anything."""
    if not choice.sampled_ids:
        return Reason.NO_IDS
    if not call.prompt_ids:
        return Reason.NO_PROMPT_IDS
    if _usage_disagrees(call):
        return Reason.IDS_USAGE_MISMATCH
    if len(choice.logprobs) != len(choice.sampled_ids):
        return Reason.IDS_LOGPROBS_MISMATCH
    if not all(map(math.isfinite, choice.logprobs)) or min(choice.logprobs) <= MIN_LOGPROB:
        return Reason.BAD_LOGPROB
    return None


def _cut_short(ordered: Sequence[Call], run: RunSettings, reasons: Mapping[ChoiceKey, Reason]) -> list[ChoiceKey]:
    """Choices that are not trained because they were cut by their limit, or, where such episodes are dropped, because
    one of the episode was."""
    if run.mode != "train" or run.truncated == TRAIN:
        return []
    trained = {
        (call.call_id, choice.index): choice.truncated
        for call in ordered
        for choice in call.choices
        if (call.call_id, choice.index) not in reasons
    }
    cut = [key for key, truncated in trained.items() if truncated]
    return cut if run.truncated == MASK or not cut else list(trained)


def _usage_disagrees(call: Call) -> bool:
    """Usage counts all choices together, so it says nothing where one of them has no ids at all."""
    if call.usage_completion_tokens is None or not all(choice.sampled_ids for choice in call.choices):
        return False
    return sum(len(choice.sampled_ids) for choice in call.choices) != call.usage_completion_tokens


def _call_reason(call: Call, run: RunSettings, retried: Reason | None) -> Reason | None:
    """The reason that holds for every choice of the call."""
    if retried is not None and call.state is not CallState.FAILED:
        return retried
    reason = call.reason or _STATE_REASONS[call.state]
    if reason is not None:
        return reason
    if call.policy is None:
        return Reason.NOT_POLICY_DISTRIBUTION
    return None if role_rule(run, call.role) == TRAIN else Reason.ROLE


def _distribution_reason(call: Call, run: RunSettings) -> Reason | None:
    """A trainer must be able to recompute what was sampled from; an evaluation is not trained, so it may be any."""
    sampling = call.sampling
    if run.constrained == "train":
        sampling = msgspec.structs.replace(sampling, constrained=False)
    if run.mode != "train" or sampling.is_policy_distribution():
        return None
    return Reason.NOT_POLICY_DISTRIBUTION


def _left_behind(call: Call, run: RunSettings, pinned: dict[str | None, int]) -> bool:
    """Whether the episode was re-pinned after this call: with one pin an episode, that is the only way its calls differ
    in version, and it happens only when the old version became too old or was withdrawn."""
    return run.pin == "episode" and call.version != pinned.get(call.policy, call.version)


def _retry_reasons(ordered: Sequence[Call]) -> dict[str, Reason]:
    """Earlier attempts that a later request, marked as a retry by its SDK, replaced.

    A retry replaces the one earlier attempt with the same key and body. If several match, nobody can tell which one:
    those that were not delivered are excluded, the delivered ones are real answers. An attempt is replaced once.
    """
    reasons: dict[str, Reason] = {}
    attempts: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in ordered:
        if not call.body_digest:
            continue
        same = attempts[call.key_id, call.body_digest]
        if call.retry > 0:
            matching = [other for other in same if other.retry < call.retry]
            replaced, reason = _replaced_by_retry(matching)
            reasons |= dict.fromkeys((other.call_id for other in replaced), reason)
            same[:] = [other for other in same if other.call_id not in reasons]
        same.append(call)
    return reasons


def _replaced_by_retry(matching: list[Call]) -> tuple[list[Call], Reason]:
    if len(matching) < 2:
        return matching, Reason.SUPERSEDED
    return [other for other in matching if other.state is not CallState.COMPLETED], Reason.AMBIGUOUS_RETRY
