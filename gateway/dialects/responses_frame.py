"""The response object: what stands around the items of an answer, from a stream's first event to its last. Pure."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from gateway.dialects.base import Asked, Json
from gateway.dialects.responses_items import COMPLETED

INCOMPLETE: Final = "incomplete"
CUT_BY: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an answer that is not complete, and what Responses call them."""
DEFAULTS: Final[Json] = {
    "background": False,
    "error": None,
    "incomplete_details": None,
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


class Frame:
    """What one response says of itself and of its request, whose fields it repeats."""

    def __init__(self, asked: Asked, call_id: str) -> None:
        self.request = cast("Json", msgspec.json.decode(asked.request))
        echoed = {name: self.request[name] for name in DEFAULTS if self.request.get(name) is not None}
        self._head: Json = {"id": call_id, "object": "response", **DEFAULTS, **echoed, "model": asked.model}
        self._head["service_tier"] = DEFAULTS["service_tier"]
        self._finish: str | None = None
        self._usage: Json | None = None

    @property
    def has_begun(self) -> bool:
        """Whether any event of the engine's came."""
        return "created_at" in self._head

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    @property
    def status(self) -> str:
        """How the answer ends."""
        return INCOMPLETE if self._finish in CUT_BY else COMPLETED

    def take(self, said: Json) -> None:
        """Note what an event says of the answer as a whole."""
        self._head.setdefault("created_at", said.get("created") or 0)
        if usage := as_fields(said.get("usage")):
            self._usage = _counts(usage)

    def finish(self, reason: object) -> None:
        """Note the finish reason; the first one counts."""
        if self._finish is None and reason is not None:
            self._finish = str(reason)

    def response(self, status: str, items: list[Json]) -> Json:
        """The object as it stands."""
        response: Json = {**self._head, "status": status, "output": items, "usage": None}
        if status in (COMPLETED, INCOMPLETE):
            response["usage"] = self._usage
        if status == INCOMPLETE:
            response["incomplete_details"] = {"reason": CUT_BY[str(self._finish)]}
        return response


def as_fields(value: object) -> Json:
    """What an object says; nothing, where there is none."""
    return cast("Json", value) if isinstance(value, dict) else {}


def _counts(given: Json) -> Json:
    """Token counts under the names of this dialect."""
    taken, made = as_fields(given.get("prompt_tokens_details")), as_fields(given.get("completion_tokens_details"))
    num_in, num_out = given.get("prompt_tokens") or 0, given.get("completion_tokens") or 0
    return {
        "input_tokens": num_in,
        "input_tokens_details": {"cached_tokens": taken.get("cached_tokens") or 0, "cache_write_tokens": 0},
        "output_tokens": num_out,
        "output_tokens_details": {"reasoning_tokens": made.get("reasoning_tokens") or 0},
        "total_tokens": given.get("total_tokens") or num_in + num_out,
    }
