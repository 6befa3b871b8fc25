"""A stored batch, checked again: does what SQL holds still say that it was trained on what engines sampled?

The manifest's own digest, its credit, the chain and the receipts of its episodes, the place of every span, the adapter
of every version; over all batches of a policy, that no token was trained twice and no step was taken twice. Proven is
the identity of tokens, context and version, and nothing else. Pure: what is stored is read by `batch_reading.py` and
the gateway's command line, which also tells the findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from tracker.errors import CorruptRecord
from tracker.evidence import Adapter, Archived, Fault, adapter_fault, chain_faults, episode_faults
from tracker.exclusion import exclusions
from tracker.manifests import (
    NO_MANIFEST,
    Coverage,
    Manifest,
    SpanKey,
    TrainedSpan,
    coverage_of,
    credit_digest,
    decode_manifest,
    readable_manifest,
)
from tracker.receipts import Receipt, ids_digest, logprobs_digest, receipt_digest
from tracker.shares import Shares, gaps_of, metrics_of, shares_told
from tracker.types import Batch, Call, Choice, Record, RunSettings

DROPPED: Final = "dropped"
TAKEN: Final = "taken"


class Removed(Record, frozen=True):
    """An archived episode without its tokens."""

    why: str
    """For people: what became of them, and when."""
    sealed: Archived
    """Without calls; the chain and the receipts it was sealed with."""


class Stored(Record, frozen=True):
    """One batch with everything that is there to check it by."""

    batch: Batch
    episodes: dict[str, tuple[Archived, RunSettings]]
    """The archived episodes of its groups, by id."""
    troubles: tuple[Fault, ...] = ()
    """Episodes that could not be opened."""
    deleted: frozenset[str] = frozenset()
    """Episodes that were deleted on request: their tokens are gone and cannot be checked any more."""
    gone: dict[str, Removed] = msgspec.field(default_factory=dict[str, Removed])
    """Episodes whose tokens were removed since: their receipts are still checked."""
    adapters: dict[int, Adapter] = msgspec.field(default_factory=dict[int, Adapter])
    copies: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Where else the digest of the manifest was written down -> what stands there."""


class Finding(Record, frozen=True):
    """What came of checking a batch."""

    batch: Batch
    faults: tuple[Fault, ...] = ()
    shares: Shares = Shares()
    num_episodes: int = 0
    num_deleted: int = 0
    """Trained tokens of episodes that were deleted."""
    gone: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """What became of tokens that cannot be checked any more -> how many of those were trained."""

    @property
    def is_trained_on(self) -> bool:
        """Whether there is anything to check: a batch that was dropped, or only taken yet, was not trained on."""
        return self.batch.state != DROPPED and not (self.batch.state == TAKEN and self.batch.manifest == NO_MANIFEST)


def verify(stored: Stored) -> Finding:
    """Check one batch by itself."""
    finding = Finding(batch=stored.batch)
    if not finding.is_trained_on:
        return finding
    try:
        manifest = decode_manifest(stored.batch.manifest)
    except CorruptRecord as error:
        return replace(finding, faults=(Fault(what=error.message),), shares=shares_told(stored.batch, None))
    faults = [*_head_faults(stored, manifest), *_credit_faults(stored.batch, manifest), *stored.troubles]
    for episode_id, chain in manifest.episodes.items():
        faults += _sealed_faults(stored, episode_id, chain)
    faults += _version_faults(stored, manifest)
    proofs = [_prove(span, stored, manifest) for span in manifest.spans]
    faults += [fault for proof in proofs for fault in proof.faults]
    return replace(
        finding,
        faults=tuple(dict.fromkeys(faults)),
        shares=Shares(
            batches=1,
            trained=manifest.num_tokens,
            context=sum(proof.context for proof in proofs),
            sampled=sum(proof.sampled for proof in proofs),
            coverage=_coverage(stored, manifest),
            gaps=gaps_of(metrics_of(stored.batch)),
        ),
        num_episodes=len(manifest.episodes),
        num_deleted=sum(span.num_tokens for span in manifest.spans if span.episode_id in stored.deleted),
        gone=_gone_tokens(stored, manifest),
    )


