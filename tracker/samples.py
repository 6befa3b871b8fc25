"""What the loss sees and what people read: rows, and the samples that merge them.

A **row** is one trained choice of one call: prompt ids and sampled ids as the engine saw them. A **sample** is the view
of one branch, root to leaf, in which each sampled token is trained in exactly one sample: where branches share calls,
the first branch trains them and they are context in the others, as calls of a context role are everywhere. Ids are
copied from the calls, never made: no end token is added, no log-probability stands where nothing was sampled. What is
left out and why comes from `exclusion.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tracker.receipts import call_digest
from tracker.timeline import ChoiceKey, exclusions, fold, grow, included, num_distinct_tokens
from tracker.types import Call, CallKind, Choice, Reason, Record, RunSettings


class Span(Record, frozen=True):
    """The trained tokens of one choice inside a sample."""

    start: int
    end: int
    """Exclusive."""
    call_id: str
    choice: int
    version: int
    reward: float | None
    """The call's own effective reward; `None` where it has none."""


class Sample(Record, frozen=True):
    """One branch as one sequence."""

    policy: str
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the token was sampled and is trained in this sample."""
    logprobs: tuple[float | None, ...]
    """`None` where the mask is 0."""
    spans: tuple[Span, ...]
    """In order of position; trained tokens only."""


class Exclusion(Record, frozen=True):
    """A choice that is kept and not trained."""

    call_id: str
    choice: int
    reason: Reason
    num_tokens: int
    """Sampled ids that are not trained, as far as they are known."""


class Row(Record, frozen=True):
    """One choice of one call, as the trainer takes it."""

    policy: str
    episode_id: str
    call_id: str
    choice: int
    version: int
    adapter_digest: str
    role: str
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the engine, one for each sampled id."""
    temperature: float
    receipt: bytes
    """Digest of the call's receipt."""


class Counts(Record, frozen=True):
    """An episode in numbers; calls = calls with a row + `num_excluded`."""

    num_calls: int = 0
    num_samples: int = 0
    num_excluded: int = 0
    """Calls of which no choice is trained."""
    num_truncated: int = 0
    """Calls with a choice that used up its limit, trained or not."""
    num_raw_tokens: int = 0
    """Prompt and sampled ids of every trained choice: what one row a choice costs."""
    num_sample_tokens: int = 0
    """The same after merging branches of trained choices."""
    num_distinct_tokens: int = 0
    """The same as one trie a policy."""

    @property
    def merge_ratio(self) -> float:
        """How many times fewer tokens the samples have than the rows; 1 where there are none."""
        return self.num_raw_tokens / self.num_sample_tokens if self.num_sample_tokens else 1.0


def samples_of(
    calls: Iterable[Call], run: RunSettings, call_rewards: Mapping[str, float | None]
) -> tuple[tuple[Sample, ...], tuple[Exclusion, ...]]:
    """One sample a branch, and every choice left out. `call_rewards` are effective rewards by call id."""
    by_id = {call.call_id: call for call in calls}
    timeline = fold(by_id.values(), run)
    chosen = {(call.call_id, choice.index): (call, choice) for call in by_id.values() for choice in call.choices}
    samples: list[Sample] = []
    trained: set[ChoiceKey] = set()
    for branch in timeline.branches:
        own = [chosen[key] for key in branch if key not in trained and key not in timeline.excluded]
        samples.append(_sample(chosen[branch[-1]], own, call_rewards))
        trained.update(branch)
    return tuple(samples), tuple(_exclusion(by_id[key[0]], key, reason) for key, reason in timeline.excluded.items())


def rows_of(calls: Iterable[Call], run: RunSettings, policy: str) -> tuple[Row, ...]:
    """Every trained choice of one policy, in the order the calls began."""
    ordered = sorted(calls, key=lambda call: (call.index, call.call_id))
    chosen = included(ordered, exclusions(ordered, run))
    receipts = {call.call_id: call_digest(call) for call, _ in chosen if call.policy == policy}
    return tuple(_row(call, choice, policy, receipts[call.call_id]) for call, choice in chosen if call.policy == policy)


def counts(calls: Iterable[Call], run: RunSettings) -> Counts:
    """Count an episode without building its samples."""
    by_id = {call.call_id: call for call in calls}
    whole = fold(by_id.values(), run)
    timeline = grow(by_id.values(), whole.excluded)
    chosen = included(by_id.values(), whole.excluded)
    lengths = {
        (node.call_id, node.choice): node.num_prompt + node.num_sampled for t in timeline.trees for node in t.nodes
    }
    return Counts(
        num_calls=len(by_id),
        num_samples=len(whole.branches),
        num_excluded=len(by_id) - len({call.call_id for call, _ in chosen}),
        num_truncated=sum(any(choice.truncated for choice in call.choices) for call in by_id.values()),
        num_raw_tokens=sum(lengths.values()),
        num_sample_tokens=sum(lengths[branch[-1]] for branch in timeline.branches),
        num_distinct_tokens=sum(
            num_distinct_tokens(
                call.prompt_ids + choice.sampled_ids for call, choice in chosen if call.policy == tree.policy
            )
            for tree in timeline.trees
        ),
    )


def kinds_of(calls: Iterable[Call]) -> tuple[CallKind, ...]:
    """The calls of an episode, counted by policy, version and role."""
    counted = Counter((call.policy or "", call.version, call.role) for call in calls)
    return tuple(
        CallKind(policy=policy, version=version, role=role, num_calls=number)
        for (policy, version, role), number in sorted(counted.items())
    )


def _sample(
    leaf: tuple[Call, Choice], own: Iterable[tuple[Call, Choice]], call_rewards: Mapping[str, float | None]
) -> Sample:
    """The ids of the leaf, with the choices in `own` trained at the place where they stand in it."""
    call, choice = leaf
    input_ids = call.prompt_ids + choice.sampled_ids
    mask = [0] * len(input_ids)
    logprobs: list[float | None] = [None] * len(input_ids)
    spans: list[Span] = []
    for part, sampled in own:
        start = len(part.prompt_ids)
        end = start + len(sampled.sampled_ids)
        mask[start:end] = [1] * (end - start)
        logprobs[start:end] = sampled.logprobs
        reward = call_rewards.get(part.call_id)
        spans.append(
            Span(start=start, end=end, call_id=part.call_id, choice=sampled.index, version=part.version, reward=reward)
        )
    return Sample(
        policy=call.policy or "",
        input_ids=input_ids,
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs),
        spans=tuple(spans),
    )


def _exclusion(call: Call, key: ChoiceKey, reason: Reason) -> Exclusion:
    tokens = sum(len(choice.sampled_ids) for choice in call.choices if choice.index == key[1])
    return Exclusion(call_id=call.call_id, choice=key[1], reason=reason, num_tokens=tokens)


def _row(call: Call, choice: Choice, policy: str, receipt: bytes) -> Row:
    return Row(
        policy=policy,
        episode_id=call.episode_id,
        call_id=call.call_id,
        choice=choice.index,
        version=call.version,
        adapter_digest=call.adapter_digest,
        role=call.role,
        prompt_ids=call.prompt_ids,
        sampled_ids=choice.sampled_ids,
        logprobs=choice.logprobs,
        temperature=call.sampling.temperature,
        receipt=receipt,
    )
