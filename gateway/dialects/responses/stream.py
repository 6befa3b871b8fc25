"""Writes an answer in the words of the Responses API: one object for a whole one, typed events for a stream.

Each of the engine's events becomes what it says and nothing later: a piece of text is one delta, at once. An item opens
with its first piece. Reasoning and words close when something else begins; tool calls, whose pieces may come mixed,
when the answer ends. Then the answer is told as a whole: `response.completed`, or `response.incomplete` where a
limit cut it. Events are numbered from 0 without a gap, also where a failure takes the place of those that were held.

Log-probabilities stand on the text they came with; a whole answer does not say which belong to what, so there all of
them do. Pure.
"""

from __future__ import annotations

from typing import Any, Final, cast

from gateway.dialects.base import Asked, Json, object_of
from gateway.dialects.openai_form import MAX_MESSAGE_CHARS, OpenAIForm
from gateway.dialects.responses.frame import Frame
from gateway.dialects.responses.items_out import (
    COMPLETED,
    IN_PROGRESS,
    naming,
    output_items,
    reasoning_in,
    tool_calls_in,
)
from gateway.dialects.responses.open_items import CallStart, OpenCall, OpenItem, OpenReasoning, OpenWords
from gateway.message_fold import encode_json
from tracker.errors import HoneError

PADDED_TO: Final = 16
"""With `include_obfuscation`, a delta and its padding are a multiple of this long."""