class Across:
    """Finds what only several batches together show: a step that was taken twice, a token that was trained twice.

    It is told of all batches of a policy, oldest first and as few at a time as one likes; the later one is at fault.
    Of tokens it remembers those that the batches in question trained, so that one batch is checked in little memory.
    """

    def __init__(self, asked: Iterable[Batch]) -> None:
        self.faults: dict[str, tuple[Fault, ...]] = {}
        """By batch; of every batch that it was told of."""
        self._asked = {
            (batch.policy, span.key) for batch in asked if _is_trained_on(batch) for span in _spans_of(batch)
        }
        self._steps: dict[tuple[str, int, int], str] = {}
        self._spans: dict[tuple[str, SpanKey], str] = {}

    def tell(self, batches: Iterable[Batch]) -> None:
        """Take in the next ones."""
        for batch in batches:
            if _is_trained_on(batch) and (found := tuple(self._again(batch))):
                self.faults[batch.batch_id] = found

    def _again(self, batch: Batch) -> Iterator[Fault]:
        """Whether a batch takes a step or trains a token that was taken or trained before."""
        before = self._steps.setdefault((batch.policy, batch.epoch, batch.step), batch.batch_id)
        if before != batch.batch_id:
            yield Fault(what=f"step {batch.step} of epoch {batch.epoch} was taken by batch {before} too")
        for span in _spans_of(batch):
            key = batch.policy, span.key
            if key not in self._asked:
                continue
            if key in self._spans:
                yield replace(_place_of(span), what=f"trained twice, before in batch {self._spans[key]}")
            self._spans[key] = batch.batch_id


class _Proof(Record, frozen=True):
    """What is left of a span when it is checked: how many of its tokens are proven, and what is amiss."""

    context: int = 0
    sampled: int = 0
    faults: tuple[Fault, ...] = ()


def _is_trained_on(batch: Batch) -> bool:
    return Finding(batch=batch).is_trained_on


def _spans_of(batch: Batch) -> tuple[TrainedSpan, ...]:
    manifest = readable_manifest(batch.manifest)
    return () if manifest is None else manifest.spans


def _head_faults(stored: Stored, manifest: Manifest) -> Iterator[Fault]:
    """Whether it is the manifest of this batch, and the one that others wrote down."""
    batch = stored.batch
    for field in ("batch_id", "policy", "epoch", "step"):
        ours, theirs = getattr(batch, field), getattr(manifest, field)
        if ours != theirs:
            yield Fault(what=f"its manifest is that of another batch: {field} {theirs!r} instead of {ours!r}")
    for where, digest in stored.copies.items():
        if digest != manifest.digest:
            yield Fault(what=f"the manifest was edited: {where} names {digest}, it is {manifest.digest}")
    counted = metrics_of(batch).get("trained_tokens", manifest.num_tokens)
    if counted != manifest.num_tokens:
        yield Fault(what=f"the step trained {counted} tokens, the manifest names {manifest.num_tokens}")


def _credit_faults(batch: Batch, manifest: Manifest) -> Iterator[Fault]:
    """Whether the credit is the one that was frozen, and the spans are the calls that had it."""
    if credit_digest(batch.credit) != manifest.credit:
        yield Fault(what="its credit is not the one that was frozen when it was taken")
    advantages = {(item.episode_id, item.call_id): item.advantage for item in batch.credit}
    for span in manifest.spans:
        advantage = advantages.get((span.episode_id, span.call_id))
        if advantage != span.advantage:
            what = f"trained with the advantage {span.advantage}, its credit is {advantage}"
            yield replace(_place_of(span), what=what)
    for episode_id, call_id in advantages.keys() - {(span.episode_id, span.call_id) for span in manifest.spans}:
        yield Fault(what="it has credit and no trained span", episode_id=episode_id, call_id=call_id)


def _sealed_faults(stored: Stored, episode_id: str, chain: str) -> Iterator[Fault]:
    """Whether an episode is the one that was trained on."""
    if episode_id in stored.deleted or any(fault.episode_id == episode_id for fault in stored.troubles):
        return
    gone = stored.gone.get(episode_id)
    if gone is None and episode_id not in stored.episodes:
        yield Fault(what="there is no archive of it", episode_id=episode_id)
        return
    archived = stored.episodes[episode_id][0] if gone is None else gone.sealed
    if archived.chain != chain:
        what = f"it was trained on with the chain {chain}, now it has {archived.chain}"
        yield Fault(what=what, episode_id=episode_id)
    yield from episode_faults(archived) if gone is None else chain_faults(archived)


def _version_faults(stored: Stored, manifest: Manifest) -> Iterator[Fault]:
    """Whether every version is the adapter that the tokens were sampled with."""
    for version, digest in manifest.versions.items():
        if not version.isdecimal():
            yield Fault(what=f"the manifest names a version {version!r}")
            continue
        fault = adapter_fault(int(version), digest, stored.adapters)
        if fault is not None:
            yield fault


