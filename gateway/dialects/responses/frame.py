"""The response object: what stands around the items of an answer, from a stream's first event to its last. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.dialects.base import Asked, Json, decode_as, object_of
from gateway.dialects.responses.items_out import COMPLETED
from gateway.dialects.responses.tools import namespaces
from gateway.message_fold import encode_json

INCOMPLETE: Final = "incomplete"
CUT_BY: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an answer that is not complete, and what Responses call them."""
DEFAULTS: Final[Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response says of its request where the agent did not."""
SEALED_REASONING: Final = "reasoning.encrypted_content"
NOTHING: Final = b"[]"


class StreamOptions(msgspec.Struct):
    """What of `stream_options` this dialect defines."""

    include_obfuscation: bool | None = None


class Frame:
    """What one response says of itself and of its request, whose fields it repeats as they were written."""

    def __init__(self, asked: Asked, call_id: str) -> None:
        given = decode_as(asked.request, dict[str, msgspec.Raw])
        self.seals = SEALED_REASONING in decode_as(given.get("include", NOTHING), list[str])
        """Whether reasoning comes with `encrypted_content` too."""
        self.pads = decode_as(given.get("stream_options", b"{}"), StreamOptions).include_obfuscation
        """Whether deltas are padded to equal lengths."""
        self.functions = namespaces(decode_as(given.get("tools", NOTHING), list[Json]))
        """Namespace and name of the functions that have a namespace, by their name at the engine."""
        echoed = {name: raw for name, raw in given.items() if name in DEFAULTS and name != "service_tier"}
        head = {"id": call_id, "object": "response", **DEFAULTS, **echoed, "model": asked.model}
        self._head = msgspec.json.encode(head).removesuffix(b"}")
        self._created: object = None
        self._finish: str | None = None
        self._usage: Json | None = None

    @property
    def has_begun(self) -> bool:
        """Whether any event of the engine's came."""
        return self._created is not None

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    @property
    def status(self) -> str:
        """How the answer ends."""
        return INCOMPLETE if self._finish in CUT_BY else COMPLETED

    def take(self, said: Json) -> None:
        """Note what an event says of the answer as a whole."""
        if self._created is None:
            self._created = said.get("created") or 0
        if usage := object_of(said.get("usage")):
            self._usage = _counts(usage)

    def finish(self, reason: object) -> None:
        """Note the finish reason; the first one counts."""
        if self._finish is None and reason is not None:
            self._finish = str(reason)

    def response(self, status: str, items: list[Json], error: Json | None = None) -> bytes:
        """The object as it stands."""
        is_ended = status in (COMPLETED, INCOMPLETE)
        now: Json = {
            "created_at": self._created or 0,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": CUT_BY[str(self._finish)]} if status == INCOMPLETE else None,
            "output": items,
            "usage": self._usage if is_ended else None,
        }
        return self._head + b"," + encode_json(now)[1:]


def _counts(given: Json) -> Json:
    """Token counts under the names of this dialect."""
    taken, made = object_of(given.get("prompt_tokens_details")), object_of(given.get("completion_tokens_details"))
    num_in, num_out = _count(given.get("prompt_tokens")), _count(given.get("completion_tokens"))
    return {
        "input_tokens": num_in,
        "input_tokens_details": {"cached_tokens": _count(taken.get("cached_tokens")), "cache_write_tokens": 0},
        "output_tokens": num_out,
        "output_tokens_details": {"reasoning_tokens": _count(made.get("reasoning_tokens"))},
        "total_tokens": num_in + num_out,
    }


def _count(value: object) -> int:
    return value if type(value) is int else 0
