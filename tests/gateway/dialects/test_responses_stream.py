"""Laws of the typed event stream: numbers, places, words that join to the record, and the way back to the engine."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.dialects.base import Limits
from gateway.dialects.responses.dialect import Responses, answer_items
from gateway.dialects.responses.items_in import Conversation
from gateway.dialects.responses.stream import ResponsesWriter
from gateway.message_fold import MessageFold
from tracker.errors import UpstreamFailed

Json = dict[str, Any]
CALL_ID = f"resp_{'0' * 32}-{'f' * 32}"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT = st.text(min_size=1, max_size=4)
NAMES = st.sampled_from(["look", "go"])


def writer(**fields: Any) -> ResponsesWriter:
    body = {"model": "m", "input": "hi", "stream": True, **fields}
    return ResponsesWriter(Responses().parse(json.dumps(body).encode(), Limits()), CALL_ID)


def chunk(delta: Json, reason: str | None = None) -> Json:
    return {"created": 7, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


USAGE: Json = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}}
ROLE: Json = {"role": "assistant", "content": ""}


def read(data: bytes) -> list[Json]:
    """Events as they are on the wire; each names its type twice."""
    events: list[Json] = []
    for block in data.split(b"\n\n")[:-1]:
        name, line = block.split(b"\n")
        event = json.loads(line.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events


def written(deltas: list[Json], reason: str = "stop", **fields: Any) -> list[Json]:
    """The whole stream of an answer."""
    writes = writer(**fields)
    data = [writes.event(chunk(dict(delta))) for delta in (ROLE, *deltas)]
    data += [writes.event(chunk({}, reason)), writes.event(dict(USAGE)), writes.done(b"data: [DONE]\n\n")]
    return read(b"".join(data))


def folded(deltas: list[Json]) -> Json:
    """The message that is recorded."""
    fold = MessageFold()
    for delta in (ROLE, *deltas):
        fold.add_delta(delta)
    message: Any = fold.value()
    return message


def told(message: Json) -> Json:
    """What of a message means something."""
    return {name: value for name, value in message.items() if value not in (None, "", [])}


def back(items: list[Json], *, strips_ids: bool = False) -> list[Json]:
    """What the engine is told when the agent sends these items back."""
    conversation = Conversation()
    kept = [{name: value for name, value in item.items() if not (strips_ids and name == "id")} for item in items]
    conversation.add_all(json.dumps(item).encode() for item in kept)
    return conversation.messages


@st.composite
def tool_deltas(draw: st.DrawFn) -> list[Json]:
    """Some tool calls, each in pieces."""
    deltas: list[Json] = []
    for index in range(draw(st.integers(0, 3))):
        function = {"name": draw(NAMES), "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]})
        for piece in draw(st.lists(TEXT, max_size=3)):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def pieces(name: str) -> st.SearchStrategy[list[Json]]:
    return st.lists(TEXT.map(lambda text: {name: text}), max_size=3)


def joined(lists: Any) -> list[Json]:
    return list(chain.from_iterable(lists))


@st.composite
def mixed(draw: st.DrawFn) -> list[Json]:
    """Anything after anything, also tool calls whose pieces come mixed; each begins with its name, in their order."""
    words = joined(draw(st.lists(st.one_of(pieces("reasoning"), pieces("content"), pieces("refusal")), max_size=5)))
    lanes = [[delta] for delta in words]
    for delta in draw(tool_deltas()):
        lanes = [*lanes, [delta]] if "id" in delta["tool_calls"][0] else [*lanes[:-1], [*lanes[-1], delta]]
    order = draw(st.permutations([number for number, lane in enumerate(lanes) for _ in lane]))
    deltas = [lanes[number].pop(0) for number in order]
    places: dict[int, int] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            call["index"] = places.setdefault(call["index"], len(places))
    return deltas


IN_ORDER = st.tuples(pieces("reasoning"), pieces("content"), tool_deltas()).map(joined)
"""As models speak: reasoning, words, tool calls."""
WITH_A_TAIL = st.tuples(IN_ORDER, pieces("content")).map(joined)
MIXED = mixed()


def test_one_event_of_the_engines_is_one_delta_at_once() -> None:
    writes = writer()
    begin = read(writes.event(chunk(ROLE)))
    assert [event["type"] for event in begin] == ["response.created", "response.in_progress"]
    assert begin[0]["response"]["created_at"] == 7
    first, second = read(writes.event(chunk({"content": "a"}))), read(writes.event(chunk({"content": "b"})))
    assert [event["type"] for event in first] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ]
    assert [event["type"] for event in second] == ["response.output_text.delta"]


@given(MIXED, st.sampled_from(["stop", "length", "tool_calls"]))
def test_numbers_rise_by_one_and_every_event_is_one_that_clients_know(deltas: list[Json], reason: str) -> None:
    events = written(deltas, reason)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENTS.validate_python(event)
    assert events[-1]["type"] == ("response.incomplete" if reason == "length" else "response.completed")
    Response.model_validate(events[-1]["response"])
    assert events[-1]["response"]["usage"]["total_tokens"] == 5


@given(MIXED)
def test_what_comes_in_pieces_joins_to_what_was_recorded(deltas: list[Json]) -> None:
    events, message = written(deltas), folded(deltas)
    for kind, name in (("output_text", "content"), ("refusal", "refusal"), ("reasoning_text", "reasoning")):
        joined = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
        assert joined == (message.get(name) or "")
    arguments: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            arguments[event["item_id"]] = arguments.get(event["item_id"], "") + event["delta"]
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    recorded = {call["id"]: call["function"] for call in message.get("tool_calls", [])}
    assert {call["call_id"]: {"name": call["name"], "arguments": call["arguments"]} for call in calls} == recorded
    assert {call["id"]: call["arguments"] for call in calls if call["arguments"]} == arguments


@given(MIXED)
def test_every_event_stands_where_its_item_and_part_are(deltas: list[Json]) -> None:
    events = written(deltas)
    items: dict[int, Json] = {}
    parts: dict[tuple[int, int], Json] = {}
    done: dict[int, Json] = {}
    for event in events:
        place, kind = event.get("output_index"), event["type"]
        if kind == "response.output_item.added":
            assert place == len(items)
            items[place] = event["item"]
        elif kind == "response.output_item.done":
            assert place not in done
            done[place] = event["item"]
        elif place is not None:
            assert place not in done
            assert event["item_id"] == items[place]["id"]
        if kind == "response.content_part.added":
            assert event["content_index"] == len([key for key in parts if key[0] == place])
            parts[place, event["content_index"]] = event["part"]
        elif "content_index" in event:
            assert (place, event["content_index"]) in parts
    assert events[-1]["response"]["output"] == [done[place] for place in sorted(items)]


@given(IN_ORDER)
def test_a_whole_answer_is_what_the_stream_comes_to(deltas: list[Json]) -> None:
    streamed = written(deltas)[-1]["response"]
    whole = json.loads(
        writer().whole(
            {
                "created": 7,
                "choices": [{"index": 0, "message": folded(deltas), "finish_reason": "stop"}],
                "usage": USAGE["usage"],
            }
        )
    )
    assert whole == streamed
    assert streamed["output"] == [json.loads(item) for item in answer_items(folded(deltas), CALL_ID)]


@given(IN_ORDER, st.data())
def test_pieces_cut_anywhere_give_the_same_answer(deltas: list[Json], data: st.DataObject) -> None:
    cut: list[Json] = []
    for delta in deltas:
        (name, value), *_ = delta.items()
        at = data.draw(st.integers(0, len(value))) if isinstance(value, str) else 0
        cut += [{name: value[:at]}, {name: value[at:]}] if at else [delta]
    assert written(cut)[-1]["response"] == written(deltas)[-1]["response"]


@given(MIXED)
def test_what_comes_back_is_what_the_engine_said(deltas: list[Json]) -> None:
    items = written(deltas)[-1]["response"]["output"]
    assert [told(message) for message in back(items)] == [told(folded(deltas))]


@given(WITH_A_TAIL)
def test_what_comes_back_without_its_ids_does_too(deltas: list[Json]) -> None:
    items = written(deltas)[-1]["response"]["output"]
    assert [told(message) for message in back(items, strips_ids=True)] == [told(folded(deltas))]


def test_two_answers_in_a_row_stay_two() -> None:
    other = CALL_ID.replace("f", "e")
    items = [*answer_items({"content": "a"}, CALL_ID), *answer_items({"content": "b"}, other)]
    assert back([json.loads(item) for item in items]) == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


def test_an_answer_that_says_nothing_is_one_empty_text() -> None:
    (item,) = written([])[-1]["response"]["output"]
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert back([item]) == [{"role": "assistant", "content": ""}]


def test_a_call_whose_name_comes_late_opens_when_it_is_known() -> None:
    deltas: list[Json] = [
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "}"}}]},
    ]
    (item,) = written(deltas)[-1]["response"]["output"]
    assert (item["call_id"], item["name"], item["arguments"]) == ("c1", "look", "{}")


def test_a_function_in_a_namespace_is_called_as_the_agent_knows_it() -> None:
    tools = [{"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}]
    call = {"index": 0, "id": "c1", "function": {"name": "agents__spawn", "arguments": "{}"}}
    events = written([{"tool_calls": [call]}], "tool_calls", tools=tools)
    (added,) = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    (item,) = events[-1]["response"]["output"]
    assert [(each["namespace"], each["name"]) for each in (added, item)] == [("agents", "spawn")] * 2
    assert back([item])[0]["tool_calls"][0]["function"]["name"] == "agents__spawn"


def test_a_call_without_an_id_gets_one() -> None:
    deltas: list[Json] = [{"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "{}"}}]}]
    (item,) = written(deltas)[-1]["response"]["output"]
    assert item["call_id"].startswith("call_")


@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_what_cut_an_answer_is_told(reason: str, why: str) -> None:
    events = written([{"content": "a"}], reason)
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": why})
    assert response["output"][-1]["status"] == "incomplete"


def test_only_the_call_that_was_cut_is_incomplete() -> None:
    calls = [{"index": k, "id": f"c{k}", "function": {"name": "look", "arguments": "{"}} for k in range(2)]
    response = written([{"tool_calls": [call]} for call in calls], "length")[-1]["response"]
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_a_failure_is_an_error_that_clients_raise_and_a_failed_response() -> None:
    writes = writer()
    assert writes.error_form is writes
    sent = read(writes.event(chunk({"content": "a"})))
    error, failed = read(writes.error_event(UpstreamFailed("The engine broke off its answer.")))
    assert [error["sequence_number"], failed["sequence_number"]] == [len(sent), len(sent) + 1]
    assert error["message"] == error["error"]["message"] == "The engine broke off its answer."
    assert (error["type"], error["code"], error["error"]["type"]) == ("error", "upstream_failed", "upstream_error")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    for event in (error, failed):
        EVENTS.validate_python(event)


def test_a_failure_takes_the_place_of_the_events_that_were_held() -> None:
    writes = writer()
    sent = read(writes.event(chunk({"content": "a"})))
    held = read(writes.event(chunk({"content": "b"}, "stop"))) + read(writes.done(b""))
    error, failed = read(writes.error_event(UpstreamFailed("no")))
    assert held[0]["sequence_number"] == error["sequence_number"] == len(sent)
    assert failed["response"]["output"] == []


def test_a_pad_makes_deltas_equally_long() -> None:
    events = written([{"content": "abc"}], stream_options={"include_obfuscation": True})
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert len(delta["delta"] + delta["obfuscation"]) == 16
    assert all("obfuscation" not in event for event in written([{"content": "abc"}]))


def test_log_probabilities_go_with_their_text() -> None:
    score = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    writes = writer(include=["message.output_text.logprobs"])
    said = chunk({"content": "a"})
    said["choices"][0]["logprobs"] = {"content": [score]}
    events = read(writes.event(said)) + read(writes.event(chunk({}, "stop"))) + read(writes.done(b""))
    by_kind = {event["type"]: event for event in events}
    assert by_kind["response.output_text.delta"]["logprobs"] == [score]
    assert by_kind["response.output_text.done"]["logprobs"] == [score]
    assert by_kind["response.completed"]["response"]["output"][0]["content"][0]["logprobs"] == [score]


def test_sealed_reasoning_comes_back_where_a_client_drops_the_rest() -> None:
    deltas: list[Json] = [{"reasoning": "hm"}, {"content": "yes"}]
    items = written(deltas, include=["reasoning.encrypted_content"])[-1]["response"]["output"]
    del items[0]["content"]
    assert back(items, strips_ids=True) == [{"role": "assistant", "content": "yes", "reasoning": "hm"}]
    assert "encrypted_content" not in written(deltas)[-1]["response"]["output"][0]


def test_a_cut_emoji_is_written_all_the_same() -> None:
    writes = writer()
    (_, _, _, _, delta) = read(writes.event(chunk({"content": "\ud83d"})))
    assert delta["delta"] == "\ud83d"
    assert read(writes.done(b""))[-1]["response"]["output"][0]["content"][0]["text"] == "\ud83d"


def test_what_the_agent_sent_is_repeated_as_it_was_written() -> None:
    body = b'{"model":"m","input":"x","metadata":{"big":123456789012345678901234567890,"f":1.10},"error":5}'
    whole = ResponsesWriter(Responses().parse(body, Limits()), CALL_ID).whole({"choices": [{"message": {}}]})
    assert b'{"big":123456789012345678901234567890,"f":1.10}' in whole
    assert json.loads(whole)["error"] is None
    assert json.loads(whole)["status"] == "completed"


ODD = st.sampled_from([None, True, 5, -1.5, "", "x", [], ["x"], [[]], {}, {"x": [None]}])
PATHS = (
    *((name,) for name in ("created", "usage", "choices")),
    *(("usage", name) for name in ("prompt_tokens", "completion_tokens", "prompt_tokens_details")),
    *(("choices", 0, name) for name in ("delta", "message", "logprobs", "finish_reason")),
    *(("choices", 0, "delta", name) for name in ("content", "reasoning", "refusal", "tool_calls")),
    *(("choices", 0, "message", name) for name in ("content", "reasoning", "refusal", "tool_calls")),
    *(("choices", 0, where, "tool_calls", 0, name) for where in ("delta", "message") for name in ("id", "function")),
    *(("choices", 0, where, "tool_calls", 0, "function", "name") for where in ("delta", "message")),
    *(("choices", 0, where, "tool_calls", 0, "function", "arguments") for where in ("delta", "message")),
)


@given(st.sampled_from(PATHS), ODD)
def test_an_odd_word_of_the_engine_breaks_nothing(path: tuple[Any, ...], odd: Any) -> None:
    words: Json = {"content": "a", "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}
    choice = {"delta": words, "message": json.loads(json.dumps(words)), "logprobs": {"content": []}}
    said: Any = {"choices": [choice], "usage": {"prompt_tokens": 1}}
    at = said
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    if not isinstance(said["choices"], list):
        return  # `Capture` fails such an answer
    again = json.loads(json.dumps(said))
    writes = writer()
    events = read(writes.event(said) + writes.event(chunk({}, "stop")) + writes.done(b""))
    assert events[-1]["type"].startswith("response.")
    assert json.loads(writer().whole(again))["object"] == "response"
