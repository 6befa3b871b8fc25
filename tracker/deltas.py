"""How a prompt is told from what its episode holds already: copies of earlier sequences, and the ids that are new.

A *sequence* is a choice's whole ids, prompt and sampled, named by (list index of its record, choice index). Two kinds
of digests find what to copy, both 128-bit BLAKE2b keyed per episode:

- a *chain* over every 64 ids from the start: block j's digest covers all ids before it, so the digests known to an
  episode are prefix-closed and the longest hit is found by bisection. It tells the usual call, which extends another,
  as one copy.
- *chunks* whose borders follow from the ids around them, for what the chain does not cover: where a header changes or
  old messages were dropped, the same chunks come again at other offsets.

A copy is only compression: a missed hit costs bytes, a wrong one breaks the receipt's digest on reading. Pure; what is
looked up where is left to the stores and the codec.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tracker.errors import CorruptRecord
from tracker.packing import hashed_ids

BLOCK_IDS: Final = 64
ID_BYTES: Final = 8
"""What an id takes in what is hashed."""
MIN_CHUNK_IDS: Final = 16
DIGEST_BYTES: Final = 16
_BORDER: Final = re.compile(rb"[\x1d\x6b\xb2]")
"""Three of 256: a chunk ends after about 85 ids."""
SPAN: Final = struct.Struct(">HII")
"""choice, start, length: a span of a sequence of the record it stands beside."""
_BLOCK_BYTES: Final = ID_BYTES * BLOCK_IDS
PLACE: Final = struct.Struct(">IHII")
"""list index, choice, start, length: a span anywhere in the episode, as the block index holds it."""


class Copy(NamedTuple):
    """A span of an earlier sequence of the episode."""

    position: int
    choice: int
    start: int
    length: int


class Chunk(NamedTuple):
    """Ids between two borders, and their digest."""

    start: int
    end: int
    digest: bytes


Part = Copy | tuple[int, ...]
"""A piece of a prompt: copied, or new."""
Sequences = Mapping[tuple[int, int], tuple[int, ...]]
"""(list index, choice) -> whole ids."""


class Chain:
    """The chained digests of a growing sequence, one for every 64 ids.

    >>> key = episode_key("e")
    >>> one = Chain(key).extend(range(200))
    >>> len(one.digests), one.digests == Chain(key).extend(range(70)).extend(range(70, 200)).digests
    (3, True)
    """

    __slots__ = ("_hash", "_rest", "digests", "key")

    def __init__(self, key: bytes) -> None:
        self._hash = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES, person=b"hone-chain")
        self._rest = b""
        self.key = key
        self.digests: list[bytes] = []

    def copy(self) -> Chain:
        """An equal chain that grows by itself."""
        other = Chain.__new__(Chain)
        other._hash, other._rest = self._hash.copy(), self._rest
        other.digests, other.key = self.digests.copy(), self.key
        return other

    def extend(self, ids: Iterable[int]) -> Chain:
        """Take the next ids in; returns itself."""
        return self.extend_packed(hashed_ids(ids))

    def extend_packed(self, packed: bytes) -> Chain:
        """Take the next ids in, as `hashed_ids` gives them; returns itself."""
        packed = self._rest + packed
        whole = len(packed) - len(packed) % _BLOCK_BYTES
        for start in range(0, whole, _BLOCK_BYTES):
            self._hash.update(packed[start : start + _BLOCK_BYTES])
            self.digests.append(self._hash.digest())
        self._rest = packed[whole:]
        return self


def episode_key(episode_id: str) -> bytes:
    """The key of an episode's digests: equal text in two episodes has different digests."""
    return hashlib.sha256(f"hone blocks {episode_id}".encode()).digest()


def chunks(key: bytes, packed: bytes, start: int) -> list[Chunk]:
    """The chunks after the `start`-th id, without the ids before the first border and after the last; `packed` is as
    `hashed_ids` gives it.

    A border stands after a pair of ids whose lowest bytes differ in certain bits, unless another such pair came just
    before it: it follows from the ids around it alone, so the same ids are cut the same way wherever they stand.
    """
    low_bytes = packed[ID_BYTES * start :: ID_BYTES]
    differences = int.from_bytes(low_bytes[:-1]) ^ int.from_bytes(low_bytes[1:])
    pairs = differences.to_bytes(max(0, len(low_bytes) - 1))
    borders: list[int] = []
    before = -MIN_CHUNK_IDS
    for match in _BORDER.finditer(pairs):
        place = start + match.end() + 1
        if place - before >= MIN_CHUNK_IDS:
            borders.append(place)
        before = place
    return [
        Chunk(a, b, _chunk_digest(key, packed[ID_BYTES * a : ID_BYTES * b])) for a, b in itertools.pairwise(borders)
    ]


def longest_hit(digests: Sequence[bytes], places: Mapping[bytes, bytes]) -> int:
    """How many blocks of the chain are known; bisects, as the known ones are prefix-closed."""
    low, high = 0, len(digests)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if digests[middle - 1] in places else (low, middle - 1)
    return low


