"""Anthropic's event stream, written from an engine's: nothing lost, nothing out of place, however pieces were cut."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.capture import Capture
from gateway.dialects.base import Asked, Limits, Writer
from gateway.dialects.messages.dialect import Messages

Json = dict[str, Any]
PIECES = st.text(st.characters(codec="utf-8"), max_size=4)


def asked(**fields: Any) -> Asked:
    body = {"model": "gpt", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}], **fields}
    return Messages().parse(json.dumps(body).encode(), Limits())


def writer(**fields: Any) -> Writer:
    return Messages().writer(asked(**fields), "msg_1")


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def usage(prompt: int = 3, completion: int = 2, **more: Any) -> Json:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


def call(index: int, *, call_id: str | None = None, name: str | None = None, arguments: str | None = None) -> Json:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece: Json = {"index": index, "function": function}
    return {"tool_calls": [piece if call_id is None else {**piece, "id": call_id, "type": "function"}]}


def events(raw: bytes) -> list[Json]:
    """The events, each under the name of its type."""
    read: list[Json] = []
    for part in raw.split(b"\n\n")[:-1]:
        name, data = part.split(b"\n", 1)
        said = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + said["type"].encode()
        read.append(said)
    return read


def written(chunks: Sequence[Json], **fields: Any) -> list[Json]:
    """What the agent gets of a stream of these."""
    writes = writer(**fields)
    return events(b"".join([*(writes.event(copy.deepcopy(each)) for each in chunks), writes.done(b"")]))


def gathered(stream: Sequence[Json]) -> Json:
    """The message that a stream amounts to, as SDKs put it together; raises on an event out of place."""
    first, *middle, delta, stop = stream
    assert (first["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message: Json = first["message"]
    arguments: dict[int, str] = {}
    blocks, is_open = message["content"], False
    for said in middle:
        match said["type"]:
            case "content_block_start":
                assert (is_open, said["index"]) == (False, len(blocks))
                is_open = True
                blocks.append(said["content_block"])
            case "content_block_delta":
                assert (is_open, said["index"]) == (True, len(blocks) - 1)
                piece = said["delta"]
                if piece["type"] == "input_json_delta":
                    arguments[said["index"]] = arguments.get(said["index"], "") + piece["partial_json"]
                else:
                    name = piece["type"].removesuffix("_delta")
                    blocks[-1][name] += piece[name]
            case "content_block_stop":
                assert (is_open, said["index"]) == (True, len(blocks) - 1)
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    for index, text in arguments.items():
        blocks[index]["input"] = json.loads(text)
    return {**message, **delta["delta"], "usage": {**message["usage"], **delta["usage"]}}


def test_a_stream_of_words() -> None:
    first = {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [1, 2, 3]}
    stream = written([first, chunk({"content": "he"}), chunk({"content": "y"}, "stop"), usage()])
    assert [said["type"] for said in stream] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert stream[0]["message"]["usage"]["input_tokens"] == 3
    assert gathered(stream) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "gpt",
        "content": [{"type": "text", "text": "hey"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
        },
    }


def test_every_piece_goes_on_as_it_comes() -> None:
    writes = writer(thinking={"type": "adaptive"})
    for delta in (
        {"reasoning": "hm"},
        {"content": "so"},
        call(0, call_id="c1", name="look", arguments=""),
        call(0, arguments="{"),
        call(0, arguments="}"),
    ):
        (*_, last) = events(writes.event(chunk(delta)))
        assert last["type"] in ("content_block_delta", "content_block_start")


def test_parallel_calls_are_blocks_of_their_own_under_the_engines_ids() -> None:
    stream = written(
        [
            chunk({"content": "let me"}),
            chunk(call(0, call_id="c1", name="look", arguments='{"a":')),
            chunk(call(0, arguments="1}")),
            chunk(call(1, call_id="c2", name="wait", arguments="")),
            chunk({}, "tool_calls"),
            usage(),
        ]
    )
    message = gathered(stream)
    assert message["content"] == [
        {"type": "text", "text": "let me"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "wait", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("opens", ["", '{"a"'])
def test_calls_whose_pieces_are_mixed_still_come_one_after_the_other(opens: str) -> None:
    stream = written(
        [
            chunk(call(0, call_id="c1", name="look", arguments=opens)),
            chunk(call(1, call_id="c2", name="wait", arguments=opens)),
            chunk(call(0, arguments='{"a":1}'.removeprefix(opens))),
            chunk(call(1, arguments='{"a":2}'.removeprefix(opens))),
            chunk({}, "tool_calls"),
        ]
    )
    assert [block["input"] for block in gathered(stream)["content"]] == [{"a": 1}, {"a": 2}]


def test_a_call_begins_once_its_name_is_known() -> None:
    stream = written([chunk(call(0, call_id="c1")), chunk(call(0, name="look")), chunk({}, "tool_calls")])
    assert gathered(stream)["content"] == [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]


def test_a_call_without_an_id_is_not_lost() -> None:
    stream = written([chunk(call(0, name="look", arguments="{}")), chunk({}, "tool_calls")])
    assert gathered(stream)["content"] == [{"type": "tool_use", "id": "msg_1-0", "name": "look", "input": {}}]


@pytest.mark.parametrize(
    ("finish", "stop_reason", "tokens", "told"),
    [
        ("stop", None, 2, ("end_turn", None)),
        ("stop", "END", 2, ("stop_sequence", "END")),
        ("stop", 151643, 2, ("end_turn", None)),
        ("length", None, 9, ("max_tokens", None)),
        ("length", None, 4, ("model_context_window_exceeded", None)),
        ("content_filter", None, 2, ("refusal", None)),
    ],
)
def test_how_an_answer_ended(finish: str, stop_reason: object, tokens: int, told: tuple[str, str | None]) -> None:
    message = gathered(written([chunk({"content": "a"}, finish, stop_reason=stop_reason), usage(completion=tokens)]))
    assert (message["stop_reason"], message["stop_sequence"]) == told


def test_an_answer_without_words_is_an_empty_text() -> None:
    assert gathered(written([chunk({"content": ""}, "stop")]))["content"] == [{"type": "text", "text": ""}]


def test_without_usage_the_ids_are_counted() -> None:
    first = {**chunk({"content": ""}), "prompt_token_ids": [1, 2, 3]}
    counts = gathered(written([first, chunk({"content": "a"}, "stop", token_ids=[4, 5])]))["usage"]
    assert (counts["input_tokens"], counts["output_tokens"]) == (3, 2)


def test_what_came_from_a_cache_is_counted_apart() -> None:
    cached = usage(prompt=10, prompt_tokens_details={"cached_tokens": 8})
    counts = gathered(written([chunk({"content": "a"}, "stop"), cached]))["usage"]
    assert (counts["input_tokens"], counts["cache_read_input_tokens"]) == (2, 8)


def test_omitted_thinking_is_empty_and_comes_back_whole() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    stream = written(
        [chunk({"reasoning": "so "}), chunk({"reasoning": "be it"}), chunk({"content": "yes"}, "stop")],
        thinking=thinking,
    )
    message = gathered(stream)
    block = message["content"][0]
    assert (block["type"], block["thinking"]) == ("thinking", "")
    again = asked(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": message["content"]}])
    assert json.loads(bytes(again.fields["messages"]))[1]["reasoning"] == "so be it"


def test_arguments_that_are_no_object_are_wrapped_in_a_whole_answer() -> None:
    for arguments, expected in (('{"a":', {"INVALID_JSON": '{"a":'}), ("[1]", {"INVALID_JSON": "[1]"}), ("", {})):
        function = {"name": "look", "arguments": arguments}
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "length"}]}
        (block,) = json.loads(writer().whole(whole))["content"]
        assert block["input"] == expected


@pytest.mark.parametrize(
    "said", [{"choices": []}, {"choices": [{"index": 0}]}, {"choices": [{"delta": {"tool_calls": [5, None]}}]}]
)
def test_answers_that_make_no_sense_break_nothing(said: Json) -> None:
    assert gathered(written([said]))["role"] == "assistant"
    assert json.loads(writer().whole(said))["role"] == "assistant"


# laws


@st.composite
def streams(draw: st.DrawFn) -> list[Json]:
    """Deltas of one answer: reasoning, words and calls in any number of pieces."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    name = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    deltas += [{name: piece} for piece in draw(st.lists(PIECES, max_size=3))]
    deltas += [{"content": piece} for piece in draw(st.lists(PIECES, max_size=3))]
    for index in range(draw(st.integers(0, 3))):
        deltas.append(call(index, call_id=f"c{index}", name=f"tool{index}", arguments=""))
        arguments = json.dumps(draw(st.dictionaries(PIECES, PIECES | st.integers(), max_size=2)))
        cuts = sorted(draw(st.sets(st.integers(0, len(arguments)), max_size=4)) | {0, len(arguments)})
        deltas += [call(index, arguments=arguments[a:b]) for a, b in itertools.pairwise(cuts)]
    return deltas


