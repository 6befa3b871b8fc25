"""Calls as bytes: the record that Redis holds of one call, and the blob that SQL holds of an archived episode.

Both tell prompts as copies and new ids (`deltas.py`) and every other body (a message, the rest of a request, what a run
of calls has in common) once by its digest; a record names bodies by small numbers, as ranges. A record carries its
schema, a checksum, a digest of the bodies it names and the digest of the call's receipt. Reading checks all four: what
breaks one of them comes back excluded as `unrecorded`, with a detail that says why, and never with wrong tokens.
Log-probabilities take 4 bytes each where that loses nothing, else 8. Pure; where bytes lie is left to the stores.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import zstandard

from tracker.deltas import (
    BLOCK_IDS,
    DIGEST_BYTES,
    PLACE,
    SPAN,
    Chain,
    Copy,
    Part,
    chunks,
    episode_key,
    expanded,
    index_entries,
    longest_hit,
    parts,
)
from tracker.errors import CorruptRecord
from tracker.receipts import call_digest
from tracker.types import Call, CallState, Choice, Reason, Record, Sampling

RECORD_SCHEMA: Final = 1
ARCHIVE_SCHEMA: Final = 1
ARCHIVE_MAGIC: Final = b"HONE"
RECORD_LEVEL: Final = 3
ARCHIVE_LEVEL: Final = 9
MIN_COMPRESSED_BYTES: Final = 128
"""Shorter bodies are kept as they are."""
_PLAIN, _ZSTD = b"\0", b"\1"
_LENGTH: Final = struct.Struct(">I")
_ID_TYPES: Final = (("H", 1 << 16), ("I", 1 << 32))


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """What most calls of an episode have in common, so that it is stored once for them all."""

    episode_id: str
    dialect: str
    policy: str | None
    model: str
    version: int
    adapter_digest: str
    role: str
    sampling: Sampling
    engine: str
    key_id: str


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """A choice without its message."""

    index: int
    sampled: bytes
    logprobs: bytes
    finish_reason: str | None
    truncated: bool
    reason: Reason | None


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """A call without what its frame and its bodies hold."""

    receipt: bytes
    contents: bytes
    """Digest over the digests of the bodies it names."""
    call_id: str
    index: int
    state: CallState
    reason: Reason | None
    detail: str
    started_ms: int
    ended_ms: int
    body_digest: str
    retry: int
    usage_completion_tokens: int | None
    prompt: tuple[bytes | tuple[int, int, int, int], ...]
    """New ids as bytes, copies as (list index, choice, start, length)."""
    answers: tuple[_Answer, ...]


class _Archive(msgspec.Struct, frozen=True, array_like=True):
    names: tuple[tuple[str, int], ...]
    records: tuple[bytes, ...]
    bodies: tuple[bytes, ...]


class Contents(Record, frozen=True):
    """The bodies a call's record names: what most calls share, its request, its answers, its messages."""

    digests: tuple[bytes, ...]
    """In the order in which the record names them."""
    bodies: dict[bytes, bytes]
    """digest -> bytes to store."""


class Shelf(Record, frozen=True):
    """What is stored of an episode's calls, as read back."""

    episode_id: str
    records: tuple[bytes, ...]
    """In list order, each `joined` with the numbers of its bodies."""
    bodies: dict[int, bytes]
    names: dict[int, tuple[str, int]]
    """list index -> (call id, index of the call): who a record was, where the record itself cannot tell."""


def contents_of(call: Call, *, compress: bool = True) -> Contents:
    """The bodies of a call, each to be stored once for its episode."""
    key = episode_key(call.episode_id)
    plain = [_frame(call), call.request, *(choice.message for choice in call.choices), *call.messages]
    digests = tuple(_content_digest(key, content) for content in plain)
    packed = {digest: _packed(content, compress=compress) for digest, content in zip(digests, plain, strict=True)}
    return Contents(digests=digests, bodies=packed)


