"""What the scripted engine thinks when real agents call it: the tools a play names, in turn, then the last words.

A mind reads only the request: it calls the first turn whose tools are offered and not yet called, so it serves an
agent, its sub-agents and its calls without tools alike, and needs no memory. Its token ids are a function of the
conversation as chat templates have it (arguments of tool calls parsed and written again, text as it is): a history
that comes back unchanged extends its own ids, one that was edited does not. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.fakes.scripted_answers import END, SEPARATOR, Answer, Script

Json = dict[str, Any]
ROLES: Final = {"system": 11, "developer": 11, "user": 12, "assistant": 13, "tool": 14}
CALL: Final = 15
TOOLS: Final = 16
_WORD: Final = re.compile(r"\s*\S+|\s+")
_TAKEN: Final = re.compile(r"call_(\d\d)[0-9a-f]{22}")


@dataclass(frozen=True, slots=True)
class Cue:
    """One tool call."""

    tool: str
    arguments: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What a mind does: each turn is a set of parallel calls."""

    turns: Sequence[Sequence[Cue]] = ()
    final: str = "Done."
    aside: str | None = None
    """What is said where no tools are offered (titles, summaries); default: the last words."""
    structured: Json | None = None
    """What is said where a JSON schema is asked for."""


def mind(play: Play) -> Callable[[Json], Script]:
    """The answers to request bodies of chat completions."""

    def answer(body: Json) -> Script:
        prompt = prompt_ids(body)
        number, cues = _next_turn(play, body)
        spoken = _called(prompt, number, cues) if cues else _said(_words_for(play, body))
        return Script(prompt_ids=prompt, choices=(spoken,))

    return answer


def _words_for(play: Play, body: Json) -> str:
    if play.structured is not None and _asks_json(body):
        return json.dumps(play.structured)
    return play.final if body.get("tools") or play.aside is None else play.aside


def _asks_json(body: Json) -> bool:
    return (body.get("response_format") or {}).get("type") in ("json_schema", "json_object")


def _next_turn(play: Play, body: Json) -> tuple[int, Sequence[Cue]]:
    """The first turn that no call id in the conversation tells of: some agents keep a call as text only."""
    offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
    taken = {int(turn) for turn in _TAKEN.findall(json.dumps(body["messages"]))}
    for number, turn in enumerate(play.turns):
        mine = [cue for cue in turn if cue.tool in offered]
        if mine and number not in taken:
            return number, mine
    return len(play.turns), ()


def _calls(message: Json) -> Sequence[Json]:
    return message.get("tool_calls") or ()


# Answers.


def _said(text: str) -> Answer:
    words = _words(text)
    return Answer(ids=(*map(_id, words), END), texts=(*words, ""))


def _called(prompt: Sequence[int], turn: int, cues: Sequence[Cue]) -> Answer:
    ids: list[int] = []
    deltas: list[Json] = []
    pieces: list[int] = []
    calls: list[Json] = []
    for index, cue in enumerate(cues):
        call_id = f"call_{turn:02}" + hashlib.sha256(repr((prompt, index)).encode()).hexdigest()[:22]
        arguments = json.dumps(cue.arguments)
        words = _words(arguments)
        ids += [CALL, _id(cue.tool), *map(_id, words)]
        head = {"id": call_id, "type": "function", "function": {"name": cue.tool, "arguments": ""}}
        deltas.append({"tool_calls": [{"index": index, **head}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": word}}]} for word in words]
        pieces += [2, *(1 for _ in words)]
        calls.append({**head, "function": {"name": cue.tool, "arguments": arguments}})
    return Answer(
        ids=(*ids, END),
        deltas=(*deltas, {}),
        pieces=(*pieces, 1),
        message={"role": "assistant", "content": None, "tool_calls": calls},
        finish_reason="tool_calls",
    )


# Token ids.


def prompt_ids(body: Json) -> list[int]:
    """The ids of a conversation, up to the mark that an assistant's answer follows."""
    tools = body.get("tools")
    ids = [TOOLS, *map(_id, _words(json.dumps(tools)))] if tools else []
    for message in body["messages"]:
        ids += [ROLES[message["role"]], *_message_ids(message), SEPARATOR]
    return [*ids, ROLES["assistant"]]


def _message_ids(message: Json) -> Iterator[int]:
    yield from map(_id, _words(_text(message.get("content"))))
    for call in _calls(message):
        function = call["function"]
        yield from (CALL, _id(function["name"]))
        yield from map(_id, _words(json.dumps(json.loads(function["arguments"] or "{}"))))
    if message["role"] == "assistant":
        yield END


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _id(word: str) -> int:
    return 1000 + zlib.crc32(word.encode()) % 1_000_000
