"""One call as a record: its bytes, what it names, and how it is read back.

A record tells its prompt as copies and new ids (`deltas.py`) and names every body by number instead of holding it: its
*own* ones (what most calls of an episode have in common, the rest of the request, the answers) one by one, the
request's messages as ranges. The two are numbered apart, so that a history is one run of numbers whether or not an
agent sends answers back as it got them. A record carries its schema, a checksum, a digest of the bodies it names and
the digest of the call's receipt. Reading checks all four: what breaks one of them comes back excluded as `unrecorded`,
with a detail that says why, and never with wrong tokens. Pure; where records lie is left to the stores.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import zstandard

from tracker.deltas import DIGEST_BYTES, Copy, Part, episode_key, expanded
from tracker.errors import CorruptRecord
from tracker.packing import pack_body, pack_ids, pack_logprobs, unpack_body, unpack_ids, unpack_logprobs
from tracker.receipts import call_digest
from tracker.types import Call, CallState, Choice, Prompting, Reason, Record, Sampling, Usage

RECORD_SCHEMA: Final = 1
MAX_MESSAGES: Final = 1_000_000
"""More than any request has; keeps damaged numbers from being counted out."""
_LENGTH: Final = struct.Struct(">I")


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
    usage: Usage | None = None
    prompting: Prompting | None = None


class Contents(Record, frozen=True):
    """The bodies that a call's record names."""

    own: tuple[bytes, ...]
    """Digests of what most calls share, of the rest of the request and of the answers."""
    messages: tuple[bytes, ...]
    """Digests of the request's messages."""
    plain: dict[bytes, bytes]
    """digest -> the body itself."""

    def packed(
        self, compressor: zstandard.ZstdCompressor | None = None, held: Container[bytes] = frozenset()
    ) -> dict[bytes, bytes]:
        """digest -> bytes to store, compressed where there is a compressor; without those that are `held` already."""
        return {digest: pack_body(body, compressor) for digest, body in self.plain.items() if digest not in held}


class Shelf(Record, frozen=True):
    """What is stored of an episode's calls, as read back."""

    episode_id: str
    records: tuple[bytes, ...]
    """In list order, each `joined` with the numbers of its bodies."""
    own: dict[int, bytes]
    messages: dict[int, bytes]
    names: dict[int, tuple[str, int]]
    """list index -> (call id, index of the call): who a record was, where the record itself cannot tell."""


class Sketch(Record, frozen=True):
    """A call whose prompt is told and not put together: quick to read where an episode is long, and not proven."""

    call: Call
    """Without its prompt ids."""
    prompt: tuple[Part, ...]
    """Copies name earlier sketches by their place in the list."""


def contents_of(call: Call) -> Contents:
    """The bodies of a call, each to be stored once for its episode."""
    key = episode_key(call.episode_id)
    plain: dict[bytes, bytes] = {}

    def named(bodies: Iterable[bytes]) -> tuple[bytes, ...]:
        digests = [(_content_digest(key, body), body) for body in bodies]
        plain.update(digests)
        return tuple([digest for digest, _ in digests])

    return Contents(
        own=named((_frame(call), call.request, *(choice.message for choice in call.choices))),
        messages=named(call.messages),
        plain=plain,
    )


def record_of(
    call: Call,
    told: Iterable[Part],
    contents: Contents,
    packed: bytes | None = None,
) -> bytes:
    """The record of a call; `told` is its prompt as copies and new ids, `packed` the same as `hashed_ids` gives it.

    It is not compressed by itself: its ids and log-probabilities are packed, its bodies lie elsewhere.
    """
    body = _Body(
        receipt=call_digest(call, packed),
        contents=_contents_digest((*contents.own, *contents.messages)),
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
        prompt=tuple([_part(part) for part in told]),
        answers=tuple([_answer(choice) for choice in call.choices]),
        usage=call.usage,
        prompting=call.prompting,
    )
    sealed = bytes([RECORD_SCHEMA]) + pack_body(msgspec.msgpack.encode(body))
    return _checksum(sealed) + sealed


def joined(own: Sequence[int], messages: Sequence[int], record: bytes) -> bytes:
    """A record with the numbers of its bodies before it; the script `end_call` does the same in Lua."""
    ranges: list[int] = []
    for number in messages:
        if ranges and ranges[-2] + ranges[-1] == number:
            ranges[-1] += 1
        else:
            ranges += (number, 1)
    head = msgspec.msgpack.encode((own, ranges))
    return _LENGTH.pack(len(head)) + head + record


def read_shelf(shelf: Shelf) -> tuple[Call, ...]:
    """The calls, prompts expanded, in list order; one that cannot be proven comes back excluded."""
    reader = _Reader(shelf)
    return tuple(reader.call_at(position) for position in range(len(shelf.records)))


def read_sketches(shelf: Shelf) -> tuple[Sketch, ...]:
    """The calls, prompts as they are told, in list order. Their bytes and bodies are checked as in `read_shelf`, the
    receipts are not: that takes every prompt."""
    reader = _Reader(shelf)
    return tuple(reader.sketch_at(position) for position in range(len(shelf.records)))


