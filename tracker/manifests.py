"""The manifest of a batch: for every trained span the receipt and the place it came from, and what was not trained.

It is made from rows that `evidence.py` has checked, before the step, and is enough to check the batch again from what
SQL holds: digests of the tokens, the chain of every episode, the adapter of every version, the frozen credit, and a
digest over all of it. The encoding is one JSON value in one form, so equal manifests are equal bytes. Pure.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tracker.errors import CorruptRecord
from tracker.evidence import Archived, Checked
from tracker.exclusion import exclusions
from tracker.receipts import ids_digest, logprobs_digest
from tracker.samples import Row
from tracker.types import Batch, CallCredit, Record, RunSettings

MANIFEST_SCHEMA: Final = 1
NO_MANIFEST: Final = b"null"
NO_CREDIT: Final = "no_credit"
"""Why nothing of an episode is trained although its tokens could be: it is no member that counts."""
TOO_OLD: Final = "too_old"
"""Why a call is not trained although its episode is: its version was too old when the batch was taken."""
SpanKey = tuple[str, str, int]
"""(episode_id, call_id, choice)."""


class TrainedSpan(Record, frozen=True):
    """The trained tokens of one choice, and what proves them. Digests are hex."""

    episode_id: str
    call_id: str
    choice: int
    version: int
    receipt: str
    """Of the call."""
    prompt: str
    sampled: str
    logprobs: str
    start: int
    """Where the trained tokens stand: behind the ids of the prompt."""
    end: int
    """Exclusive."""
    advantage: float

    @property
    def key(self) -> SpanKey:
        return self.episode_id, self.call_id, self.choice

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


class Coverage(Record, frozen=True):
    """What the policy sampled in the episodes of a batch's groups, and why some of it is not trained."""

    sampled_tokens: int = 0
    excluded: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """reason -> sampled tokens."""


class Manifest(Record, frozen=True):
    """What one batch was trained on."""

    schema: int
    batch_id: str
    policy: str
    epoch: int
    step: int
    loss: str
    credit: str
    """Digest of the frozen credit (hex)."""
    episodes: dict[str, str]
    """episode_id -> the chain it was sealed with (hex)."""
    versions: dict[str, str]
    """version -> the digest of its adapter (hex), empty for the bare base model."""
    spans: tuple[TrainedSpan, ...]
    checked: Checked
    """Trained tokens that were found to be what the receipts say, before the step."""
    coverage: Coverage
    digest: str = ""
    """Over everything above (hex)."""

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)


def manifest_of(
    batch: Batch,
    loss: str,
    credited: Iterable[tuple[Row, float]],
    archived: Mapping[str, Archived],
    checked: Checked,
    coverage: Coverage,
) -> Manifest:
    """The manifest of a batch whose rows, each with its advantage, were checked."""
    pairs = list(credited)
    manifest = Manifest(
        schema=MANIFEST_SCHEMA,
        batch_id=batch.batch_id,
        policy=batch.policy,
        epoch=batch.epoch,
        step=batch.step,
        loss=loss,
        credit=credit_digest(batch.credit),
        episodes={row.episode_id: archived[row.episode_id].chain for row, _ in pairs},
        versions={str(row.version): row.adapter_digest for row, _ in pairs},
        spans=tuple(_span(row, advantage) for row, advantage in pairs),
        checked=checked,
        coverage=coverage,
    )
    return msgspec.structs.replace(manifest, digest=manifest_digest(manifest))


def encode_manifest(manifest: Manifest) -> bytes:
    """One JSON value; equal manifests give equal bytes."""
    return msgspec.json.encode(manifest, order="deterministic")