def record_of(call: Call, told: Iterable[Part], contents: Contents, *, compress: bool = True) -> bytes:
    """The record of a call; `told` is its prompt as copies and new ids."""
    body = _Body(
        receipt=call_digest(call),
        contents=_contents_digest(contents.digests),
        call_id=call.call_id,
        index=call.index,
        state=call.state,
        reason=call.reason,
        detail=call.detail,
        started_ms=call.started_ms,
        ended_ms=call.ended_ms,
        body_digest=call.body_digest,
        retry=call.retry,
        usage_completion_tokens=call.usage_completion_tokens,
        prompt=tuple(_part(part) for part in told),
        answers=tuple(_answer(choice) for choice in call.choices),
    )
    sealed = bytes([RECORD_SCHEMA]) + _packed(msgspec.msgpack.encode(body), compress=compress)
    return _checksum(sealed) + sealed


def joined(numbers: Sequence[int], record: bytes) -> bytes:
    """A record with the numbers of its bodies before it, as ranges; the script `end_call` does the same in Lua."""
    ranges: list[int] = []
    for number in numbers:
        if ranges and ranges[-2] + ranges[-1] == number:
            ranges[-1] += 1
        else:
            ranges += (number, 1)
    head = msgspec.msgpack.encode(ranges)
    return _LENGTH.pack(len(head)) + head + record


def read_shelf(shelf: Shelf) -> tuple[Call, ...]:
    """The calls, prompts expanded, in list order; one that cannot be proven comes back excluded."""
    reader = _Reader(shelf)
    return tuple(reader.call_at(position) for position in range(len(shelf.records)))


def encode_calls(calls: Sequence[Call]) -> bytes:
    """The archive blob of an episode's calls."""
    key = episode_key(calls[0].episode_id if calls else "")
    places: dict[bytes, bytes] = {}
    numbers: dict[bytes, int] = {}
    bodies: list[bytes] = []
    records: list[bytes] = []
    for position, call in enumerate(calls):
        told, entries = _told(key, call, places)
        contents = contents_of(call, compress=False)
        for digest in contents.digests:
            if numbers.setdefault(digest, len(bodies)) == len(bodies):
                bodies.append(contents.bodies[digest])
        record = record_of(call, told, contents, compress=False)
        records.append(joined([numbers[digest] for digest in contents.digests], record))
        places.update((entry[:DIGEST_BYTES], _placed(position, entry[DIGEST_BYTES:])) for entry in entries)
    names = tuple((call.call_id, call.index) for call in calls)
    plain = msgspec.msgpack.encode(
        (calls[0].episode_id if calls else "", _Archive(names, tuple(records), tuple(bodies)))
    )
    compressor = zstandard.ZstdCompressor(level=ARCHIVE_LEVEL, write_checksum=True)
    return ARCHIVE_MAGIC + bytes([ARCHIVE_SCHEMA]) + compressor.compress(plain)


