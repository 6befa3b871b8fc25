"""What a recorded call said, in the form of chat completions whatever the agent spoke, as TRL's trainers read it. Pure.

The request is put together again and read by its own dialect, so the conversation is the one that the engine was
asked with. Messages are reduced to what chat templates know: role, text, tool calls, the id of what a tool answers.
Arguments of tool calls are objects, as templates expect them; those that are no JSON object stay the text they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from gateway.conversation import text_of
from gateway.dialects.base import Dialect, Json, Limits, object_of
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.messages.dialect import Messages
from gateway.dialects.responses.dialect import Responses
from gateway.message_fold import REASONING, decode_json_value
from tracker.errors import BadRequest
from tracker.types import Call, Record

DIALECTS: Final[Mapping[str, tuple[Dialect, str]]] = {
    "chat": (Chat(), "messages"),
    "completions": (Completions(), "prompt"),
    "messages": (Messages(), "messages"),
    "responses": (Responses(), "input"),
}
"""name -> the dialect, and the field that holds its conversation."""
NO_LIMITS: Final = Limits(max_choices=2**31)
PREVIOUS: Final = "previous_response_id"
"""What it stands for is in the recorded conversation."""


class Talk(Record, frozen=True):
    """What a call was asked: a conversation with its tools, or the text of a completion."""

    messages: tuple[Json, ...] = ()
    tools: tuple[Json, ...] = ()
    text: str | None = None


def talk_of(call: Call) -> Talk:
    """Raises `BadRequest` for a call whose words are not there: removed, or only token ids."""
    if not call.messages:
        raise BadRequest("Nothing is recorded of what was said.")
    if call.dialect == "completions":
        return Talk(text=_prompt(call.messages[0]))
    asked = DIALECTS[call.dialect][0].parse(body_of(call), NO_LIMITS)
    messages = cast("list[object]", decode_json_value(bytes(asked.fields.get("messages", b"[]"))))
    tools = cast("list[object]", decode_json_value(bytes(asked.fields.get("tools", b"[]"))))
    return Talk(
        messages=tuple(plain_message(object_of(message)) for message in messages),
        tools=tuple(object_of(tool) for tool in tools),
    )


def body_of(call: Call) -> bytes:
    """The request as the agent sent it, but for what it continued by name, which is in it."""
    if call.dialect not in DIALECTS:
        raise BadRequest(f"Nobody speaks {call.dialect!r} here.")
    fields = msgspec.json.decode(call.request, type=dict[str, msgspec.Raw])
    fields.pop(PREVIOUS, None)
    field = DIALECTS[call.dialect][1]
    conversation = call.messages[0] if field == "prompt" else b"[" + b",".join(call.messages) + b"]"
    return msgspec.json.encode({"model": call.model, **fields, field: msgspec.Raw(conversation)})


def answer_of(message: bytes) -> Json | str:
    """A recorded answer: a message of the assistant, or the text of a completion."""
    value = decode_json_value(message)
    return value if isinstance(value, str) else plain_message({"role": "assistant", **object_of(value)})


def plain_message(said: Json) -> Json:
    """A message as templates know it.

    >>> plain_message({"role": "assistant", "content": [{"type": "text", "text": "a"}], "refusal": None})
    {'role': 'assistant', 'content': 'a'}
    """
    plain: Json = {"role": str(said.get("role", "user")), "content": text_of(said.get("content"))}
    if reasoning := next((said[name] for name in REASONING if isinstance(said.get(name), str) and said[name]), ""):
        plain["reasoning_content"] = reasoning
    calls = said.get("tool_calls")
    if isinstance(calls, list) and calls:
        plain["tool_calls"] = [_tool_call(object_of(call)) for call in cast("list[object]", calls)]
    for name in ("tool_call_id", "name"):
        if isinstance(said.get(name), str):
            plain[name] = said[name]
    return plain


def _tool_call(call: Json) -> Json:
    function = object_of(call.get("function"))
    told: Json = {"name": str(function.get("name", "")), "arguments": _arguments(function.get("arguments"))}
    return {"id": str(call.get("id") or ""), "type": "function", "function": told}


def _arguments(written: Any) -> object:
    if not isinstance(written, str):
        return written
    try:
        value = decode_json_value(written.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return written
    return cast("object", value) if isinstance(value, dict) else written


def _prompt(recorded: bytes) -> str:
    value: object = decode_json_value(recorded)
    if isinstance(value, list) and len(cast("list[object]", value)) == 1:
        value = cast("list[object]", value)[0]
    if not isinstance(value, str):
        raise BadRequest("The prompt was given as token ids.")
    return value
