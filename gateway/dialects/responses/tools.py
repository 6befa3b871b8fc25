"""Tools, the choice among them and the form of the answer: from the Responses API to chat completions.

Functions are honoured, in namespaces too: engines know none, so there a function is called NAMESPACE__NAME. Tools that
run at OpenAI, and those without a schema, are refused with what to write instead: a model that calls one would wait for
somebody who is not here. A choice of `allowed_tools` is honoured by telling the engine of those alone. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from gateway.dialects.base import Json, object_of
from gateway.dialects.responses.items_in import engine_name, text_field
from tracker.errors import BadRequest
from tracker.types import Record

CHOICES: Final = ("auto", "none", "required")
FORMATS: Final = ("json_object", "json_schema", "text")
FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")
SCHEMA_FIELDS: Final = ("name", "description", "schema", "strict")


class Tooling(Record, frozen=True):
    """What the engine is told of tools."""

    tools: tuple[Json, ...] = ()
    choice: str | Json | None = None
    is_forced: bool = False
    """Whether the model must call one: a grammar then shapes its answer."""


def read_tooling(tools: Sequence[Json], choice: str | Json | None) -> Tooling:
    """Tools and their choice; raises `BadRequest` on what cannot be honoured."""
    functions = tuple(
        function for number, tool in enumerate(tools) for function in _functions(tool, f"tools[{number}]")
    )
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions, choice = _allowed(functions, choice)
    elif isinstance(choice, dict):
        choice = _named(choice, functions)
    elif choice is not None and choice not in CHOICES:
        raise BadRequest(f"tool_choice: write one of {', '.join(CHOICES)}, or a function.", param="tool_choice")
    is_forced = choice not in (None, "auto", "none")
    if functions:
        return Tooling(tools=functions, choice=choice, is_forced=is_forced)
    if is_forced:
        raise BadRequest("tool_choice: there are no tools to choose from; send tools.", param="tool_choice")
    return Tooling()


def response_format(text: Json | None) -> Json | None:
    """`text.format` as chat completions know it; `None` for plain words."""
    given: object = None if text is None else text.get("format")
    if given is None:
        return None
    fields = object_of(given)
    kind = fields.get("type")
    if kind not in FORMATS:
        raise BadRequest(f"text.format.type: write one of {', '.join(FORMATS)}.", param="text.format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if not isinstance(fields.get("schema"), dict):
        raise BadRequest("text.format.schema: write a JSON schema.", param="text.format.schema")
    return {"type": kind, "json_schema": {"name": "answer", **_given(fields, SCHEMA_FIELDS)}}


def namespaces(tools: Sequence[Json]) -> dict[str, tuple[str, str]]:
    """The functions in namespaces: their name at the engine, and namespace and name as the agent has them."""
    return {
        engine_name(each["name"], tool["name"]): (tool["name"], each["name"])
        for tool in tools
        if tool.get("type") == "namespace"
        for each in cast("list[Json]", tool["tools"])
    }


def _functions(tool: Json, where: str) -> list[Json]:
    """The functions that one entry of `tools` offers."""
    if tool.get("type") != "namespace":
        return [_function(tool, where)]
    name, inside = text_field(tool, "name", where), tool.get("tools")
    if not isinstance(inside, list):
        raise BadRequest(f"{where}.tools: write a list of functions.", param=f"{where}.tools")
    functions = [
        _function(object_of(each), f"{where}.tools[{number}]")
        for number, each in enumerate(cast("list[object]", inside))
    ]
    for function in functions:
        said = function["function"]
        said["name"] = engine_name(said["name"], name)
        said["description"] = "\n\n".join(filter(None, (_description(tool, where), said.get("description"))))
    return functions


def _function(tool: Json, where: str) -> Json:
    kind = tool.get("type")
    if kind == "function":
        if isinstance(tool.get("function"), dict):
            raise BadRequest(f"{where}: here name and parameters stand beside type, not in function.", param=where)
        text_field(tool, "name", where)
        _description(tool, where)
        return {"type": "function", "function": _given(tool, FUNCTION_FIELDS)}
    if not isinstance(kind, str):
        raise BadRequest(f'{where}.type: write "function".', param=f"{where}.type")
    raise BadRequest(_instead(kind, where), param=where, code="unsupported_tool")


def _description(tool: Json, where: str) -> str | None:
    return None if tool.get("description") is None else text_field(tool, "description", where)


def _instead(kind: str, where: str) -> str:
    if kind == "custom":
        return f"{where}: custom tools are not supported; write a function with one text parameter instead."
    if kind == "mcp":
        return (
            f"{where}: no MCP server is called from here; connect to it in the agent and offer its tools as functions."
        )
    codex = ' (in Codex: web_search = "disabled")' if kind.startswith("web_search") else ""
    return f"{where}: {kind} runs at OpenAI, not here; leave it out{codex}, or offer a function that your agent runs."


def _named(choice: Json, functions: Sequence[Json]) -> Json:
    """The choice of one function."""
    if choice.get("type") != "function":
        told = 'tool_choice: write {"type": "function", "name": NAME}; only functions can be chosen.'
        raise BadRequest(told, param="tool_choice", code="unsupported_tool")
    name = _engine_name_in(choice, "tool_choice")
    _find(name, functions)
    return {"type": "function", "function": {"name": name}}


def _allowed(functions: Sequence[Json], choice: Json) -> tuple[tuple[Json, ...], str]:
    """The functions that are allowed, and how they are to be used."""
    mode, given = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest("tool_choice.mode: write auto or required.", param="tool_choice.mode")
    if not isinstance(given, list) or not given:
        raise BadRequest("tool_choice.tools: name the tools that are allowed.", param="tool_choice.tools")
    names = [_engine_name_in(object_of(tool), "tool_choice.tools") for tool in cast("list[object]", given)]
    for name in names:
        _find(name, functions)
    return tuple(each for each in functions if each["function"]["name"] in names), mode


def _engine_name_in(fields: Json, where: str) -> str:
    return engine_name(text_field(fields, "name", where), fields.get("namespace"))


def _find(name: str, functions: Sequence[Json]) -> None:
    if all(each["function"]["name"] != name for each in functions):
        raise BadRequest(f"tool_choice: there is no function {name} among the tools.", param="tool_choice")


def _given(fields: Json, names: Sequence[str]) -> Json:
    return {name: fields[name] for name in names if fields.get(name) is not None}
