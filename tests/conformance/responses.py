"""Responses: the typed event stream, function calls, chains of responses, as OpenAI's own client reads them."""

from __future__ import annotations

from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.conformance.forms import RESPONSES, Answered, Json, user
from tests.conformance.rules import rule
from tests.conformance.scene import Scene, reasons, rows, turn
from tests.fakes.scripted_answers import Answer, Script

NEEDS = ("responses",)
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]
TOOL: Json = {
    "type": "function",
    "name": "look_up",
    "description": "d",
    "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    "strict": False,
}
ARGUMENTS = '{"item":  "desk", "é": 1}'


def two_tool_calls() -> Script:
    """Two parallel calls, streamed in pieces, after a few words."""

    def piece(index: int, **fields: Any) -> Json:
        return {"tool_calls": [{"index": index, **fields}]}

    deltas = [
        {"content": "Looking."},
        piece(0, id="call_a", type="function", function={"name": "look_up", "arguments": ""}),
        piece(0, function={"arguments": ARGUMENTS[:9]}),
        piece(0, function={"arguments": ARGUMENTS[9:]}),
        piece(1, id="call_b", type="function", function={"name": "look_up", "arguments": "{}"}),
    ]
    calls = [
        {"id": name, "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        for name, arguments in (("call_a", ARGUMENTS), ("call_b", "{}"))
    ]
    message = {"role": "assistant", "content": "Looking.", "tool_calls": calls}
    answer = Answer(ids=(5, 6, 7, 8, 99), deltas=deltas, message=message, finish_reason="tool_calls")
    return Script(prompt_ids=(1, 2), choices=(answer,))


def final_of(answered: Answered) -> Json:
    """The response an answer ends with, checked against OpenAI's own types."""
    said = answered.json if answered.raw[:1] == b"{" else answered.events[-1]["response"]
    Response.model_validate(said)
    return said


@rule("the events of a text come in OpenAI's order, numbered, each of its type", needs=NEEDS)
async def text_events(scene: Scene) -> None:
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 99), texts=("a", "bé", "")),)))
    answered = await scene.ask(await scene.open(), RESPONSES, stream=True)
    events = answered.events
    assert [event["type"] for event in events] == TEXT_EVENTS
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    adapter = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event)
    names = [line for line in answered.raw.split(b"\n") if line.startswith(b"event: ")]
    assert names == [f"event: {event['type']}".encode() for event in events]
    assert b"[DONE]" not in answered.raw


@rule("done events and the final response hold the joined deltas", needs=NEEDS)
async def deltas_join(scene: Scene) -> None:
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 99), texts=("a", "b\u2028é", "")),)))
    answered = await scene.ask(await scene.open(), RESPONSES, stream=True)
    by_type = {event["type"]: event for event in answered.events}
    assert by_type["response.output_text.done"]["text"] == "ab\u2028é"
    assert by_type["response.content_part.done"]["part"]["text"] == "ab\u2028é"
    item = by_type["response.output_item.done"]["item"]
    final = final_of(answered)
    assert (item["content"][0]["text"], item["status"]) == ("ab\u2028é", "completed")
    assert final["output"] == [item]
    assert (final["status"], final["id"]) == ("completed", by_type["response.created"]["response"]["id"])
    assert by_type["response.created"]["response"]["status"] == "in_progress"
    ids = {event["item_id"] for event in answered.events if "item_id" in event}
    assert ids == {item["id"]}


