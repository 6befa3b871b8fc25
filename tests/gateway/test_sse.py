"""Laws of `gateway/sse.py`."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import SseEvent, SseParser, encode_event
from tracker.errors import UpstreamFailed

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXT = st.text(alphabet=st.sampled_from("ab:{} \u2028\u2029\x85é😀"), max_size=12)
LINES = st.one_of(
    st.builds(lambda text: b"data: " + text.encode(), TEXT),
    st.builds(lambda text: b"data:" + text.encode(), TEXT),
    st.builds(lambda text: b": " + text.encode(), TEXT),
    st.sampled_from([b"data", b"event: message", b"id: 7"]),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Blocks of lines under one line end, as a sender writes them; the last may be cut anywhere."""
    end = draw(LINE_ENDS)
    blocks = draw(st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=5))
    whole = b"".join(end.join(block) + end + end for block in blocks)
    return whole[: len(whole) - draw(st.integers(0, 4))]


def parse(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


@given(streams(), st.lists(st.integers(0, 200), max_size=12))
def test_bytes_split_anywhere_give_the_same_events(stream: bytes, cuts: list[int]) -> None:
    points = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(points)]
    assert parse(*pieces) == parse(stream)


NOISE = st.lists(st.sampled_from([b"data:", b"a", b":", b"\r", b"\n"]), max_size=30).map(b"".join)


@given(st.one_of(streams(), NOISE))
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert parse(*[stream[k : k + 1] for k in range(len(stream))]) == parse(stream)


@given(st.lists(st.dictionaries(TEXT, TEXT, max_size=3), max_size=5))
def test_what_was_encoded_is_parsed_back_byte_for_byte(values: list[dict[str, str]]) -> None:
    events = [encode_event(json.dumps(value, ensure_ascii=False).encode()) for value in values]
    parsed = parse(b"".join(events))
    assert [event.raw for event in parsed] == events
    assert [json.loads(event.data or b"") for event in parsed] == values


def test_line_separators_of_unicode_do_not_end_a_line() -> None:
    data = '{"a":"x\u2028y\u2029z\x85"}'.encode()
    assert [event.data for event in parse(b"data: " + data + b"\n\n")] == [data]


def test_data_lines_are_joined_by_a_line_feed() -> None:
    assert [event.data for event in parse(b"data: a\r\ndata:b\r\nevent: x\r\n\r\n")] == [b"a\nb"]


def test_a_comment_is_an_event_without_data_and_keeps_its_bytes() -> None:
    assert parse(b": ping\n\ndata: 1\n\n") == [
        SseEvent(raw=b": ping\n\n", data=None),
        SseEvent(raw=b"data: 1\n\n", data=b"1"),
    ]


def test_a_carriage_return_at_the_end_of_a_chunk_waits_for_its_line_feed() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\r\n\r") == []
    assert parser.feed(b"\ndata: 2") == [SseEvent(raw=b"data: 1\r\n\r\n", data=b"1")]


def test_a_last_event_without_its_empty_line_is_given_at_the_end() -> None:
    assert parse(b"data: [DONE]")[0].is_done


def test_an_event_over_the_limit_fails_instead_of_filling_memory() -> None:
    parser = SseParser(max_event_bytes=10)
    with pytest.raises(UpstreamFailed):
        parser.feed(b"data: 0123456789")