class ResponsesWriter(OpenAIForm):
    """Writes the answer to one request."""

    def __init__(self, asked: Asked, call_id: str) -> None:
        self._frame = Frame(asked, call_id)
        self._names = naming(call_id, self._frame.functions, seals=self._frame.seals)
        self._number = 0
        self._kept = 0
        """The number that the first event got which is held."""
        self._open: dict[int, OpenItem] = {}
        self._calls: dict[int, CallStart | OpenCall] = {}
        self._closed: dict[int, Json] = {}
        self._num_sent = 0
        """Items that were closed before it."""
        self._words: OpenWords | None = None
        self._thoughts: OpenReasoning | None = None
        self._place = 0

    # whole

    @property
    def error_form(self) -> ResponsesWriter:
        """An error is the last event of its own stream."""
        return self

    def whole(self, said: Json) -> bytes:
        """The response object."""
        choice = _choice(said)
        self._frame.take(said)
        self._frame.finish(choice.get("finish_reason"))
        status = self._frame.status
        items = output_items(object_of(choice.get("message")), self._names, status, _scores(choice))
        return self._frame.response(status, items)

    # streamed

    def event(self, said: Json) -> bytes:
        """The events that one of the engine's becomes."""
        choice = _choice(said)
        if not self._frame.is_finished:
            self._kept, self._num_sent = self._number, len(self._closed)
        self._frame.finish(choice.get("finish_reason"))
        return self._numbered([*self._begin(said), *self._grow(object_of(choice.get("delta")), _scores(choice))])

    def done(self, mark: bytes) -> bytes:
        """The end of all that is open, and the answer as a whole; streams of this dialect have no end mark."""
        events = self._close_all()
        items = [item for _, item in sorted(self._closed.items())]
        status = self._frame.status
        whole = {"type": f"response.{status}", "response": self._frame.response(status, items)}
        return self._numbered([*events, whole])

    def error_event(self, error: HoneError) -> bytes:
        """The events that end a stream which had begun: the error, flat as the dialect has it and as SDKs raise it."""
        closed = list(self._closed.values())
        if self._frame.is_finished:  # what was held since then is not sent any more
            self._number, closed = self._kept, closed[: self._num_sent]
        told = {**self.error_body(error)["error"]}
        flat = {name: told[name] for name in ("code", "message", "param")}
        why = {"code": _failure_code(error), "message": error.message[:MAX_MESSAGE_CHARS]}
        failed = self._frame.response("failed", closed, why)
        return self._numbered(
            [{"type": "error", **flat, "error": told}, {"type": "response.failed", "response": failed}]
        )

    # what an event says

    def _begin(self, said: Json) -> list[Json]:
        has_begun = self._frame.has_begun
        self._frame.take(said)
        if has_begun:
            return []
        response = self._frame.response(IN_PROGRESS, [])
        return [{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")]

    def _grow(self, delta: Json, scores: list[Json]) -> list[Json]:
        """Everything that a delta adds, in the order in which models say it."""
        events: list[Json] = []
        if reasoning := reasoning_in(delta):
            events += self._reason(reasoning)
        for name, kind in (("content", "output_text"), ("refusal", "refusal")):
            if isinstance(text := delta.get(name), str) and text:
                events += self._say(kind, text, scores)
        for piece in tool_calls_in(delta):
            events += self._call(piece)
        return events

    def _reason(self, text: str) -> list[Json]:
        events = self._close_words()
        if self._thoughts is None:
            self._thoughts = OpenReasoning(self._names, self._place)
            events += self._opened(self._thoughts)
        return [*events, *self._thoughts.add(text)]

    def _say(self, kind: str, text: str, scores: list[Json]) -> list[Json]:
        events = self._close_thoughts()
        if self._words is None:
            self._words = OpenWords(self._names, self._place)
            events += self._opened(self._words)
        return [*events, *self._words.add(kind, text, scores)]

    def _call(self, piece: Json) -> list[Json]:
        """A piece of a tool call, which begins once its name is known."""
        events = [*self._close_thoughts(), *self._close_words()]
        index = piece.get("index", 0)
        key = index if type(index) is int else 0
        call = self._calls.setdefault(key, CallStart())
        function = object_of(piece.get("function"))
        arguments = str(function.get("arguments") or "")
        if isinstance(call, CallStart):
            call.take(piece.get("id"), function.get("name"), arguments)
            if not call.name:
                return events
            arguments, call = call.arguments, OpenCall(self._names, self._place, call.said())
            self._calls[key] = call
            events += self._opened(call)
        return [*events, *call.add(arguments)] if arguments else events

    # items

    def _opened(self, item: OpenItem) -> list[Json]:
        self._open[self._place] = item
        self._place += 1
        return item.open()

    def _close(self, item: OpenItem | None, status: str) -> list[Json]:
        place = next((place for place, each in self._open.items() if each is item), None)
        if item is None or place is None:
            return []
        del self._open[place]
        self._closed[place] = item.item(status)
        return item.close(status)

    def _close_words(self) -> list[Json]:
        words, self._words = self._words, None
        return self._close(words, COMPLETED)

    def _close_thoughts(self) -> list[Json]:
        thoughts, self._thoughts = self._thoughts, None
        return self._close(thoughts, COMPLETED)

    def _close_all(self) -> list[Json]:
        """Close what is open; an answer that says nothing is one empty text."""
        events: list[Json] = []
        for key, call in list(self._calls.items()):
            if isinstance(call, CallStart):
                self._calls[key] = opened = OpenCall(self._names, self._place, call.said())
                events += [*self._opened(opened), *opened.add(call.arguments)]
        if not self._calls and all(item["type"] == "reasoning" for item in self._items()):
            events += self._say("output_text", "", [])
        for place, item in sorted(self._open.items()):
            is_last = place == self._place - 1
            events += self._close(item, self._frame.status if is_last else COMPLETED)
        return events

    def _items(self) -> list[Json]:
        return [*self._closed.values(), *(item.item(IN_PROGRESS) for item in self._open.values())]

    def _numbered(self, events: list[Json]) -> bytes:
        """Whole server-sent events; a `response` in one is JSON already."""
        written: list[bytes] = []
        for event in events:
            kind, response = event["type"], event.get("response")
            said = {name: value for name, value in event.items() if name != "response"}
            if self._frame.pads and "delta" in event:
                said["obfuscation"] = "x" * (-len(event["delta"]) % PADDED_TO)
            data = encode_json({"type": kind, "sequence_number": self._number, **said})
            if response is not None:
                data = data.removesuffix(b"}") + b',"response":' + response + b"}"
            self._number += 1
            written.append(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")
        return b"".join(written)


def _choice(said: Json) -> Json:
    """The only choice of an event; empty where it has none."""
    choices = cast("list[Any]", said.get("choices") or [{}])
    return object_of(choices[0])


def _scores(choice: Json) -> list[Json]:
    """Log-probabilities as Responses have them."""
    content: object = object_of(choice.get("logprobs")).get("content")
    return cast("list[Json]", content) if isinstance(content, list) else []


def _failure_code(error: HoneError) -> str:
    """The few codes that programs know of a failed response."""
    return error.code if error.code == "context_length_exceeded" else "server_error"
