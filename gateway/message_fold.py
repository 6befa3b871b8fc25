"""The message of an answer, put together from its streamed pieces as its whole form would read.

Pure. Only words: token ids are in `capture.py` and never derived from what stands here.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

import msgspec

from gateway.dialects.base import Json

REASONING: Final = ("reasoning", "reasoning_content")
"""The names under which engines give hidden reasoning."""
_JOINED: Final = frozenset({"content", "refusal", *REASONING})
"""Fields of a delta that are pieces of one text."""


def hide_reasoning(words: Json) -> None:
    """Take hidden reasoning out of a message or delta, in place."""
    for name in REASONING:
        words.pop(name, None)


class MessageFold:
    """Folds deltas (or takes the whole message, or plain text) into one JSON value."""

    __slots__ = ("_parts", "_rest", "_text", "_tools", "_whole", "contents")

    def __init__(self) -> None:
        self.contents: list[str] = []
        """The pieces of its text so far; a delta that is words alone may be added here."""
        self._parts: dict[str, list[str]] = {"content": self.contents}
        self._rest: Json = {}
        self._text: list[str] | None = None
        self._tools: dict[int, _ToolFold] = {}
        self._whole: Json | None = None

    def add_text(self, text: str) -> None:
        """A piece of a plain completion."""
        if self._text is None:
            self._text = []
        self._text.append(text)

    def set_whole(self, message: Json) -> None:
        self._whole = message

    def add_delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if name in _JOINED and isinstance(value, str):
                self._parts.setdefault(name, []).append(value)
            elif name == "tool_calls" and isinstance(value, list):
                for piece in cast("list[object]", value):
                    self._add_tool_piece(piece)
            elif value is not None:
                self._rest[name] = value

    def value(self) -> object:
        """A string for a plain completion, else the assistant's message."""
        if self._text is not None:
            return "".join(self._text)
        if self._whole is not None:
            return self._whole
        message: Json = {"role": "assistant", "content": None, **self._rest}
        for name, parts in self._parts.items():
            if parts:
                message[name] = "".join(parts)
        if self._tools:
            message["tool_calls"] = [tool.value() for _, tool in sorted(self._tools.items())]
            message["content"] = message["content"] or None
        return message

    def encode(self) -> bytes:
        """As one JSON value."""
        return encode_json(self.value())

    def _add_tool_piece(self, piece: object) -> None:
        if isinstance(piece, dict):
            said = cast("Json", piece)
            index = said.get("index", 0)
            key = index if type(index) is int else 0
            self._tools.setdefault(key, _ToolFold()).add(said)


class _ToolFold:
    """One tool call: its name and id come once, its arguments in pieces."""

    __slots__ = ("_arguments", "_fields", "_function")

    def __init__(self) -> None:
        self._fields: Json = {}
        self._function: Json = {}
        self._arguments: list[str] = []

    def add(self, piece: Json) -> None:
        for name, value in piece.items():
            if name == "function" and isinstance(value, dict):
                self._add_function(cast("Json", value))
            elif name != "index" and value is not None:
                self._fields[name] = value

    def value(self) -> Json:
        return {"type": "function", **self._fields, "function": {**self._function, "arguments": self._joined()}}

    def _add_function(self, function: Json) -> None:
        for name, value in function.items():
            if name == "arguments" and isinstance(value, str):
                self._arguments.append(value)
            elif value is not None:
                self._function[name] = value

    def _joined(self) -> str:
        return "".join(self._arguments)


def encode_json(value: object) -> bytes:
    """JSON without spaces; what `msgspec` cannot write (a lone surrogate of a cut emoji) is escaped instead."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, separators=(",", ":")).encode()


def decode_json_value(data: bytes) -> Any:
    """Any JSON that engines send: also `NaN` and lone surrogates, which strict JSON has not. `ValueError` otherwise."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return _lenient(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _lenient(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
