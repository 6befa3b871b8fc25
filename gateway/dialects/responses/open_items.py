"""Output items that are being written: each opens with an event, grows by one event a piece, and closes with its own.

What comes out are events without their numbers, which `stream.py` gives them. Pure.
"""

from __future__ import annotations

from typing import Protocol

from gateway.dialects.base import Json
from gateway.dialects.responses.items_out import (
    IN_PROGRESS,
    Naming,
    call_item,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
)


class OpenItem(Protocol):
    """An item that is not closed yet."""

    def open(self) -> list[Json]:
        """The events that begin it."""
        ...

    def close(self, status: str) -> list[Json]:
        """The events that end it."""
        ...

    def item(self, status: str) -> Json:
        """The item as far as it came."""
        ...


class OpenWords:
    """A message: one part of text, or of refusal, after the other."""

    def __init__(self, names: Naming, place: int) -> None:
        self._names = names
        self._place = place
        self._done: list[Json] = []
        self._kind = ""
        self._pieces: list[str] = []
        self._scores: list[Json] = []

    def open(self) -> list[Json]:
        return [_added(self._place, message_item(self._names, self._place, [], IN_PROGRESS))]

    def add(self, kind: str, piece: str, scores: list[Json]) -> list[Json]:
        """A piece of `output_text` or `refusal`."""
        events: list[Json] = []
        if kind != self._kind:
            events = self._close_part()
            self._kind = kind
            events.append({"type": "response.content_part.added", **self._where(), "part": self._part()})
        self._pieces.append(piece)
        self._scores += scores
        delta: Json = {"type": f"response.{kind}.delta", **self._where(), "delta": piece}
        return [*events, {**delta, "logprobs": scores} if kind == "output_text" else delta]

    def close(self, status: str) -> list[Json]:
        events = self._close_part()
        return [*events, _done(self._place, self.item(status))]

    def item(self, status: str) -> Json:
        parts = [*self._done, self._part()] if self._kind else self._done
        return message_item(self._names, self._place, parts, status)

    def _part(self) -> Json:
        text = "".join(self._pieces)
        return refusal_part(text) if self._kind == "refusal" else text_part(text, list(self._scores))

    def _close_part(self) -> list[Json]:
        if not self._kind:
            return []
        part, where = self._part(), self._where()
        told = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
        events: list[Json] = [
            {"type": f"response.{self._kind}.done", **where, **told},
            {"type": "response.content_part.done", **where, "part": part},
        ]
        self._done.append(part)
        self._kind, self._pieces, self._scores = "", [], []
        return events

    def _where(self) -> Json:
        item_id = self._names.id("msg", self._place)
        return {"item_id": item_id, "output_index": self._place, "content_index": len(self._done)}


class OpenReasoning:
    """Reasoning that the agent may see."""

    def __init__(self, names: Naming, place: int) -> None:
        self._names = names
        self._place = place
        self._pieces: list[str] = []

    def open(self) -> list[Json]:
        part = {"type": "reasoning_text", "text": ""}
        return [
            _added(self._place, reasoning_item(self._names, self._place, "", IN_PROGRESS)),
            {"type": "response.content_part.added", **self._where(), "part": part},
        ]

    def add(self, piece: str) -> list[Json]:
        self._pieces.append(piece)
        return [{"type": "response.reasoning_text.delta", **self._where(), "delta": piece}]

    def close(self, status: str) -> list[Json]:
        item, where = self.item(status), self._where()
        part = {"type": "reasoning_text", "text": "".join(self._pieces)}
        return [
            {"type": "response.reasoning_text.done", **where, "text": part["text"]},
            {"type": "response.content_part.done", **where, "part": part},
            _done(self._place, item),
        ]

    def item(self, status: str) -> Json:
        return reasoning_item(self._names, self._place, "".join(self._pieces), status)

    def _where(self) -> Json:
        return {"item_id": self._names.id("rs", self._place), "output_index": self._place, "content_index": 0}


class CallStart:
    """A tool call whose name has not come yet."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments = ""
        self._id = ""

    def take(self, call_id: object, name: object, arguments: str) -> None:
        self._id = str(call_id or self._id)
        self.name = str(name or self.name)
        self.arguments += arguments

    def said(self) -> Json:
        return {"call_id": self._id, "name": self.name}


class OpenCall:
    """A function call: its name and id come once, its arguments in pieces."""

    def __init__(self, names: Naming, place: int, said: Json) -> None:
        self._names = names
        self._place = place
        self._said = said
        self._pieces: list[str] = []

    def open(self) -> list[Json]:
        return [_added(self._place, self.item(IN_PROGRESS))]

    def add(self, piece: str) -> list[Json]:
        self._pieces.append(piece)
        return [{"type": "response.function_call_arguments.delta", **self._where(), "delta": piece}]

    def close(self, status: str) -> list[Json]:
        item = self.item(status)
        told = {"name": item["name"], "arguments": item["arguments"]}
        return [
            {"type": "response.function_call_arguments.done", **self._where(), **told},
            _done(self._place, item),
        ]

    def item(self, status: str) -> Json:
        said = {**self._said, "arguments": "".join(self._pieces)}
        return call_item(self._names, self._place, said, status)

    def _where(self) -> Json:
        return {"item_id": self._names.id("fc", self._place), "output_index": self._place}


def _added(place: int, item: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def _done(place: int, item: Json) -> Json:
    return {"type": "response.output_item.done", "output_index": place, "item": item}