def _prove(span: TrainedSpan, stored: Stored, manifest: Manifest) -> _Proof:
    """Compare a span with the archived call and its sealed receipt; with that alone where the tokens are gone."""
    if span.episode_id in stored.gone:
        return _Proof(faults=tuple(_receipt_faults(span, stored.gone[span.episode_id].sealed)))
    if span.episode_id in stored.deleted or span.episode_id not in stored.episodes:
        return _Proof()
    archived, run = stored.episodes[span.episode_id]
    found = archived.find(span.call_id)
    choice = None if found is None else next((item for item in found[0].choices if item.index == span.choice), None)
    if found is None or choice is None:
        return _Proof(faults=(replace(_place_of(span), what="there is no such call and choice with a receipt"),))
    call, receipt = found
    context = span.prompt == ids_digest(call.prompt_ids).hex() == receipt.prompt_digest.hex()
    context = context and span.start == len(call.prompt_ids)
    sampled = span.sampled == ids_digest(choice.sampled_ids).hex() == _sampled_digest(call, choice, receipt)
    sampled = sampled and span.num_tokens == len(choice.sampled_ids)
    told = _told_faults(span, call, manifest, exclusions(archived.calls, run).get((call.call_id, choice.index)))
    return _Proof(
        context=span.num_tokens if context and sampled else 0,
        sampled=span.num_tokens if sampled else 0,
        faults=(*_token_faults(span, call, choice, receipt), *told),
    )


def _receipt_faults(span: TrainedSpan, sealed: Archived) -> Iterator[Fault]:
    """Whether a span is what a receipt says, of which the call has gone."""
    receipt = next((one for one in sealed.sealed() if one.call_id == span.call_id), None)
    if receipt is None or span.receipt != receipt_digest(receipt).hex():
        yield replace(_place_of(span), what="its receipt is not the one it was trained with")
    elif span.prompt != receipt.prompt_digest.hex() or (span.sampled, span.logprobs) not in {
        (sampled.hex(), logprobs.hex()) for sampled, logprobs in receipt.choices
    }:
        yield replace(_place_of(span), what="it names other tokens than its receipt")


def _gone_tokens(stored: Stored, manifest: Manifest) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for span in manifest.spans:
        if span.episode_id in stored.gone:
            counted[stored.gone[span.episode_id].why] += span.num_tokens
    return dict(counted)


def _sampled_digest(call: Call, choice: Choice, receipt: Receipt) -> str:
    """What the receipt says of a choice's ids; receipts list choices in the order of the call."""
    place = call.choices.index(choice)
    return receipt.choices[place][0].hex() if place < len(receipt.choices) else ""


def _token_faults(span: TrainedSpan, call: Call, choice: Choice, receipt: Receipt) -> Iterator[Fault]:
    """Where the tokens that a span names are not those of the call."""
    here = _place_of(span)
    if span.prompt != ids_digest(call.prompt_ids).hex():
        yield replace(here, what="it was trained under another context than the call had", offset=0)
    start, end = len(call.prompt_ids), len(call.prompt_ids) + len(choice.sampled_ids)
    if (span.start, span.end) != (start, end):
        what = f"trained at offsets {span.start} to {span.end}, the call's ids stand at {start} to {end}"
        yield replace(here, what=what, offset=min(span.start, start))
    if span.sampled != ids_digest(choice.sampled_ids).hex():
        yield replace(here, what="other ids were trained than the call has", offset=start)
    if span.logprobs != logprobs_digest(choice.logprobs).hex():
        yield replace(here, what="the log-probabilities are not those it was trained with", offset=start)
    if span.receipt != receipt_digest(receipt).hex():
        yield replace(here, what="its receipt is not the one it was trained with")


def _told_faults(span: TrainedSpan, call: Call, manifest: Manifest, reason: str | None) -> Iterator[Fault]:
    """Where a span's policy, version or right to be trained are not those of the call."""
    here = _place_of(span)
    if call.policy != manifest.policy:
        yield replace(here, what=f"it is a call of policy {call.policy}, not of {manifest.policy}")
    if call.version != span.version:
        yield replace(here, what=f"trained as version {span.version}, it was sampled with version {call.version}")
    if manifest.versions.get(str(span.version)) != call.adapter_digest:
        yield replace(here, what=f"it was sampled with another adapter than version {span.version} of the manifest")
    if reason is not None:
        yield replace(here, what=f"it is excluded ({reason}) and was trained")


def _coverage(stored: Stored, manifest: Manifest) -> Coverage:
    """Counted anew; as it was before the step where tokens of an episode are gone since."""
    if stored.gone:
        return manifest.coverage
    return coverage_of(stored.episodes.values(), manifest.policy, {span.key for span in manifest.spans})


def _place_of(span: TrainedSpan) -> Fault:
    return Fault(what="", episode_id=span.episode_id, call_id=span.call_id, choice=span.choice)
