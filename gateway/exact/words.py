"""From what an engine generates (ids, log-probabilities) and what it makes of them in words, to chat completions.

The ids and log-probabilities are those of the generation, the words those that the engine derendered from the ids, one
event a piece. Two things are cut, as engines cut them from a chat: the text of the token that ended the answer, and a
stop string with what stands after it. Characters that may begin a stop string wait until they do not. Pure; who is
asked in which order is left to `source.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from gateway.dialects.base import Json, object_of
from gateway.message_fold import REASONING
from tracker.errors import UpstreamFailed
from tracker.types import Record

NOT_UNDERSTOOD: Final = "The engine's generation is not understood"
TEXTS: Final = ("content", *REASONING)


class Wanted(Record, frozen=True):
    """What of the request shapes the words of its answer."""

    stops: tuple[str, ...]
    """Stop strings that are cut."""
    num_top: int
    """Alternatives asked for with each log-probability."""
    is_forced: bool
    """A tool was named, so that its call is no finish reason of its own."""


class Piece(Record, frozen=True):
    """What came of one choice since it was derendered last."""

    index: int
    token_ids: tuple[int, ...]
    entries: tuple[Json, ...]
    """Log-probabilities, as chat completions have them."""
    finish_reason: str | None
    stop_reason: object

    @property
    def words_ids(self) -> list[int]:
        """The ids that words are made of: without the token that ended the answer by itself."""
        ended = self.finish_reason == "stop" and not isinstance(self.stop_reason, str)
        return list(self.token_ids[:-1] if ended else self.token_ids)


def wanted_of(body: Mapping[str, Any]) -> Wanted:
    """From the chat completion that the engine is asked to render."""
    stop: object = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else cast("list[str]", stop)
    return Wanted(
        stops=() if body.get("include_stop_str_in_output") else tuple(stops),
        num_top=body.get("top_logprobs") or 0,
        is_forced=isinstance(body.get("tool_choice"), dict),
    )


def pieces_of(events: Iterable[Json], wanted: Wanted) -> list[Piece]:
    """What events that came together hold of each choice, as one piece each, in the order of the first ones.

    Raises `UpstreamFailed` where a choice is none.
    """
    pieces: dict[int, Piece] = {}
    for event in events:
        for choice in cast("list[object]", event.get("choices") or []):
            piece = _piece(choice, wanted)
            before = pieces.get(piece.index)
            pieces[piece.index] = piece if before is None else _joined(before, piece)
    return list(pieces.values())


class ChoiceWords:
    """One choice of a stream: what the engine carries from one derendering to the next, and what waits to be told."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._held: dict[str, str] = {}
        self._has_calls = False
        self.state: Json | None = None
        """The engine's, given back to it each time."""

    def part(self, piece: Piece, delta: Json) -> Json:
        """The choice of a chunk: the piece's tokens, with what the engine made of them."""
        told = {name: value for name, value in delta.items() if name != "role" and value not in (None, [])}
        self._has_calls |= "tool_calls" in told
        return {
            "index": piece.index,
            "delta": self._released(told, piece),
            "logprobs": {"content": list(piece.entries)},
            "finish_reason": _finish_reason(piece, self._wanted, has_calls=self._has_calls),
            "token_ids": list(piece.token_ids),
            **({} if piece.stop_reason is None else {"stop_reason": piece.stop_reason}),
        }

    def _released(self, told: Json, piece: Piece) -> Json:
        """The delta without what may begin a stop string; at the end without the one that was found."""
        if not self._wanted.stops:
            return told
        released: Json = {name: value for name, value in told.items() if name not in TEXTS}
        for name in TEXTS:
            text = self._held.pop(name, "") + str(told.get(name) or "")
            if piece.finish_reason is not None:
                text, waiting = cut(text, piece.stop_reason), ""
            else:
                waiting = _beginning_of(text, self._wanted.stops)
                text = text[: len(text) - len(waiting)]
            if waiting:
                self._held[name] = waiting
            if text:
                released[name] = text
        return released


def opening(envelope: Json, num_choices: int, prompt_ids: Sequence[int]) -> list[Json]:
    """What a stream begins with: who speaks, and the prompt that was used."""
    parts = [
        {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        for index in range(num_choices)
    ]
    chunks = [chunk(envelope, [part]) for part in parts]
    chunks[0]["prompt_token_ids"] = list(prompt_ids)
    return chunks


def chunk(envelope: Json, choices: list[Json]) -> Json:
    """One event of a stream."""
    return {**envelope, "object": "chat.completion.chunk", "choices": choices}


def whole(
    envelope: Json, generated: Json, pieces: Sequence[Piece], messages: Mapping[int, Json], wanted: Wanted
) -> Json:
    """A whole answer; `messages` are those that the engine derendered, by choice."""
    return {
        **envelope,
        "object": "chat.completion",
        "choices": [_whole_choice(piece, messages.get(piece.index, {}), wanted) for piece in pieces],
        "usage": generated.get("usage"),
        "prompt_token_ids": generated.get("prompt_token_ids"),
    }


def cut(text: str, stop: object) -> str:
    """A text up to the stop string that ended it.

    >>> cut("say END more", "END")
    'say '
    """
    return text.partition(stop)[0] if isinstance(stop, str) and stop else text


def _whole_choice(piece: Piece, said: Json, wanted: Wanted) -> Json:
    message = {name: value for name, value in said.items() if value not in (None, [])}
    message = {"role": "assistant", "content": None if message.get("tool_calls") else "", **message}
    for name in TEXTS if wanted.stops else ():
        if isinstance(text := message.get(name), str):
            message[name] = cut(text, piece.stop_reason)
    return {
        "index": piece.index,
        "message": message,
        "logprobs": {"content": list(piece.entries)},
        "finish_reason": _finish_reason(piece, wanted, has_calls=bool(message.get("tool_calls"))),
        "stop_reason": piece.stop_reason,
        "token_ids": list(piece.token_ids),
    }


def _finish_reason(piece: Piece, wanted: Wanted, *, has_calls: bool) -> str | None:
    is_call = piece.finish_reason == "stop" and has_calls and not wanted.is_forced
    return "tool_calls" if is_call else piece.finish_reason


def _piece(choice: object, wanted: Wanted) -> Piece:
    fields: Json = object_of(choice)
    index, ids = fields.get("index"), cast("object", fields.get("token_ids") or [])
    if type(index) is not int or not isinstance(ids, list):
        raise UpstreamFailed(f"{NOT_UNDERSTOOD}: a choice without index and ids.")
    logprobs: Json = fields.get("logprobs") or {}
    entries = cast("list[Json]", logprobs.get("content") or [])
    return Piece(
        index=index,
        token_ids=tuple(cast("list[int]", ids)),
        entries=tuple(
            {**entry, "top_logprobs": (entry.get("top_logprobs") or [])[: wanted.num_top]} for entry in entries
        ),
        finish_reason=fields.get("finish_reason"),
        stop_reason=fields.get("stop_reason"),
    )


def _joined(first: Piece, then: Piece) -> Piece:
    return Piece(
        index=first.index,
        token_ids=first.token_ids + then.token_ids,
        entries=first.entries + then.entries,
        finish_reason=then.finish_reason,
        stop_reason=then.stop_reason,
    )


def _beginning_of(text: str, stops: Iterable[str]) -> str:
    """The longest end of a text that may be the beginning of a stop string, or is one with what follows it."""
    found = [text[at:] for stop in stops if (at := text.find(stop)) >= 0]
    partial = [stop[:length] for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
    return max((*found, *partial), key=len, default="")