def decode_calls(blob: bytes) -> tuple[Call, ...]:
    """The calls of an archive blob, in the order they were given. Raises `CorruptRecord` if it is none of ours."""
    start = len(ARCHIVE_MAGIC)
    if blob[:start] != ARCHIVE_MAGIC:
        raise CorruptRecord("An archived timeline does not begin as one; was it written by something else?")
    if blob[start] != ARCHIVE_SCHEMA:
        raise CorruptRecord(f"An archived timeline has schema {blob[start]}; this Hone reads {ARCHIVE_SCHEMA}.")
    try:
        plain = zstandard.decompress(blob[start + 1 :])
        episode_id, archive = msgspec.msgpack.decode(plain, type=tuple[str, _Archive])
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise CorruptRecord(f"An archived timeline does not decode: {error}") from error
    return read_shelf(
        Shelf(
            episode_id=episode_id,
            records=archive.records,
            bodies=dict(enumerate(archive.bodies)),
            names=dict(enumerate(archive.names)),
        )
    )


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids, little-endian, in as many bytes each as the largest needs (2, 4 or 8).

    >>> pack_ids((1, 2))
    b'H\\x01\\x00\\x02\\x00'
    """
    low, high = min(ids, default=0), max(ids, default=0)
    code = next((code for code, limit in _ID_TYPES if low >= 0 and high < limit), "q")
    return code.encode() + _little(array(code, ids))


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """What `pack_ids` packed."""
    return tuple(int(number) for number in _unpacked(packed, "HIq"))


def _pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """As floats if each comes back the same double, else as doubles."""
    exact = array("d", logprobs)
    short = array("f", logprobs)
    if array("d", short).tobytes() == exact.tobytes():
        return b"f" + _little(short)
    return b"d" + _little(exact)


class _Reader:
    """Reads the records of one episode in list order, keeping the sequences that later ones copy."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._key = episode_key(shelf.episode_id)
        self._sequences: dict[tuple[int, int], tuple[int, ...]] = {}
        self._contents: dict[int, tuple[bytes, bytes]] = {}

    def call_at(self, position: int) -> Call:
        try:
            body, contents = self._parsed(self._shelf.records[position])
            call = _assembled(body, contents)
        except CorruptRecord as error:
            return self._unreadable(position, error.message)
        try:
            call = msgspec.structs.replace(call, prompt_ids=self._prompt(body))
        except CorruptRecord as error:
            return _excluded(call, error.message)
        if call_digest(call) != body.receipt:
            return _excluded(call, "What was stored breaks the digest of its receipt.")
        for choice, answer in enumerate(call.choices):
            self._sequences[position, choice] = call.prompt_ids + answer.sampled_ids
        if not call.choices:
            self._sequences[position, 0] = call.prompt_ids
        return call

    def _parsed(self, entry: bytes) -> tuple[_Body, list[bytes]]:
        """A record's body and the bodies it names. Raises `CorruptRecord` unless every check holds."""
        try:
            (length,) = _LENGTH.unpack_from(entry)
            ranges = msgspec.msgpack.decode(entry[_LENGTH.size : _LENGTH.size + length], type=list[int])
            sealed = entry[_LENGTH.size + length + DIGEST_BYTES :]
            if entry[_LENGTH.size + length :][:DIGEST_BYTES] != _checksum(sealed):
                raise CorruptRecord("Its stored bytes break their checksum.")
            if sealed[0] != RECORD_SCHEMA:
                raise CorruptRecord(f"It has schema {sealed[0]}; this Hone reads {RECORD_SCHEMA}.")
            body = msgspec.msgpack.decode(_unzipped(sealed[1:]), type=_Body)
        except (struct.error, msgspec.DecodeError, IndexError) as error:
            raise CorruptRecord(f"Its stored bytes do not decode: {error}") from error
        named = [self._content(number) for number in _numbers(ranges)]
        if _contents_digest([digest for digest, _ in named]) != body.contents:
            raise CorruptRecord("The messages it names are not those it was stored with.")
        return body, [content for _, content in named]

    def _content(self, number: int) -> tuple[bytes, bytes]:
        """(digest, bytes) of a body."""
        if number not in self._contents:
            packed = self._shelf.bodies.get(number)
            if packed is None:
                raise CorruptRecord(f"A message it names, number {number}, is missing.")
            content = _unzipped(packed)
            self._contents[number] = (_content_digest(self._key, content), content)
        return self._contents[number]

    def _prompt(self, body: _Body) -> tuple[int, ...]:
        told = (unpack_ids(part) if isinstance(part, bytes) else Copy(*part) for part in body.prompt)
        return expanded(told, self._sequences)

    def _unreadable(self, position: int, detail: str) -> Call:
        call_id, index = self._shelf.names.get(position, (f"record-{position}", position))
        return Call(
            call_id=call_id,
            episode_id=self._shelf.episode_id,
            index=index,
            state=CallState.LOST,
            reason=Reason.UNRECORDED,
            detail=detail,
        )


def _assembled(body: _Body, contents: Sequence[bytes]) -> Call:
    """The call without its prompt ids."""
    try:
        frame = msgspec.msgpack.decode(contents[0], type=_Frame)
    except (msgspec.DecodeError, IndexError) as error:
        raise CorruptRecord(f"What it has in common with other calls does not decode: {error}") from error
    answers, messages = contents[2 : 2 + len(body.answers)], contents[2 + len(body.answers) :]
    fields = {name: getattr(frame, name) for name in frame.__struct_fields__}
    return Call(
        **fields,
        call_id=body.call_id,
        index=body.index,
        state=body.state,
        reason=body.reason,
        detail=body.detail,
        choices=tuple(_choice(answer, message) for answer, message in zip(body.answers, answers, strict=True)),
        messages=tuple(messages),
        request=contents[1],
        started_ms=body.started_ms,
        ended_ms=body.ended_ms,
        body_digest=body.body_digest,
        retry=body.retry,
        usage_completion_tokens=body.usage_completion_tokens,
    )


