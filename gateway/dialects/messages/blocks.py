"""Content blocks of Anthropic's Messages, written from what an engine says. Pure.

Blocks come one after the other: each begins when its first words come, and ends when those of another begin. Every
piece of text, thinking or arguments goes on as it came; only a tool call that begins before the one ahead of it is
whole has to wait. Ids of tool calls are the engine's. Arguments that are no JSON object cannot stand in a whole answer,
where `input` is one: they are wrapped, under the name this dialect has for it.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from gateway.dialects.base import Json, object_of
from gateway.dialects.messages.form import encode_named
from gateway.dialects.messages.thinking import sign
from gateway.message_fold import REASONING

UNREADABLE: Final = "INVALID_JSON"


class BlockStream:
    """Turns the deltas of one answer into events of blocks."""

    def __init__(self, call_id: str, *, omits_thinking: bool) -> None:
        self._call_id = call_id
        self._omits_thinking = omits_thinking
        self._num_blocks = 0
        self._open: str | None = None
        """What the block that is open holds: `text`, `thinking`, or `tool_use` and the call's index."""
        self._thought: list[str] = []
        self._tools: dict[int, _Tool] = {}

    @property
    def has_calls(self) -> bool:
        return bool(self._tools)

    def delta(self, said: Json) -> list[bytes]:
        """The events for one delta of chat completions."""
        events: list[bytes] = []
        if thinking := reasoning_in(said):
            events += self._think(thinking)
        if text := text_in(said):
            events += self._enter("text", {"type": "text", "text": ""})
            events.append(self._delta(self._last, {"type": "text_delta", "text": text}))
        for piece in calls_in(said):
            events += self._take_call(piece)
        return events

    def end(self) -> list[bytes]:
        """Close what is open; an answer without any words has one empty text."""
        events: list[bytes] = []
        for key, tool in self._tools.items():
            tool.call_id = tool.call_id or f"{self._call_id}-{key}"
            events += self._write_call(key, tool)
        if not self._num_blocks:
            events += self._enter("text", {"type": "text", "text": ""})
        return events + self._leave()

    @property
    def _last(self) -> int:
        return self._num_blocks - 1

    def _enter(self, kind: str, block: Json) -> list[bytes]:
        """Begin a block, unless one of this kind is open."""
        if self._open == kind:
            return []
        left = self._leave()
        self._open = kind
        self._num_blocks += 1
        begun: Json = {"type": "content_block_start", "index": self._last, "content_block": block}
        return [*left, encode_named(begun)]

    def _leave(self) -> list[bytes]:
        """End the block that is open, thinking with its signature."""
        if self._open is None:
            return []
        events: list[bytes] = []
        if self._open == "thinking":
            signature = sign("".join(self._thought), omits=self._omits_thinking)
            events.append(self._delta(self._last, {"type": "signature_delta", "signature": signature}))
            self._thought.clear()
        self._open = None
        return [*events, encode_named({"type": "content_block_stop", "index": self._last})]

    def _think(self, thinking: str) -> list[bytes]:
        events = self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thought.append(thinking)
        if not self._omits_thinking:
            events.append(self._delta(self._last, {"type": "thinking_delta", "thinking": thinking}))
        return events

    def _take_call(self, piece: Json) -> list[bytes]:
        """Take a piece of a tool call, and write what may be written: a block begins once its id and name are known."""
        index = piece.get("index", 0)
        key = index if type(index) is int else 0
        self._tools.setdefault(key, _Tool()).take(piece)
        events: list[bytes] = []
        last = next(reversed(self._tools))
        for each, tool in self._tools.items():
            if not tool.is_named:
                break
            events += self._write_call(each, tool)
            if each != last and not tool.is_whole():
                break
        return events

    def _write_call(self, key: int, tool: _Tool) -> list[bytes]:
        events: list[bytes] = []
        if tool.block is None:
            block: Json = {"type": "tool_use", "id": tool.call_id, "name": tool.name, "input": {}}
            events = self._enter(f"tool_use {key}", block)
            tool.block = self._last
        if tool.waiting:
            written = "".join(tool.waiting)
            events.append(self._delta(tool.block, {"type": "input_json_delta", "partial_json": written}))
            tool.waiting.clear()
        return events

    def _delta(self, block: int, delta: Json) -> bytes:
        return encode_named({"type": "content_block_delta", "index": block, "delta": delta})


class _Tool:
    """One tool call as it comes in."""

    __slots__ = ("_arguments", "_is_whole", "block", "call_id", "name", "waiting")

    def __init__(self) -> None:
        self.block: int | None = None
        """The index of its block, once that has begun."""
        self.call_id = ""
        self.name = ""
        self.waiting: list[str] = []
        """Arguments that were not written yet."""
        self._arguments: list[str] = []
        self._is_whole = False

    @property
    def is_named(self) -> bool:
        return bool(self.call_id and self.name)

    def take(self, piece: Json) -> None:
        function = object_of(piece.get("function"))
        self.call_id = self.call_id or _text(piece.get("id"))
        self.name = self.name or _text(function.get("name"))
        if arguments := _text(function.get("arguments")):
            self.waiting.append(arguments)
            self._arguments.append(arguments)

    def is_whole(self) -> bool:
        """Whether its arguments have come to their end."""
        self._is_whole = self._is_whole or _is_json("".join(self._arguments))
        return self._is_whole


def whole_blocks(message: Json, call_id: str, *, omits_thinking: bool) -> list[Json]:
    """The blocks of a message that came whole."""
    blocks: list[Json] = []
    if thinking := reasoning_in(message):
        shown = "" if omits_thinking else thinking
        blocks.append({"type": "thinking", "thinking": shown, "signature": sign(thinking, omits=omits_thinking)})
    if text := text_in(message):
        blocks.append({"type": "text", "text": text})
    for number, call in enumerate(calls_in(message)):
        tool = _Tool()
        tool.take(call)
        named: Json = {"type": "tool_use", "id": tool.call_id or f"{call_id}-{number}", "name": tool.name}
        blocks.append({**named, "input": _input("".join(tool.waiting))})
    return blocks or [{"type": "text", "text": ""}]


def reasoning_in(said: Json) -> str:
    """Hidden reasoning, under whichever name the engine gives it."""
    return next((text for name in REASONING if (text := _text(said.get(name)))), "")


def text_in(said: Json) -> str:
    """Words to the agent; a refusal is one too."""
    return _text(said.get("content")) + _text(said.get("refusal"))


def calls_in(said: Json) -> list[Json]:
    """Tool calls or pieces of them."""
    calls = said.get("tool_calls")
    return [object_of(call) for call in cast("list[object]", calls)] if isinstance(calls, list) else []


def _input(arguments: str) -> Json:
    if not arguments:
        return {}
    try:
        return msgspec.json.decode(arguments, type=Json)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return {UNREADABLE: arguments}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
