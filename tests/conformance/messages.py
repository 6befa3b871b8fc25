"""Messages: the event stream, tool use, counting and errors, as Anthropic's own client reads them."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.conformance.forms import MESSAGES, Answered, Json, user
from tests.conformance.responses import ARGUMENTS, two_tool_calls
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene, reasons, rows, turn
from tests.fakes.scripted_answers import Answer, Script

NEEDS = ("messages",)
TOOL: Json = {"name": "look_up", "description": "d", "input_schema": {"type": "object", "properties": {"item": {}}}}
INPUT = {"item": "desk", "é": 1}
COUNT = "/v1/messages/count_tokens"


def events_of(answered: Answered) -> list[Json]:
    """The events without pings, each checked against Anthropic's own types."""
    adapter = TypeAdapter(RawMessageStreamEvent)
    events = [event for event in answered.events if event["type"] != "ping"]
    for event in events:
        adapter.validate_python(event)
    return events


@rule("the events of a text come in Anthropic's order, each of its type", needs=NEEDS)
async def text_events(scene: Scene) -> None:
    await scene.answers(Script(prompt_ids=(1, 2, 3), choices=(Answer(ids=(5, 6, 99), texts=("a", "bé", "")),)))
    answered = await scene.ask(await scene.open(), MESSAGES, stream=True)
    events = events_of(answered)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    names = [line for line in answered.raw.split(b"\n") if line.startswith(b"event: ")]
    assert names == [f"event: {event['type']}".encode() for event in answered.events]
    start, delta = events[0]["message"], events[-2]
    assert (start["role"], start["content"], start["stop_reason"]) == ("assistant", [], None)
    assert (delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]) == ("end_turn", 3)
    assert b"[DONE]" not in answered.raw


@rule("a whole message is of Anthropic's type, with its usage", needs=NEEDS)
async def whole_message(scene: Scene) -> None:
    await scene.answers(turn([1, 2, 3], [5, 99]))
    said = (await scene.ask(await scene.open(), MESSAGES)).json
    Message.model_validate(said)
    assert (said["type"], said["role"], said["stop_reason"], said["stop_sequence"]) == (
        "message",
        "assistant",
        "end_turn",
        None,
    )
    assert (said["usage"]["input_tokens"], said["usage"]["output_tokens"]) == (3, 2)


ENDS: dict[str, tuple[Script, str]] = {
    "stop": (Script(choices=(Answer(ids=(5, 99)),)), "end_turn"),
    "length": (Script(choices=(Answer(ids=(5, 6), finish_reason="length"),)), "max_tokens"),
    "tool_calls": (two_tool_calls(), "tool_use"),
}


@rule("finish reason {0} has its name in the dialect, whole and streamed", needs=NEEDS, each=ENDS)
async def stop_reasons(scene: Scene, end: tuple[Script, str]) -> None:
    script, wanted = end
    await scene.answers(script)
    episode = await scene.open()
    limit = len(script.choices[0].ids or ())
    whole = (await scene.ask(episode, MESSAGES, tools=[TOOL], max_tokens=limit)).json
    assert whole["stop_reason"] == wanted, whole
    events = events_of(await scene.ask(episode, MESSAGES, tools=[TOOL], max_tokens=limit, stream=True))
    assert events[-2]["delta"]["stop_reason"] == wanted


@rule("parallel tool uses keep ids, order and input, whole", needs=NEEDS)
async def tool_use_whole(scene: Scene) -> None:
    await scene.answers(two_tool_calls())
    said = (await scene.ask(await scene.open(), MESSAGES, tools=[TOOL])).json
    Message.model_validate(said)
    assert [block["type"] for block in said["content"]] == ["text", "tool_use", "tool_use"]
    assert [(b["id"], b["name"], b["input"]) for b in said["content"][1:]] == [
        ("call_a", "look_up", INPUT),
        ("call_b", "look_up", {}),
    ]


@rule("parallel tool uses keep ids, order and input, streamed block by block", needs=NEEDS)
async def tool_use_streamed(scene: Scene) -> None:
    await scene.answers(two_tool_calls())
    events = events_of(await scene.ask(await scene.open(), MESSAGES, tools=[TOOL], stream=True))
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [start["index"] for start in starts] == [0, 1, 2]
    blocks = [start["content_block"] for start in starts]
    assert [(b["type"], b.get("id")) for b in blocks] == [
        ("text", None),
        ("tool_use", "call_a"),
        ("tool_use", "call_b"),
    ]
    pieces = {1: "", 2: ""}
    for event in events:
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            pieces[event["index"]] += event["delta"]["partial_json"]
    assert pieces == {1: ARGUMENTS, 2: "{}"}
    order = [(e["type"], e["index"]) for e in events if e["type"] in ("content_block_start", "content_block_stop")]
    assert order == [(f"content_block_{what}", k) for k in range(3) for what in ("start", "stop")]


@rule("tools of Messages reach the engine in chat form", needs=NEEDS)
async def tools_in_chat_form(scene: Scene) -> None:
    await scene.ask(await scene.open(), MESSAGES, tools=[TOOL], tool_choice={"type": "auto"})
    (tool,) = (await scene.sent())["tools"]
    function = tool["function"]
    assert (tool["type"], function["name"], function["parameters"]) == ("function", "look_up", TOOL["input_schema"])