@given(streams(), st.sampled_from(["stop", "tool_calls", "length"]), st.booleans())
def test_a_stream_amounts_to_the_whole_answer_that_was_recorded(deltas: list[Json], finish: str, shows: bool) -> None:
    request = asked(thinking={"type": "adaptive" if shows else "disabled"})
    capture, writes = Capture(request), Messages().writer(request, "msg_1")
    raw: list[bytes] = []
    for said in [*(chunk(delta) for delta in deltas), chunk({}, finish), usage()]:
        assert capture.feed(said)
        raw.append(writes.event(said))
    streamed = gathered(events(b"".join([*raw, writes.done(b"data: [DONE]\n\n")])))
    (recorded,) = capture.words()
    whole = {"choices": [{"index": 0, "message": recorded, "finish_reason": finish}], "usage": usage()["usage"]}
    assert streamed == json.loads(Messages().writer(request, "msg_1").whole(whole))


@given(streams(), st.data())
def test_events_split_anywhere_amount_to_the_same(deltas: list[Json], data: st.DataObject) -> None:
    finer: list[Json] = []
    for delta in deltas:
        (name, value), *_ = delta.items()
        if name in ("content", "reasoning", "reasoning_content"):
            at = data.draw(st.integers(0, len(value)))
            finer += [{name: value[:at]}, {name: value[at:]}]
        else:
            finer.append(delta)
    thinking = {"type": "adaptive"}
    ends = [chunk({}, "stop"), usage()]
    coarse = gathered(written([*map(chunk, deltas), *ends], thinking=thinking))
    assert gathered(written([*map(chunk, finer), *ends], thinking=thinking)) == coarse
