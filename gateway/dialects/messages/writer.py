"""An engine's answer as Anthropic's message, or as its stream of events. Pure.

A stream begins with the message as far as it is known, with the number of prompt tokens where the engine told the ids;
its blocks are written by `blocks.py`; how it ended and what it took follow once the engine has ended it in
order. Token ids are counted here and not shown. An answer that fills what is left of the context, though less than its
limit, says so in the dialect's own words.
"""

from __future__ import annotations

from typing import Final, cast

from gateway.dialects.base import Json, object_of
from gateway.dialects.messages.blocks import BlockStream, calls_in, whole_blocks
from gateway.dialects.messages.form import encode_named
from gateway.message_fold import encode_json

CALLED: Final = ("tool_calls", "function_call")


class MessagesWriter:
    """Writes one answer."""

    def __init__(self, call_id: str, model: str, limit: int | None, *, omits_thinking: bool) -> None:
        self._call_id = call_id
        self._model = model
        self._limit = limit
        self._omits_thinking = omits_thinking
        self._blocks = BlockStream(call_id, omits_thinking=omits_thinking)
        self._counts = _Counts()
        self._ending = _Ending()
        self._has_begun = False

    @property
    def error_form(self) -> None:
        """Its errors are those of the dialect."""

    def event(self, said: Json) -> bytes:
        """The events for one of the engine's."""
        choices = _choices(said)
        self._counts.take(said, choices)
        events: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            message = self._message([], _Ending(), self._counts.usage(of_answer=False))
            events.append(encode_named({"type": "message_start", "message": message}))
        for choice in choices:
            events += self._blocks.delta(object_of(choice.get("delta")))
            self._ending.take(choice)
        return b"".join(events)

    def done(self, mark: bytes) -> bytes:
        """The end of the last block, how the answer ended, and what it took."""
        del mark  # this dialect has one of its own
        events = self._blocks.end()
        reason, sequence = self._ended(has_calls=self._blocks.has_calls)
        delta: Json = {"stop_reason": reason, "stop_sequence": sequence}
        events.append(encode_named({"type": "message_delta", "delta": delta, "usage": self._counts.usage()}))
        events.append(encode_named({"type": "message_stop"}))
        return b"".join(events)

    def whole(self, said: Json) -> bytes:
        """The whole message."""
        choices = _choices(said)
        self._counts.take(said, choices)
        words = object_of(choices[0].get("message")) if choices else {}
        for choice in choices:
            self._ending.take(choice)
        blocks = whole_blocks(words, self._call_id, omits_thinking=self._omits_thinking)
        self._ending.reason, self._ending.sequence = self._ended(has_calls=bool(calls_in(words)))
        return encode_json(self._message(blocks, self._ending, self._counts.usage()))

    def _ended(self, *, has_calls: bool) -> tuple[str, str | None]:
        return self._ending.in_words(has_calls=has_calls, fills_limit=self._counts.fills(self._limit))

    def _message(self, blocks: list[Json], ending: _Ending, usage: Json) -> Json:
        return {
            "id": self._call_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": ending.reason,
            "stop_sequence": ending.sequence,
            "usage": usage,
        }


class _Ending:
    """How the answer ended: first in the engine's words, then in the dialect's."""

    __slots__ = ("reason", "sequence")

    def __init__(self) -> None:
        self.reason: str | None = None
        self.sequence: str | None = None

    def take(self, choice: Json) -> None:
        if choice.get("finish_reason") is not None:
            self.reason = str(choice["finish_reason"])
            found = choice.get("stop_reason")
            self.sequence = found if isinstance(found, str) else None

    def in_words(self, *, has_calls: bool, fills_limit: bool) -> tuple[str, str | None]:
        """`stop_reason` and `stop_sequence`."""
        if self.reason == "length":
            return ("max_tokens" if fills_limit else "model_context_window_exceeded"), None
        if self.reason == "content_filter":
            return "refusal", None
        if has_calls and (self.reason in CALLED or self.sequence is None):
            return "tool_use", None
        return ("end_turn", None) if self.sequence is None else ("stop_sequence", self.sequence)


class _Counts:
    """Tokens, as the engine counts them; before it does, as many as it told ids of."""

    __slots__ = ("_cached", "_completion", "_num_prompt_ids", "_num_sampled_ids", "_prompt")

    def __init__(self) -> None:
        self._prompt: int | None = None
        self._completion: int | None = None
        self._cached = 0
        self._num_prompt_ids = 0
        self._num_sampled_ids = 0

    def take(self, said: Json, choices: list[Json]) -> None:
        self._num_prompt_ids = self._num_prompt_ids or _length(said.get("prompt_token_ids"))
        self._num_sampled_ids += sum(_length(choice.get("token_ids")) for choice in choices)
        usage = object_of(said.get("usage"))
        self._prompt = _count(usage.get("prompt_tokens"), self._prompt)
        self._completion = _count(usage.get("completion_tokens"), self._completion)
        cached = object_of(usage.get("prompt_tokens_details")).get("cached_tokens")
        self._cached = _count(cached, self._cached) or 0

    def usage(self, *, of_answer: bool = True) -> Json:
        """In the dialect's words, where what came from a cache is counted apart."""
        prompt = self._num_prompt_ids if self._prompt is None else self._prompt
        return {
            "input_tokens": max(0, prompt - self._cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._cached,
            "output_tokens": self._num_sampled if of_answer else 0,
        }

    def fills(self, limit: int | None) -> bool:
        """Whether the answer used up its limit, as far as that is known."""
        return limit is None or self._num_sampled == 0 or self._num_sampled >= limit

    @property
    def _num_sampled(self) -> int:
        return self._num_sampled_ids if self._completion is None else self._completion


def _choices(said: Json) -> list[Json]:
    choices = said.get("choices")
    return [object_of(choice) for choice in cast("list[object]", choices)] if isinstance(choices, list) else []


def _length(value: object) -> int:
    return len(cast("list[object]", value)) if isinstance(value, list) else 0


def _count(value: object, otherwise: int | None) -> int | None:
    return value if type(value) is int and value >= 0 else otherwise