RESULTS: dict[str, Any] = {
    "text": "42",
    "blocks": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
}


@rule("tool uses and results go back as an assistant turn and tool messages: {0}", needs=NEEDS, each=RESULTS)
async def tool_results(scene: Scene, result: Any) -> None:
    uses = [{"type": "tool_use", "id": f"call_{k}", "name": "look_up", "input": INPUT} for k in "ab"]
    results = [{"type": "tool_result", "tool_use_id": f"call_{k}", "content": result} for k in "ab"]
    messages = [
        user(f"{scene.tag} hi"),
        {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, *uses]},
        {"role": "user", "content": [*results, {"type": "text", "text": "and now?"}]},
    ]
    answered = await scene.ask(await scene.open(), MESSAGES, messages=messages, tools=[TOOL])
    assert answered.status == 200, answered.raw
    sent = (await scene.sent())["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool", "user"], sent
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["call_a", "call_b"]
    assert [(m["tool_call_id"], _text(m["content"])) for m in sent[2:4]] == [("call_a", "42"), ("call_b", "42")]
    assert _text(sent[4]["content"]) == "and now?"


@rule("a tool use that comes back unchanged goes to the engine with the same arguments", needs=NEEDS)
async def arguments_come_back(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(two_tool_calls(), Script())
    first = (await scene.ask(episode, MESSAGES, tools=[TOOL])).json
    results = [{"type": "tool_result", "tool_use_id": f"call_{k}", "content": scene.tag} for k in "ab"]
    again = [user(f"{scene.tag} hi"), {"role": "assistant", "content": first["content"]}, user(results)]
    assert (await scene.ask(episode, MESSAGES, messages=again, tools=[TOOL])).status == 200
    sent = (await scene.received())[-1].body["messages"]
    told = [call["function"]["arguments"] for call in sent[1]["tool_calls"]]
    assert [json.loads(one) for one in told] == [INPUT, {}]


@rule("tool uses are captured: every token once", needs=[*NEEDS, "samples"])
async def tool_use_is_captured(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(two_tool_calls())
    await scene.ask(episode, MESSAGES, tools=[TOOL], stream=True)
    samples = await scene.samples(episode)
    assert (rows(samples), reasons(samples)) == ([([1, 2, 5, 6, 7, 8, 99], [0, 0, 1, 1, 1, 1, 1])], [])


@rule("count_tokens tells a number and records nothing", needs=[*NEEDS, "count_tokens", "samples"])
async def count_tokens(scene: Scene) -> None:
    episode = await scene.open()
    body = {"model": scene.gateway.model, "messages": [user(f"{scene.tag} one two three")], "tools": [TOOL]}
    answered = await scene.gateway.send("POST", COUNT, body, key=episode.api_key)
    assert answered.status == 200, answered.raw
    assert set(answered.json) == {"input_tokens"}
    assert answered.json["input_tokens"] > 0
    assert (await scene.told(episode))["num_calls"] == 0


@rule("more words count more tokens", needs=[*NEEDS, "count_tokens"])
async def count_grows(scene: Scene) -> None:
    episode = await scene.open()

    async def count(text: str) -> int:
        body = {"model": scene.gateway.model, "messages": [user(text)]}
        return (await scene.gateway.send("POST", COUNT, body, key=episode.api_key)).json["input_tokens"]

    assert await count("one") < await count("one two three four five six")


@rule("query parameters and Anthropic's headers are no error", case="C04", needs=NEEDS)
async def clients_headers(scene: Scene) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "tools-2024-04-04", "x-app": "cli"}
    answered = await scene.ask(await scene.open(), MESSAGES, path="/v1/messages?beta=true", headers=headers)
    assert answered.status == 200, answered.raw


ERRORS = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


@rule("an engine's {0} has Anthropic's type", needs=NEEDS, each={str(k): k for k in ERRORS})
async def error_types(scene: Scene, status: int) -> None:
    await scene.answers(Script(status=status, error={"message": "no", "type": "x", "code": status}))
    answered = await scene.ask(await scene.open(), MESSAGES)
    assert (answered.status, MESSAGES.error_of(answered)["type"]) == (status, ERRORS[status])


@rule("a key that is not valid and an episode that is unknown have Anthropic's types", needs=[*NEEDS, "episodes"])
async def refusal_types(scene: Scene) -> None:
    wrong = await scene.ask(Episode("no-such-key"), MESSAGES)
    assert (wrong.status, MESSAGES.error_of(wrong)["type"]) == (401, "authentication_error")
    unknown = await scene.ask(Episode(scene.gateway.keys.agent), MESSAGES, headers={"X-Hone-Episode": "ep-x"})
    assert (unknown.status, MESSAGES.error_of(unknown)["type"]) == (404, "not_found_error")


@rule("a conversation with a system prompt in blocks extends its row", needs=[*NEEDS, "samples"])
async def extends(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(turn([1, 2], [5, 99]), turn([1, 2, 5, 99, 3], [6, 99]))
    system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    first = await scene.ask(episode, MESSAGES, system=system)
    more = [user(f"{scene.tag} hi"), {"role": "assistant", "content": first.json["content"]}, user("more")]
    await scene.ask(episode, MESSAGES, system=system, messages=more)
    assert rows(await scene.samples(episode)) == [([1, 2, 5, 99, 3, 6, 99], [0, 0, 1, 1, 0, 1, 1])]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
