"""What the scripted engine says: tool calls that fit the tools on offer, then a few words. Pure.

It is no model: it knows nothing and always says the same. An even number of answers in the conversation so far makes
it call a tool, an odd one end its turn, in words or with the tool that hands in a result; so agents of every kind come
to their end. Of several tools it takes one that reads rather than writes, since agents really run what is called.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, cast

from gateway.dialects.base import Json
from gateway.scripted.values import value_for

WORDS: Final = "This is a scripted answer."
_READS: Final = re.compile(r"get|read|list|search|find|look|view|fetch|query|show|glob|grep|calc|think", re.IGNORECASE)
_ENDS: Final = re.compile(r"final|finish|submit|complete|done|respond|answer|result", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """One answer."""

    text: str = ""
    tool: str | None = None
    arguments: str = ""
    """JSON, as a model writes it."""


def answer_to(body: Json, choice: int = 0) -> Said:
    """The answer to a request in the form of chat completions, or of completions."""
    tools = _functions(body.get("tools"))
    wanted: object = body.get("tool_choice")
    if isinstance(wanted, dict):
        named = _name_of(cast("Json", wanted))
        return _call(next((tool for tool in tools if tool["name"] == named), {"name": named}))
    if tools and wanted == "required":
        return _call(_chosen(tools, ends=_num_answers(body) % 2 == 1) or tools[0])
    tool = None if wanted == "none" else _chosen(tools, ends=_num_answers(body) % 2 == 1)
    if tool is not None:
        return _call(tool)
    return Said(text=_words(body, choice))


def _chosen(tools: list[Json], *, ends: bool) -> Json | None:
    """The tool for this turn, if there is one."""
    ending = [tool for tool in tools if _ENDS.search(str(tool["name"]))]
    if ends:
        return ending[0] if ending else None
    opening = [tool for tool in tools if tool not in ending] or ending
    return next((tool for tool in opening if _READS.search(str(tool["name"]))), opening[0] if opening else None)


def _call(tool: Json) -> Said:
    value = value_for(tool.get("parameters") or {"type": "object"})
    return Said(tool=str(tool["name"]), arguments=json.dumps(value if isinstance(value, dict) else {}))


def _words(body: Json, choice: int) -> str:
    shape: object = body.get("response_format")
    if isinstance(shape, dict):
        asked = cast("Json", shape)
        if asked.get("type") == "json_schema":
            schema: object = cast("Json", asked.get("json_schema") or {}).get("schema")
            return json.dumps(value_for(schema))
        if asked.get("type") == "json_object":
            return json.dumps({"answer": WORDS})
    return WORDS if choice == 0 else f"{WORDS} It is number {choice + 1}."


def _functions(tools: object) -> list[Json]:
    """The functions on offer that have a name."""
    offered = [cast("Json", tool).get("function") for tool in cast("list[Any]", tools or []) if isinstance(tool, dict)]
    return [cast("Json", function) for function in offered if isinstance(function, dict) and "name" in function]


def _name_of(choice: Json) -> str:
    function: object = choice.get("function")
    return str(cast("Json", function).get("name")) if isinstance(function, dict) else str(choice.get("name"))


def _num_answers(body: Json) -> int:
    messages = cast("list[Any]", body.get("messages") or [])
    return sum(isinstance(message, dict) and cast("Json", message).get("role") == "assistant" for message in messages)
