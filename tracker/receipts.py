"""What proves that a training row is what the engine saw: a receipt for every call, and the chain over an episode.

A receipt holds SHA-256 digests of prompt ids, sampled ids and log-probabilities beside the identity of what sampled
them. It proves identity of tokens, context and version, and nothing else: not that an engine computed honestly.
Equal calls have equal receipts on every machine: numbers are packed little-endian at a fixed width, parts carry their
length, so no two different calls share an encoding. Receipts are stored apart from the calls: the chain proves, the
receipts say where something differs. Comparing the two is left to `evidence.py`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tracker.errors import CorruptRecord
from tracker.packing import hashed_ids, hashed_logprobs
from tracker.types import Call, Record, Sampling

_RECEIPT_DOMAIN: Final = b"hone/receipt/1"
_CHAIN_DOMAIN: Final = b"hone/chain/1"
_LENGTH: Final = struct.Struct("<q")


class Receipt(Record, frozen=True):
    """What one call was, in digests of 32 bytes each."""

    call_id: str
    policy: str | None
    version: int
    adapter_digest: str
    prompt_digest: bytes
    choices: tuple[tuple[bytes, bytes], ...]
    """(digest of sampled ids, digest of log-probabilities), in the order of the call's choices."""
    sampling_digest: bytes
    engine: str


def receipt_of(call: Call, packed_prompt: bytes | None = None) -> Receipt:
    """The receipt of a call, whatever became of it: an excluded call has one too. `packed_prompt` are its prompt's ids
    as their digest is taken, where somebody has packed them already."""
    return Receipt(
        call_id=call.call_id,
        policy=call.policy,
        version=call.version,
        adapter_digest=call.adapter_digest,
        prompt_digest=ids_digest(call.prompt_ids) if packed_prompt is None else hashlib.sha256(packed_prompt).digest(),
        choices=tuple((ids_digest(choice.sampled_ids), logprobs_digest(choice.logprobs)) for choice in call.choices),
        sampling_digest=sampling_digest(call.sampling),
        engine=call.engine,
    )


def call_digest(call: Call, packed_prompt: bytes | None = None) -> bytes:
    """SHA-256 over the receipt of a call, 32 bytes."""
    return receipt_digest(receipt_of(call, packed_prompt))


def receipt_digest(receipt: Receipt) -> bytes:
    """SHA-256 over a receipt, 32 bytes."""
    parts = [
        receipt.call_id.encode(),
        b"" if receipt.policy is None else b"=" + receipt.policy.encode(),
        struct.pack("<q", receipt.version),
        receipt.adapter_digest.encode(),
        receipt.prompt_digest,
        receipt.sampling_digest,
        receipt.engine.encode(),
    ]
    for sampled, logprobs in receipt.choices:
        parts += (sampled, logprobs)
    return _digest(_RECEIPT_DOMAIN, parts)


def chain(digests: Iterable[bytes]) -> bytes:
    """Fold call digests, in list order, into one that changes with any of them, with their order and their number.

    >>> chain([b"a"]) == chain([b"a", b"a"])
    False
    """
    link = hashlib.sha256(_CHAIN_DOMAIN).digest()
    for digest in digests:
        link = hashlib.sha256(link + digest).digest()
    return link


def seal(calls: Iterable[Call]) -> tuple[str, bytes]:
    """The chain over an episode's calls (hex), and their receipts as they are stored beside it."""
    receipts = [receipt_of(call) for call in calls]
    return chain(map(receipt_digest, receipts)).hex(), encode_receipts(receipts)


def encode_receipts(receipts: Sequence[Receipt]) -> bytes:
    """The receipts of an episode as they are stored beside its calls, in the order of the chain."""
    return msgspec.msgpack.encode(receipts)


def decode_receipts(stored: bytes) -> tuple[Receipt, ...]:
    """What `encode_receipts` encoded. Raises `CorruptRecord`."""
    try:
        return msgspec.msgpack.decode(stored, type=tuple[Receipt, ...])
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"The stored receipts do not decode: {error}") from error


def ids_digest(ids: Sequence[int]) -> bytes:
    """SHA-256 of token ids, each as a signed 64-bit little-endian number."""
    return hashlib.sha256(hashed_ids(ids)).digest()


def logprobs_digest(logprobs: Sequence[float]) -> bytes:
    """SHA-256 of log-probabilities as little-endian doubles: any storage that is lossless keeps it."""
    return hashlib.sha256(hashed_logprobs(logprobs)).digest()


def sampling_digest(sampling: Sampling) -> bytes:
    """SHA-256 of the settings a call was sampled with."""
    numbers = struct.pack("<ddqd", sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    flags = struct.pack("<??", sampling.constrained, sampling.biased)
    optional = ",".join("" if value is None else str(value) for value in (sampling.max_tokens, sampling.seed))
    return hashlib.sha256(numbers + flags + optional.encode()).digest()


def _digest(domain: bytes, parts: Iterable[bytes]) -> bytes:
    """Each part is preceded by its length, so moving a byte from one part to the next changes the digest."""
    framed = [piece for part in parts for piece in (_LENGTH.pack(len(part)), part)]
    return hashlib.sha256(b"".join((domain, *framed))).digest()
