"""Output items of the Responses API: an engine's message as the agent gets it.

First reasoning, then words, then tool calls. An item's id is the random part of the answer's id and its place, so that
items made again later have the ids they had. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from gateway.dialects.base import Json, object_of
from gateway.dialects.responses.items_in import seal
from gateway.message_fold import REASONING
from tracker.types import Record

COMPLETED: Final = "completed"
IN_PROGRESS: Final = "in_progress"
PLACE_HEX: Final = 2
NONE: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({})


class Naming(Record, frozen=True):
    """How the items of one answer are named, and what the agent sees of them."""

    stem: str
    """The random part of the answer's id."""
    seals: bool = False
    """Whether reasoning comes with `encrypted_content` too."""
    functions: Mapping[str, tuple[str, str]] = {}
    """Namespace and name of the functions that have a namespace, by their name at the engine."""

    def id(self, prefix: str, place: int) -> str:
        return f"{prefix}_{self.stem}{place:0{PLACE_HEX}x}"


def naming(call_id: str, functions: Mapping[str, tuple[str, str]] = NONE, *, seals: bool = False) -> Naming:
    """The naming of the answer with this id.

    >>> naming("resp_" + "0" * 32 + "-" + "f" * 32).id("msg", 1)
    'msg_ffffffffffffffffffffffffffffffff01'
    """
    return Naming(stem=call_id.rpartition("-")[2], seals=seals, functions=functions)


def output_items(message: Mapping[str, Any], names: Naming, status: str, scores: list[Json]) -> list[Json]:
    """The items of a whole message, the last with this status; an answer that says nothing is one empty text."""
    items: list[Json] = []
    if reasoning := reasoning_in(message):
        items.append(reasoning_item(names, len(items), reasoning, COMPLETED))
    calls = tool_calls_in(message)
    parts = _parts(message, scores)
    if parts or not calls:
        items.append(message_item(names, len(items), parts or [text_part("", scores)], COMPLETED))
    for call in calls:
        function = object_of(call.get("function"))
        said = {name: str(function.get(name) or "") for name in ("name", "arguments")}
        items.append(call_item(names, len(items), {"call_id": str(call.get("id") or ""), **said}, COMPLETED))
    items[-1]["status"] = status
    return items


def reasoning_in(words: Mapping[str, Any]) -> str:
    """The hidden reasoning of a message or delta, under whichever name."""
    for name in REASONING:
        if isinstance(text := words.get(name), str) and text:
            return text
    return ""


def tool_calls_in(words: Mapping[str, Any]) -> list[Json]:
    """The tool calls (or pieces of such) of a message or delta."""
    given: object = words.get("tool_calls")
    calls = cast("list[object]", given) if isinstance(given, list) else []
    return [cast("Json", call) for call in calls if isinstance(call, dict)]


def text_part(text: str, scores: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}


def refusal_part(text: str) -> Json:
    return {"type": "refusal", "refusal": text}


def message_item(names: Naming, place: int, parts: list[Json], status: str) -> Json:
    """Words for the agent."""
    return {
        "type": "message",
        "id": names.id("msg", place),
        "status": status,
        "role": "assistant",
        "content": parts,
    }


def reasoning_item(names: Naming, place: int, text: str, status: str) -> Json:
    """Reasoning as the model wrote it; no summary of it is made up."""
    item: Json = {
        "type": "reasoning",
        "id": names.id("rs", place),
        "status": status,
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}] if text else [],
    }
    if names.seals:
        item["encrypted_content"] = seal(text)
    return item


def call_item(names: Naming, place: int, said: Json, status: str) -> Json:
    """A function call; an engine that gave it no id leaves it to us."""
    namespace, name = names.functions.get(said["name"], (None, said["name"]))
    item = {
        "type": "function_call",
        "id": names.id("fc", place),
        "status": status,
        "call_id": said.get("call_id") or names.id("call", place),
        "name": name,
        "arguments": said["arguments"],
    }
    return item if namespace is None else {**item, "namespace": namespace}


def _parts(message: Mapping[str, Any], scores: list[Json]) -> list[Json]:
    parts: list[Json] = []
    if isinstance(text := message.get("content"), str) and text:
        parts.append(text_part(text, scores))
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        parts.append(refusal_part(refusal))
    return parts