def decode_manifest(stored: bytes) -> Manifest:
    """A stored manifest whose digest holds. Raises `CorruptRecord`."""
    if stored == NO_MANIFEST:
        raise CorruptRecord("there is no manifest")
    try:
        manifest = msgspec.json.decode(stored, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"the manifest does not decode: {error}") from error
    if manifest.schema != MANIFEST_SCHEMA:
        raise CorruptRecord(f"the manifest has schema {manifest.schema}; this Hone reads {MANIFEST_SCHEMA}")
    if manifest.digest != manifest_digest(manifest):
        raise CorruptRecord("the manifest was edited: it breaks its own digest")
    return manifest


def manifest_digest(manifest: Manifest) -> str:
    """SHA-256 (hex) over a manifest without its digest."""
    return hashlib.sha256(encode_manifest(msgspec.structs.replace(manifest, digest=""))).hexdigest()


def readable_manifest(stored: bytes) -> Manifest | None:
    """A stored manifest whose digest holds; `None` where there is none to be read, of which `verify` tells."""
    try:
        return decode_manifest(stored)
    except CorruptRecord:
        return None


def stored_digest(stored: bytes) -> str | None:
    """The digest that a stored manifest names; `None` where there is none to be read."""
    manifest = readable_manifest(stored)
    return None if manifest is None else manifest.digest


def versions_named(stored: bytes) -> frozenset[int]:
    """The versions that a stored manifest names; none where there is none to be read."""
    manifest = readable_manifest(stored)
    named = () if manifest is None else manifest.versions
    return frozenset(int(version) for version in named if version.isdecimal())


def first_change(before: Manifest, now: Manifest) -> str:
    """What of a batch is not as its manifest said before; empty where everything that is trained is the same.

    Coverage may differ: an episode that is not trained may have been deleted since.
    """
    for field in ("batch_id", "policy", "epoch", "step", "loss", "credit", "episodes", "versions"):
        if getattr(before, field) != getattr(now, field):
            return f"{field} differ{'' if field in ('episodes', 'versions') else 's'}"
    if len(before.spans) != len(now.spans):
        return f"it has {len(now.spans)} trained spans, not {len(before.spans)}"
    for ours, theirs in zip(before.spans, now.spans, strict=True):
        if ours != theirs:
            return f"episode {ours.episode_id}, call {ours.call_id}, choice {ours.choice} is trained as something else"
    return ""


def credit_digest(credit: Sequence[CallCredit]) -> str:
    """SHA-256 (hex) of frozen credit, in its order."""
    return hashlib.sha256(msgspec.json.encode(credit)).hexdigest()


def coverage_of(
    episodes: Iterable[tuple[Archived, RunSettings]], policy: str, trained: Collection[SpanKey]
) -> Coverage:
    """Count what the policy sampled in these episodes: trained, or left out for a reason."""
    credited = {episode_id for episode_id, _, _ in trained}
    total, excluded = 0, Counter[str]()
    for archived, run in episodes:
        reasons = exclusions(archived.calls, run)
        rest = TOO_OLD if archived.episode_id in credited else NO_CREDIT
        for call in archived.calls:
            for choice in call.choices if call.policy == policy else ():
                total += len(choice.sampled_ids)
                if (archived.episode_id, call.call_id, choice.index) not in trained:
                    excluded[reasons.get((call.call_id, choice.index), rest)] += len(choice.sampled_ids)
    counted = {str(reason): tokens for reason, tokens in sorted(excluded.items()) if tokens}
    return Coverage(sampled_tokens=total, excluded=counted)


def _span(row: Row, advantage: float) -> TrainedSpan:
    return TrainedSpan(
        episode_id=row.episode_id,
        call_id=row.call_id,
        choice=row.choice,
        version=row.version,
        receipt=row.receipt.hex(),
        prompt=ids_digest(row.prompt_ids).hex(),
        sampled=ids_digest(row.sampled_ids).hex(),
        logprobs=logprobs_digest(row.logprobs).hex(),
        start=len(row.prompt_ids),
        end=len(row.prompt_ids) + len(row.sampled_ids),
        advantage=advantage,
    )
