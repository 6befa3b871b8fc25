"""The calls of an episode as one blob: what SQL holds of a timeline once its episode is archived.

Records as in Redis (`records.py`), each prompt told by what earlier calls of the blob hold, then compressed as one. The
blob carries a schema version: a newer one is refused, not guessed at. Pure; the row it lies in is left to `archive.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import zstandard

from tracker.deltas import DIGEST_BYTES, PLACE, SPAN, Chain, Part, episode_key, tell
from tracker.errors import CorruptRecord
from tracker.packing import hashed_ids
from tracker.records import Shelf, Sketch, contents_of, joined, read_shelf, read_sketches, record_of
from tracker.types import Call

ARCHIVE_SCHEMA: Final = 1
ARCHIVE_MAGIC: Final = b"HONE"
ARCHIVE_LEVEL: Final = 9


class _Archive(msgspec.Struct, frozen=True, array_like=True):
    episode_id: str
    names: tuple[tuple[str, int], ...]
    records: tuple[bytes, ...]
    own: tuple[bytes, ...]
    messages: tuple[bytes, ...]


class _Numbered:
    """Bodies in the order in which they first came, each once."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._known: dict[bytes, int] = {}

    def numbers(self, digests: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> list[int]:
        """The number of each body, given to it now if it is new."""
        for digest in digests:
            if digest not in self._known:
                self._known[digest] = len(self.bodies)
                self.bodies.append(bodies[digest])
        return [self._known[digest] for digest in digests]


def encode_calls(calls: Sequence[Call]) -> bytes:
    """The archive blob of an episode's calls."""
    episode_id = calls[0].episode_id if calls else ""
    key = episode_key(episode_id)
    places: dict[bytes, bytes] = {}
    own, messages = _Numbered(), _Numbered()
    records: list[bytes] = []
    for position, call in enumerate(calls):
        told, entries = _told(key, call, places)
        contents = contents_of(call)
        record = record_of(call, told, contents)
        bodies = contents.packed()
        records.append(joined(own.numbers(contents.own, bodies), messages.numbers(contents.messages, bodies), record))
        places.update((entry[:DIGEST_BYTES], _placed(position, entry[DIGEST_BYTES:])) for entry in entries)
    names = tuple((call.call_id, call.index) for call in calls)
    archive = _Archive(episode_id, names, tuple(records), tuple(own.bodies), tuple(messages.bodies))
    compressor = zstandard.ZstdCompressor(level=ARCHIVE_LEVEL, write_checksum=True)
    return ARCHIVE_MAGIC + bytes([ARCHIVE_SCHEMA]) + compressor.compress(msgspec.msgpack.encode(archive))


def decode_calls(blob: bytes) -> tuple[Call, ...]:
    """The calls of an archive blob, in the order they were given. Raises `CorruptRecord` if it is none of ours."""
    return read_shelf(_shelf(blob))


def decode_sketches(blob: bytes) -> tuple[Sketch, ...]:
    """The same with prompts as they are told: for a long episode many times as quick, and not proven."""
    return read_sketches(_shelf(blob))


def _shelf(blob: bytes) -> Shelf:
    start = len(ARCHIVE_MAGIC)
    if blob[:start] != ARCHIVE_MAGIC or len(blob) == start:
        raise CorruptRecord("An archived timeline does not begin as one; was it written by something else?")
    if blob[start] != ARCHIVE_SCHEMA:
        raise CorruptRecord(f"An archived timeline has schema {blob[start]}; this Hone reads {ARCHIVE_SCHEMA}.")
    try:
        plain = zstandard.decompress(blob[start + 1 :])
        archive = msgspec.msgpack.decode(plain, type=_Archive)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise CorruptRecord(f"An archived timeline does not decode: {error}") from error
    return Shelf(
        episode_id=archive.episode_id,
        records=archive.records,
        own=dict(enumerate(archive.own)),
        messages=dict(enumerate(archive.messages)),
        names=dict(enumerate(archive.names)),
    )


def _told(key: bytes, call: Call, places: Mapping[bytes, bytes]) -> tuple[tuple[Part, ...], list[bytes]]:
    """A call's prompt as parts of what `places` knows, and what it adds to them."""
    answers = [choice.sampled_ids for choice in call.choices]
    packed = hashed_ids(call.prompt_ids)
    return tell(Chain(key).extend_packed(packed), call.prompt_ids, answers, places, packed)


def _placed(position: int, span: bytes) -> bytes:
    """The place of a span of the record at this list index."""
    return PLACE.pack(position, *SPAN.unpack(span))
