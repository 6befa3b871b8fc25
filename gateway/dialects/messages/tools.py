"""Tools in Anthropic's Messages, in the form of chat completions. Pure.

Tools of the agent's own are passed on, with their input examples in the schema, where JSON Schema has a place for them.
Tools that Anthropic runs, or has trained its models on, mean nothing to the model here and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.dialects.base import Json, decode_as
from tracker.errors import BadRequest


class _Tool(msgspec.Struct, kw_only=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Json | None = None
    input_examples: list[Json] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class ToolChoice(msgspec.Struct):
    """The field `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def is_forced(self) -> bool:
        """Whether the answer must call a tool."""
        return self.type in ("any", "tool")


class _Kind(msgspec.Struct):
    type: str | None = None


def read_tools(raws: Sequence[msgspec.Raw]) -> list[Json]:
    """The tools in chat form; raises on one that the agent does not run itself."""
    return [_in_chat(raw, f"tools[{number}]") for number, raw in enumerate(raws)]


def _in_chat(raw: msgspec.Raw, where: str) -> Json:
    kind = decode_as(raw, _Kind, where).type
    if kind not in (None, "custom"):
        told = (
            f"{where}: {kind} is a tool that Anthropic defines; "
            "give the model a custom tool instead (name, description, input_schema) and run it yourself."
        )
        raise BadRequest(told, param=where, code="unsupported_tool")
    tool = decode_as(raw, _Tool, where)
    if tool.input_schema is None:
        raise BadRequest(f"{where}.input_schema: write one.", param=f"{where}.input_schema")
    if tool.defer_loading or (tool.allowed_callers is not None and "direct" not in tool.allowed_callers):
        told = f"{where}: every tool is shown to the model from the start: leave out defer_loading and allowed_callers."
        raise BadRequest(told, param=where, code="unsupported_field")
    parameters = {**tool.input_schema, "examples": tool.input_examples} if tool.input_examples else tool.input_schema
    function: Json = {"name": tool.name, "parameters": parameters}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def read_choice(choice: ToolChoice, has_tools: bool) -> Json:
    """The fields of chat completions that say the same."""
    if choice.is_forced and not has_tools:
        raise BadRequest("tool_choice: there are no tools to choose from.", param="tool_choice")
    if not has_tools:
        return {}
    fields: Json = {"tool_choice": _in_words(choice)}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _in_words(choice: ToolChoice) -> str | Json:
    match choice.type:
        case "tool":
            if not choice.name:
                raise BadRequest("tool_choice.name: name the tool.", param="tool_choice.name")
            return {"type": "function", "function": {"name": choice.name}}
        case "any":
            return "required"
        case "auto" | "none":
            return choice.type