def _choice(answer: _Answer, message: bytes) -> Choice:
    return Choice(
        index=answer.index,
        sampled_ids=unpack_ids(answer.sampled),
        logprobs=tuple(_unpacked(answer.logprobs, "fd")),
        finish_reason=answer.finish_reason,
        truncated=answer.truncated,
        message=message,
        reason=answer.reason,
    )


def _part(part: Part) -> bytes | tuple[int, int, int, int]:
    if isinstance(part, Copy):
        return (part.position, part.choice, part.start, part.length)
    return pack_ids(part)


def _answer(choice: Choice) -> _Answer:
    return _Answer(
        index=choice.index,
        sampled=pack_ids(choice.sampled_ids),
        logprobs=_pack_logprobs(choice.logprobs),
        finish_reason=choice.finish_reason,
        truncated=choice.truncated,
        reason=choice.reason,
    )


def _excluded(call: Call, detail: str) -> Call:
    """The call with every choice excluded; the state it ended in stays, what it was excluded for before too."""
    choices = tuple(
        msgspec.structs.replace(choice, reason=choice.reason or Reason.UNRECORDED) for choice in call.choices
    )
    return msgspec.structs.replace(call, reason=call.reason or Reason.UNRECORDED, choices=choices, detail=detail)


def _frame(call: Call) -> bytes:
    return msgspec.msgpack.encode(_Frame(*(getattr(call, name) for name in _Frame.__struct_fields__)))


def _told(key: bytes, call: Call, places: Mapping[bytes, bytes]) -> tuple[tuple[Part, ...], list[bytes]]:
    """A call's prompt as parts of what `places` knows, and what it adds to them."""
    chain = Chain(key).extend(call.prompt_ids)
    known = longest_hit(chain.digests, places)
    prefix = places[chain.digests[known - 1]] if known else None
    pieces = chunks(key, call.prompt_ids, known * BLOCK_IDS)
    answers = [choice.sampled_ids for choice in call.choices]
    entries = index_entries(key, chain, call.prompt_ids, answers, known)
    return parts(call.prompt_ids, prefix, pieces, places), entries


def _placed(position: int, span: bytes) -> bytes:
    """The place of a span of the record at this list index."""
    return PLACE.pack(position, *SPAN.unpack(span))


def _numbers(ranges: Sequence[int]) -> list[int]:
    return [
        number for first, count in zip(ranges[::2], ranges[1::2], strict=True) for number in range(first, first + count)
    ]


def _checksum(sealed: bytes) -> bytes:
    return hashlib.blake2b(sealed, digest_size=DIGEST_BYTES, person=b"hone-record").digest()


def _content_digest(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=DIGEST_BYTES, person=b"hone-content").digest()


def _contents_digest(digests: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(digests), digest_size=DIGEST_BYTES, person=b"hone-contents").digest()


def _packed(plain: bytes, *, compress: bool) -> bytes:
    if compress and len(plain) >= MIN_COMPRESSED_BYTES:
        short = zstandard.compress(plain, RECORD_LEVEL)
        if len(short) < len(plain):
            return _ZSTD + short
    return _PLAIN + plain


def _unzipped(packed: bytes) -> bytes:
    if packed[:1] != _ZSTD:
        return packed[1:]
    try:
        return zstandard.decompress(packed[1:])
    except zstandard.ZstdError as error:
        raise CorruptRecord(f"Its stored bytes do not decompress: {error}") from error


def _little(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unpacked(packed: bytes, codes: str) -> array[int] | array[float]:
    code = packed[:1].decode("latin-1")
    if code not in codes or not code:
        raise CorruptRecord(f"Its numbers are of the unknown kind {code!r}.")
    numbers: array[int] | array[float] = array(code)
    try:
        numbers.frombytes(packed[1:])
    except ValueError as error:
        raise CorruptRecord(f"Its numbers are cut: {error}") from error
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