class _Reader:
    """Reads the records of one episode in list order, keeping the sequences that later ones copy."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        key = episode_key(shelf.episode_id)
        self._own = _Bodies(key, shelf.own)
        self._messages = _Bodies(key, shelf.messages)
        self._sequences: dict[tuple[int, int], tuple[int, ...]] = {}

    def call_at(self, position: int) -> Call:
        try:
            call, body = self._parsed(self._shelf.records[position])
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

    def sketch_at(self, position: int) -> Sketch:
        try:
            call, body = self._parsed(self._shelf.records[position])
            return Sketch(call=call, prompt=tuple(_told(body)))
        except CorruptRecord as error:
            return Sketch(call=self._unreadable(position, error.message), prompt=())

    def _parsed(self, entry: bytes) -> tuple[Call, _Body]:
        """The call without its prompt ids. Raises `CorruptRecord` unless every check of its bytes holds."""
        numbers, body = _opened(entry)
        own = [self._own.read(number) for number in numbers[0]]
        messages = [self._messages.read(number) for number in _numbers(numbers[1])]
        if _contents_digest(digest for digest, _ in own + messages) != body.contents:
            raise CorruptRecord("The messages it names are not those it was stored with.")
        return _assembled(body, [content for _, content in own], [content for _, content in messages]), body

    def _prompt(self, body: _Body) -> tuple[int, ...]:
        return expanded(_told(body), self._sequences)

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


class _Bodies:
    """Bodies by number, each unpacked and digested once."""

    def __init__(self, key: bytes, stored: Mapping[int, bytes]) -> None:
        self._key = key
        self._stored = stored
        self._known: dict[int, tuple[bytes, bytes]] = {}

    def read(self, number: int) -> tuple[bytes, bytes]:
        """(digest, bytes)."""
        if number not in self._known:
            packed = self._stored.get(number)
            if packed is None:
                raise CorruptRecord(f"A message it names, number {number}, is missing.")
            content = unpack_body(packed)
            self._known[number] = (_content_digest(self._key, content), content)
        return self._known[number]


def _opened(entry: bytes) -> tuple[tuple[list[int], list[int]], _Body]:
    """The numbers before a record, and the record."""
    try:
        (length,) = _LENGTH.unpack_from(entry)
        start = _LENGTH.size + length
        numbers = msgspec.msgpack.decode(entry[_LENGTH.size : start], type=tuple[list[int], list[int]])
        checksum, sealed = entry[start : start + DIGEST_BYTES], entry[start + DIGEST_BYTES :]
        if checksum != _checksum(sealed):
            raise CorruptRecord("Its stored bytes break their checksum.")
        if sealed[0] != RECORD_SCHEMA:
            raise CorruptRecord(f"It has schema {sealed[0]}; this Hone reads {RECORD_SCHEMA}.")
        return numbers, msgspec.msgpack.decode(unpack_body(sealed[1:]), type=_Body)
    except (struct.error, msgspec.DecodeError, IndexError) as error:
        raise CorruptRecord(f"Its stored bytes do not decode: {error}") from error


def _assembled(body: _Body, own: Sequence[bytes], messages: Sequence[bytes]) -> Call:
    """The call without its prompt ids."""
    try:
        frame = msgspec.msgpack.decode(own[0], type=_Frame)
    except (msgspec.DecodeError, IndexError) as error:
        raise CorruptRecord(f"What it has in common with other calls does not decode: {error}") from error
    fields = {name: getattr(frame, name) for name in frame.__struct_fields__}
    return Call(
        **fields,
        call_id=body.call_id,
        index=body.index,
        state=body.state,
        reason=body.reason,
        detail=body.detail,
        choices=tuple(_choice(answer, message) for answer, message in zip(body.answers, own[2:], strict=True)),
        messages=tuple(messages),
        request=own[1],
        started_ms=body.started_ms,
        ended_ms=body.ended_ms,
        body_digest=body.body_digest,
        retry=body.retry,
        usage_completion_tokens=body.usage_completion_tokens,
        usage=body.usage,
        prompting=body.prompting,
    )


def _choice(answer: _Answer, message: bytes) -> Choice:
    return Choice(
        index=answer.index,
        sampled_ids=unpack_ids(answer.sampled),
        logprobs=unpack_logprobs(answer.logprobs),
        finish_reason=answer.finish_reason,
        truncated=answer.truncated,
        message=message,
        reason=answer.reason,
    )


def _told(body: _Body) -> Iterator[Part]:
    return (unpack_ids(part) if isinstance(part, bytes) else Copy(*part) for part in body.prompt)


def _part(part: Part) -> bytes | tuple[int, int, int, int]:
    if isinstance(part, Copy):
        return (part.position, part.choice, part.start, part.length)
    return pack_ids(part)


def _answer(choice: Choice) -> _Answer:
    return _Answer(
        index=choice.index,
        sampled=pack_ids(choice.sampled_ids),
        logprobs=pack_logprobs(choice.logprobs),
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


def _numbers(ranges: Sequence[int]) -> list[int]:
    """The numbers that (first, count) pairs tell. Raises `CorruptRecord` for what no record can name."""
    firsts, counts = ranges[::2], ranges[1::2]
    if len(firsts) != len(counts) or sum(counts) > MAX_MESSAGES:
        raise CorruptRecord("The numbers of its messages are damaged.")
    return [number for first, count in zip(firsts, counts, strict=True) for number in range(first, first + count)]


def _checksum(sealed: bytes) -> bytes:
    return hashlib.blake2b(sealed, digest_size=DIGEST_BYTES, person=b"hone-record").digest()


def _content_digest(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=DIGEST_BYTES, person=b"hone-content").digest()


def _contents_digest(digests: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(digests), digest_size=DIGEST_BYTES, person=b"hone-contents").digest()