def tell(
    chain: Chain, prompt: Sequence[int], answers: Sequence[Sequence[int]], places: Mapping[bytes, bytes], packed: bytes
) -> tuple[tuple[Part, ...], list[bytes]]:
    """A call by what its episode holds in these places: its prompt as parts, and its index entries.

    `chain` is the prompt's, `packed` what it was made from.
    """
    num_known = longest_hit(chain.digests, places)
    prefix = places[chain.digests[num_known - 1]] if num_known else None
    covered = num_known * BLOCK_IDS
    sequences = [packed + hashed_ids(sampled) for sampled in answers] or [packed]
    opening = chunks(chain.key, sequences[0], max(0, covered - 2 * BLOCK_IDS))
    own = [piece for piece in opening if piece.start >= covered and piece.end <= len(prompt)]
    told = parts(prompt, prefix, own, places)
    return told, index_entries(chain, num_known, told, len(prompt), sequences, opening)


def parts(
    ids: Sequence[int], prefix: bytes | None, pieces: Sequence[Chunk], places: Mapping[bytes, bytes]
) -> tuple[Part, ...]:
    """The prompt as copies and new ids: the chain's hit first, then every chunk with a known place.

    >>> parts((5, 6, 7), PLACE.pack(2, 0, 0, 2), (), {})
    (Copy(position=2, choice=0, start=0, length=2), (7,))
    """
    told: list[Part] = []
    at = 0
    if prefix is not None:
        told.append(Copy(*PLACE.unpack(prefix)))
        at = told[0][3]
    for piece in pieces:
        found = places.get(piece.digest)
        if found is None:
            continue
        if at < piece.start:
            told.append(tuple(ids[at : piece.start]))
        _append_copy(told, Copy(*PLACE.unpack(found)))
        at = piece.end
    if at < len(ids):
        told.append(tuple(ids[at:]))
    return tuple(told)


def expanded(told: Iterable[Part], sequences: Sequences) -> tuple[int, ...]:
    """The prompt that `parts` told. Raises `CorruptRecord` where it copies what is not there."""
    ids: list[int] = []
    for part in told:
        if not isinstance(part, Copy):
            ids.extend(part)
            continue
        span = sequences.get((part.position, part.choice), ())[part.start : part.start + part.length]
        if len(span) != part.length:
            raise CorruptRecord(f"It copies ids of record {part.position}, which does not hold them.")
        ids.extend(span)
    return tuple(ids)


def index_entries(
    chain: Chain,
    num_known: int,
    told: Sequence[Part],
    num_prompt: int,
    sequences: Sequence[bytes],
    opening: Sequence[Chunk],
) -> list[bytes]:
    """What later calls of the episode can copy from this one: digest + `SPAN`, for its new blocks and chunks.

    `chain` is the prompt's, of which `num_known` blocks were known, `told` the prompt's parts, `sequences` the prompt
    with each answer as `hashed_ids` gives it, `opening` the chunks of the first, from a little before what is known.
    Chunks of what the chain does not cover are told again for every call, so that a copy leads to the latest sequence
    and neighbouring copies stay one. Blocks are told only where they are mostly new: a prompt whose front changed would
    add one for every 64 ids of its history.
    """
    covered = num_known * BLOCK_IDS
    num_copied = sum(part.length for part in told if isinstance(part, Copy)) - covered
    num_sampled = sum(map(len, sequences)) // ID_BYTES - len(sequences) * num_prompt
    has_blocks = num_copied <= num_prompt - covered - num_copied + num_sampled
    entries: list[bytes] = []
    for choice, sequence in enumerate(sequences):
        first = num_known if choice == 0 else len(chain.digests)
        if has_blocks:
            digests = chain.copy().extend_packed(sequence[ID_BYTES * num_prompt :]).digests[first:]
            entries += [
                digest + SPAN.pack(choice, 0, place * BLOCK_IDS) for place, digest in enumerate(digests, first + 1)
            ]
        pieces = chunks(chain.key, sequence, max(0, covered - 2 * BLOCK_IDS)) if choice else opening
        entries += [
            piece.digest + SPAN.pack(choice, piece.start, piece.end - piece.start)
            for piece in pieces
            if choice == 0 or piece.end > num_prompt
        ]
    return entries


def _append_copy(told: list[Part], copy: Copy) -> None:
    """Add a copy, as one with the last if it goes on where that one ends."""
    last = told[-1] if told else None
    if isinstance(last, Copy) and last[:2] == copy[:2] and last.start + last.length == copy.start:
        told[-1] = last._replace(length=last.length + copy.length)
    else:
        told.append(copy)


def _chunk_digest(key: bytes, packed: bytes) -> bytes:
    return hashlib.blake2b(packed, key=key, digest_size=DIGEST_BYTES, person=b"hone-chunk").digest()
