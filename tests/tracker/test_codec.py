"""Calls as bytes: every field comes back, damage is seen, and bytes follow new tokens."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.agent_turns import SHAPES, new_tokens, turns
from tests.tracker.call_strategies import call_of, episodes, intent
from tracker.codec import ARCHIVE_MAGIC, decode_calls, encode_calls
from tracker.errors import CorruptRecord
from tracker.packing import body_compressor, pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from tracker.receipts import call_digest
from tracker.records import Shelf, contents_of, joined, read_shelf, record_of
from tracker.types import Call, Choice, Reason


def shelf_of(calls: tuple[Call, ...]) -> Shelf:
    """Calls stored one by one, their bodies numbered as they come, nothing copied."""
    own: dict[bytes, int] = {}
    messages: dict[bytes, int] = {}
    bodies: dict[bytes, bytes] = {}
    records: list[bytes] = []
    compressor = body_compressor()
    for call in calls:
        contents = contents_of(call)
        bodies.update(contents.packed(compressor))
        numbers = [
            [known.setdefault(digest, len(known)) for digest in digests]
            for known, digests in ((own, contents.own), (messages, contents.messages))
        ]
        records.append(joined(*numbers, record_of(call, (call.prompt_ids,), contents)))
    return Shelf(
        episode_id="ep-1",
        records=tuple(records),
        own={number: bodies[digest] for digest, number in own.items()},
        messages={number: bodies[digest] for digest, number in messages.items()},
        names={position: (call.call_id, call.index) for position, call in enumerate(calls)},
    )


@settings(deadline=None, max_examples=40)
@given(calls=episodes())
def test_an_archive_gives_every_field_back(calls: tuple[Call, ...]) -> None:
    assert decode_calls(encode_calls(calls)) == calls


@settings(deadline=None, max_examples=40)
@given(calls=episodes())
def test_a_shelf_gives_every_field_back(calls: tuple[Call, ...]) -> None:
    assert read_shelf(shelf_of(calls)) == calls


def test_an_archive_of_no_calls_is_empty() -> None:
    assert decode_calls(encode_calls(())) == ()


def test_a_logprob_that_is_no_number_comes_back_as_such() -> None:
    call = call_of(intent(), 0)
    odd = (math.nan, -math.inf, -0.0, 1e300)
    call = msgspec.structs.replace(call, choices=(Choice(index=0, sampled_ids=(1,) * 4, logprobs=odd),))
    [back] = decode_calls(encode_calls((call,)))
    assert back.reason is None
    assert call_digest(back) == call_digest(call)
    assert repr(back.choices[0].logprobs) == repr(odd)


@given(values=st.lists(st.floats(allow_nan=False)), narrow=st.lists(st.floats(width=32, allow_nan=False)))
def test_logprobs_take_four_bytes_where_that_loses_nothing(values: list[float], narrow: list[float]) -> None:
    assert unpack_logprobs(pack_logprobs(values)) == tuple(values)
    assert len(pack_logprobs(narrow)) == 1 + 4 * len(narrow)


@given(ids=st.lists(st.integers(0, 2**62)))
def test_ids_come_back_at_any_width(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == tuple(ids)


def test_small_ids_take_two_bytes() -> None:
    assert len(pack_ids((49_151,) * 10)) == 21


@pytest.mark.parametrize("blob", [b"", b"HONE", b"JUNK\1abc", ARCHIVE_MAGIC + b"\xff", ARCHIVE_MAGIC + b"\1abc"])
def test_what_is_no_archive_is_refused(blob: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_calls(blob)


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_refused_and_never_read_wrong(data: st.DataObject) -> None:
    calls = tuple(turns("plain", 3))
    blob = bytearray(encode_calls(calls))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    try:
        back = decode_calls(bytes(blob))
    except CorruptRecord:
        return
    assert back == calls


@settings(deadline=None, max_examples=40)
@given(calls=episodes(), data=st.data())
def test_a_damaged_shelf_is_read_as_it_was_or_visibly_excluded(calls: tuple[Call, ...], data: st.DataObject) -> None:
    shelf = shelf_of(calls)
    kind = data.draw(st.sampled_from(("records", "own", "messages")))
    stored = dict(enumerate(shelf.records)) if kind == "records" else dict(getattr(shelf, kind))
    if not stored:
        return
    place = data.draw(st.sampled_from(sorted(stored)))
    stored[place] = _damaged(data, stored[place])
    changed = tuple(stored.values()) if kind == "records" else stored
    back = read_shelf(msgspec.structs.replace(shelf, **{kind: changed}))
    assert [(call.call_id, call.index) for call in back] == [(call.call_id, call.index) for call in calls]
    for now, then in zip(back, calls, strict=True):
        if now != then:
            assert now.reason is not None
            assert now.detail


def _damaged(data: st.DataObject, stored: bytes) -> bytes:
    place = data.draw(st.integers(0, len(stored) - 1))
    if data.draw(st.booleans()):
        return stored[:place]
    return stored[:place] + bytes([stored[place] ^ data.draw(st.integers(1, 255))]) + stored[place + 1 :]


def test_a_call_that_copies_from_a_damaged_one_keeps_its_state_and_says_why() -> None:
    first, second = tuple(turns("plain", 2))
    shelf = shelf_of((first, second))
    told = msgspec.structs.replace(shelf, records=(b"", shelf.records[1]))
    broken, whole = read_shelf(told)
    assert (broken.reason, broken.call_id) == (Reason.UNRECORDED, first.call_id)
    assert whole == second


@pytest.mark.parametrize("shape", SHAPES)
def test_the_archive_follows_new_tokens_and_not_history(shape: str) -> None:
    per_token = []
    for num_turns in (10, 50):
        calls = tuple(turns(shape, num_turns))
        per_token.append(len(encode_calls(calls)) / new_tokens(calls))
    assert per_token[1] < 1.1 * per_token[0]