@rule("a whole response is of OpenAI's type, with usage and what was asked", needs=NEEDS)
async def whole_response(scene: Scene) -> None:
    await scene.answers(turn([1, 2, 3], [5, 99]))
    answered = await scene.ask(
        await scene.open(), RESPONSES, metadata={"a": "b"}, instructions="be brief", max_output_tokens=9
    )
    said = final_of(answered)
    assert (said["object"], said["status"], said["error"], said["incomplete_details"]) == (
        "response",
        "completed",
        None,
        None,
    )
    usage = said["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (3, 2, 5)
    assert (said["metadata"], said["instructions"], said["max_output_tokens"]) == ({"a": "b"}, "be brief", 9)
    assert said["output"][0]["role"] == "assistant"


@rule(
    "a response cut by the limit is incomplete: {0}", case="C24", needs=NEEDS, each={"whole": False, "streamed": True}
)
async def incomplete(scene: Scene, streams: bool) -> None:
    await scene.answers(turn([1], [5, 6], "length"))
    answered = await scene.ask(await scene.open(), RESPONSES, stream=streams, max_output_tokens=2)
    said = final_of(answered)
    assert (said["status"], said["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    if streams:
        assert answered.events[-1]["type"] == "response.incomplete"


@rule(
    "parallel function calls keep ids, order and arguments: {0}", needs=NEEDS, each={"whole": False, "streamed": True}
)
async def function_calls(scene: Scene, streams: bool) -> None:
    await scene.answers(two_tool_calls())
    answered = await scene.ask(await scene.open(), RESPONSES, stream=streams, tools=[TOOL])
    said = final_of(answered)
    calls = [item for item in said["output"] if item["type"] == "function_call"]
    assert [(c["call_id"], c["name"], c["arguments"]) for c in calls] == [
        ("call_a", "look_up", ARGUMENTS),
        ("call_b", "look_up", "{}"),
    ]
    assert [item["type"] for item in said["output"]] == ["message", "function_call", "function_call"]
    assert said["status"] == "completed"
    if streams:
        adapter = TypeAdapter(ResponseStreamEvent)
        for event in answered.events:
            adapter.validate_python(event)
        deltas = [e["delta"] for e in answered.events if e["type"] == "response.function_call_arguments.delta"]
        assert "".join(deltas) == ARGUMENTS + "{}"
        done = [e["arguments"] for e in answered.events if e["type"] == "response.function_call_arguments.done"]
        assert done == [ARGUMENTS, "{}"]


@rule("tools reach the engine in chat form", needs=NEEDS)
async def tools_in_chat_form(scene: Scene) -> None:
    await scene.ask(await scene.open(), RESPONSES, tools=[TOOL], tool_choice="auto")
    (tool,) = (await scene.sent())["tools"]
    function = tool["function"]
    assert (tool["type"], function["name"], function["parameters"]) == ("function", "look_up", TOOL["parameters"])
    assert function["description"] == "d"


@rule("calls and their results go back as one assistant turn and tool messages, arguments byte for byte", needs=NEEDS)
async def tool_results(scene: Scene) -> None:
    items = [
        user(f"{scene.tag} hi"),
        {"type": "function_call", "call_id": "call_a", "name": "look_up", "arguments": ARGUMENTS},
        {"type": "function_call", "call_id": "call_b", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_a", "output": "42"},
        {"type": "function_call_output", "call_id": "call_b", "output": "43"},
    ]
    answered = await scene.ask(await scene.open(), RESPONSES, input=items, tools=[TOOL])
    assert answered.status == 200, answered.raw
    messages = (await scene.sent())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool"], messages
    told = [(c["id"], c["function"]["arguments"]) for c in messages[1]["tool_calls"]]
    assert told == [("call_a", ARGUMENTS), ("call_b", "{}")]
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == [("call_a", "42"), ("call_b", "43")]


@rule("text.format reaches the engine as response_format", needs=NEEDS)
async def text_format(scene: Scene) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    await scene.ask(await scene.open(), RESPONSES, **{"text": text})
    sent = (await scene.sent())["response_format"]
    assert (sent["type"], sent["json_schema"]["schema"], sent["json_schema"]["name"]) == ("json_schema", schema, "n")


# chains


@rule("previous_response_id brings the whole conversation back, answers included", needs=NEEDS)
async def chain(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=(Answer(texts=("first", "")),)), Script(choices=(Answer(texts=("second", "")),)))
    first = await scene.ask(episode, RESPONSES)
    second = await scene.ask(episode, RESPONSES, previous_response_id=first.json["id"], input=f"{scene.tag} two")
    assert second.json["previous_response_id"] == first.json["id"]
    third = await scene.ask(
        episode, RESPONSES, previous_response_id=second.json["id"], input=f"{scene.tag} three", stream=True
    )
    assert third.status == 200
    messages = (await scene.received())[-1].body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [_text(m["content"]) for m in messages][1::2] == ["first", "second"]


@rule("a streamed response can be gone on from", needs=NEEDS)
async def chain_from_stream(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(two_tool_calls(), Script())
    first = await scene.ask(episode, RESPONSES, stream=True, tools=[TOOL])
    result = {"type": "function_call_output", "call_id": "call_a", "output": scene.tag}
    more = [result, {**result, "call_id": "call_b"}]
    await scene.ask(episode, RESPONSES, previous_response_id=first.headers["x-hone-call"], input=more, tools=[TOOL])
    messages = (await scene.received())[-1].body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS


@rule("instructions belong to one response, not to those after it", needs=NEEDS)
async def instructions_do_not_carry(scene: Scene) -> None:
    episode = await scene.open()
    first = await scene.ask(episode, RESPONSES, instructions="be brief")
    await scene.ask(episode, RESPONSES, previous_response_id=first.json["id"], input=f"{scene.tag} two")
    messages = (await scene.received())[-1].body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]


@rule("a response of another tenant is unknown", case="C45", needs=[*NEEDS, "other", "episodes"])
async def foreign_response(scene: Scene) -> None:
    first = await scene.ask(await scene.open(), RESPONSES)
    key = scene.gateway.keys.other
    opened = await scene.gateway.send("POST", "/v1/episodes", {"task": "t"}, key=key)
    answered = await scene.ask(
        await scene.open(), RESPONSES, key=opened.json["api_key"], previous_response_id=first.json["id"], input="two"
    )
    assert answered.status in (400, 404), answered.raw
    RESPONSES.error_of(answered)


@rule("store: false is no error, and repeated", case="C04", needs=NEEDS)
async def not_stored(scene: Scene) -> None:
    said = final_of(await scene.ask(await scene.open(), RESPONSES, store=False))
    assert (said["status"], said["store"]) == ("completed", False)


@rule("function calls are captured: every token once, chained turns in one row", needs=[*NEEDS, "samples"])
async def calls_are_captured(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(two_tool_calls(), turn([1, 2, 5, 6, 7, 8, 99, 3], [9, 99]))
    first = await scene.ask(episode, RESPONSES, tools=[TOOL], stream=True)
    result = {"type": "function_call_output", "call_id": "call_a", "output": scene.tag}
    more = [result, {**result, "call_id": "call_b"}]
    await scene.ask(episode, RESPONSES, previous_response_id=first.headers["x-hone-call"], input=more)
    samples = await scene.samples(episode)
    assert reasons(samples) == []
    assert rows(samples) == [([1, 2, 5, 6, 7, 8, 99, 3, 9, 99], [0, 0, 1, 1, 1, 1, 1, 0, 1, 1])]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
