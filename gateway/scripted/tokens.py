"""How the scripted engine writes a conversation in tokens, and its answers: as chat templates do, with real BPE ids.

What was sampled and comes back unchanged is written with the very same ids, so an agent that keeps its history extends
its own prefix, and one that rewrites it does not. Pure beside the encoding, which is passed in.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import tiktoken

from gateway.dialects.base import Json
from gateway.scripted.answers import Said

START: Final = 200_100
END: Final = 200_101
MARKS: Final = {START: "<|start|>", END: "<|end|>"}
"""Ids beyond the encoding's own: where a message begins, and where it ends."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer as it is streamed: its ids, and the delta they read as."""

    ids: tuple[int, ...]
    delta: Json


class Tokens:
    """Text to ids and back."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding

    def prompt(self, body: Json) -> list[int]:
        """The ids of a request in the form of chat completions, or of completions."""
        if "messages" not in body:
            given: object = body.get("prompt")
            return list(cast("list[int]", given)) if _is_ids(given) else self._encode(_one_text(given))
        ids: list[int] = []
        if body.get("tools"):
            ids += [START, *self._encode("tools\n"), *self._encode(json.dumps(body["tools"])), END, *self._encode("\n")]
        for message in cast("list[Json]", body["messages"]):
            ids += [START, *self._encode(f"{message.get('role')}\n"), *self._said(message), END, *self._encode("\n")]
        return [*ids, START, *self._encode("assistant\n")]

    def pieces(self, said: Said, call_id: str) -> list[Piece]:
        """An answer, part by part, without its end."""
        if said.tool is None:
            return self._words(said.text)
        function = {"name": said.tool, "arguments": ""}
        head = {"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}]}
        rest = {"tool_calls": [{"index": 0, "function": {"arguments": said.arguments}}]}
        opening, closing = self._call(said.tool, said.arguments)
        return [Piece(tuple(opening), head), Piece(tuple(closing), rest)]

    def text(self, ids: Sequence[int]) -> str:
        """The ids as text."""
        parts: list[str] = []
        own: list[int] = []
        for token in ids:
            if token in MARKS or token >= self._encoding.n_vocab:
                parts += [self._encoding.decode(own), MARKS.get(token, f"<|{token}|>")]
                own = []
            else:
                own.append(token)
        return "".join([*parts, self._encoding.decode(own)])

    def _words(self, text: str) -> list[Piece]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        ids = self._encode(text)
        parts = [decoder.decode(self._encoding.decode_single_token_bytes(token)) for token in ids]
        return [Piece((token,), {"content": part}) for token, part in zip(ids, parts, strict=True)]

    def _said(self, message: Json) -> list[int]:
        """A message's words, then the tools it calls."""
        ids = self._encode(_text_of(message.get("content")))
        for call in cast("list[Json]", message.get("tool_calls") or []):
            function = cast("Json", call.get("function") or {})
            opening, closing = self._call(str(function.get("name")), str(function.get("arguments")))
            ids += opening + closing
        return ids

    def _call(self, tool: str, arguments: str) -> tuple[list[int], list[int]]:
        return self._encode(f"<tool_call>{tool}\n"), self._encode(f"{arguments}</tool_call>")

    def _encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text.encode("utf-8", "replace").decode())


def _is_ids(given: object) -> bool:
    return isinstance(given, list) and all(type(each) is int for each in cast("list[Any]", given))


def _one_text(given: object) -> str:
    return "".join(str(part) for part in cast("list[Any]", given)) if isinstance(given, list) else str(given)


def _text_of(content: object) -> str:
    if isinstance(content, list):
        parts = [cast("Json", part) for part in cast("list[Any]", content) if isinstance(part, dict)]
        return "".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)
    return "" if content is None else str(content)
