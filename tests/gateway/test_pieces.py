"""The quick way through an answer gives what the general way gives, whatever the engine sends."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.capture import MALFORMED, Capture, EndTokens
from gateway.dialects.base import Limits
from gateway.dialects.chat import Chat
from gateway.dialects.openai_form import PassingWriter
from gateway.pieces import MAX_TOKEN_ID, read_piece, read_whole
from gateway.sse import SseParser
from gateway.upstream import engine_object
from tracker.errors import UpstreamFailed
from tracker.types import Choice

Json = dict[str, Any]
WORDS = st.text(max_size=8)
IDS = st.lists(st.integers(0, MAX_TOKEN_ID - 1), max_size=4) | st.sampled_from(
    [None, [-1], [True], ["1"], [2**40], [0.5]]
)
LOGPROBS = st.floats(-50, 0) | st.sampled_from([0, -1, -9999.0, None, "x", math.nan, math.inf])
ENTRIES = st.fixed_dictionaries(
    {"token": WORDS, "logprob": LOGPROBS}, optional={"bytes": st.none(), "top_logprobs": st.just([])}
)
SCORES = st.none() | st.fixed_dictionaries({"content": st.lists(ENTRIES, max_size=4) | st.none()})
FINISH = st.sampled_from([None, None, None, "stop", "length", 3])
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": WORDS | st.none()}, optional={"reasoning": WORDS}
)
DELTAS = st.fixed_dictionaries({"content": WORDS | st.none()}, optional={"role": st.just("assistant"), "x": WORDS})
ASKED = Chat().parse(b'{"model":"solver","messages":[{"role":"user","content":"hi"}]}', Limits())
STREAMED = Chat().parse(b'{"model":"solver","stream":true,"messages":[{"role":"user","content":"hi"}]}', Limits())


def answers(kind: str, words: st.SearchStrategy[Json], name: str) -> st.SearchStrategy[Json]:
    choice = st.fixed_dictionaries(
        {"index": st.sampled_from([0, 0, 0, 1, -1, "0"]), name: words, "finish_reason": FINISH},
        optional={"logprobs": SCORES, "token_ids": IDS, "stop_reason": st.none() | WORDS, "extra": WORDS},
    )
    return st.fixed_dictionaries(
        {
            "id": st.just("e1"),
            "object": st.just(kind),
            "created": st.integers(0, 3),
            "model": st.just("base"),
            "choices": st.lists(choice, min_size=1, max_size=2),
        },
        optional={
            "usage": st.none() | st.just({"prompt_tokens": 2, "completion_tokens": 1}),
            "prompt_token_ids": IDS,
            "error": st.none(),
            "novel": st.lists(st.floats(0, 1), max_size=2),
        },
    )


def taken(capture: Capture, passed: list[bytes]) -> tuple[object, ...]:
    choices: tuple[Choice, ...] = capture.choices(None, EndTokens())
    told = [json.loads(one.removeprefix(b"data: ")) for one in passed if one]
    return told, [repr(choice) for choice in choices], capture.prompt_ids, capture.detail(), capture.is_finished


def general(asked: Any, events: list[bytes], *, streams: bool) -> tuple[object, ...] | str:
    capture, writer, passed = Capture(asked), PassingWriter(asked, "c1"), []
    try:
        for data in events:
            said = engine_object(data, MALFORMED)
            if capture.feed(said):
                passed.append(writer.event(said) if streams else writer.whole(said))
    except UpstreamFailed as error:
        return error.message
    return taken(capture, passed)


def quick(asked: Any, events: list[bytes], *, streams: bool) -> tuple[object, ...] | str:
    capture, writer, passed = Capture(asked), PassingWriter(asked, "c1"), []
    try:
        for data in events:
            if streams and (piece := read_piece(data)) is not None:
                capture.take_piece(piece)
                passed.append(writer.piece(piece))
            elif not streams and (whole := read_whole(data)) is not None:
                capture.feed(whole)
                passed.append(writer.whole(whole))
            else:
                said = engine_object(data, MALFORMED)
                if capture.feed(said):
                    passed.append(writer.event(said) if streams else writer.whole(said))
    except UpstreamFailed as error:
        return error.message
    return taken(capture, passed)


@given(st.lists(answers("chat.completion.chunk", DELTAS, "delta"), max_size=4))
def test_pieces_are_what_any_event_is(events: list[Json]) -> None:
    sent = [json.dumps(event).encode() for event in events]
    assert quick(STREAMED, sent, streams=True) == general(STREAMED, sent, streams=True)


@given(answers("chat.completion", MESSAGES, "message"))
def test_a_whole_answer_is_what_any_event_is(answer: Json) -> None:
    sent = [json.dumps(answer).encode()]
    assert quick(ASKED, sent, streams=False) == general(ASKED, sent, streams=False)


def test_the_events_of_a_plain_stream_are_pieces() -> None:
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -1.5}]}}
    event = {"id": "e", "object": "chat.completion.chunk", "created": 1, "model": "base"}
    event["choices"] = [{**choice, "finish_reason": None, "token_ids": [7]}]  # type: ignore[assignment]
    raw = b"data: " + json.dumps(event).encode() + b"\n\n"
    [seen] = SseParser().feed(raw)
    assert seen.data is not None
    assert read_piece(seen.data) is not None
    assert read_piece(seen.data.replace(b'"finish_reason": null', b'"finish_reason": "stop"')) is None
