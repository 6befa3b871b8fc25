"""How Anthropic's Messages tell errors and name their events. Pure.

An error's type follows from its status, as SDKs expect it; our code stands under `details.error_code`. A context that
does not fit is told in the words that agents of this dialect look for (they shorten the conversation, or ask for less),
with the engine's own words behind them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.dialects.base import Json
from gateway.dialects.openai_form import MAX_MESSAGE_CHARS
from gateway.message_fold import encode_json
from tracker.errors import HoneError

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
OVERFLOW: Final = "context_length_exceeded"
_WINDOW: Final = re.compile(r"maximum context length is (\d+)|(?:max_model_len|max_total_tokens)=(\d+)")
_INPUT: Final = re.compile(r"(?:has|contains) (?:at least )?(\d+) input tokens")
_OUTPUT: Final = re.compile(r"too large: (\d+)|max_(?:completion_)?tokens=(\d+)")


class MessagesForm:
    """Errors as Anthropic tells them."""

    def error_body(self, error: HoneError) -> Json:
        """The JSON of an answer that is no success."""
        details: Json = {"error_code": error.code}
        if error.param is not None:
            details["param"] = error.param
        message = _overflow(error.message) if error.code == OVERFLOW else error.message
        return {
            "type": "error",
            "error": {"type": type_of(error.status), "message": message[:MAX_MESSAGE_CHARS], "details": details},
        }

    def error_event(self, error: HoneError) -> bytes:
        """The event that ends a stream which had begun."""
        return encode_named(self.error_body(error))


def type_of(status: int) -> str:
    """The type of an error with this status.

    >>> type_of(410), type_of(502)
    ('invalid_request_error', 'api_error')
    """
    return TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")


def encode_named(data: Json) -> bytes:
    """An event under the name of its type."""
    return b"event: %s\ndata: %s\n\n" % (str(data["type"]).encode(), encode_json(data))


def _overflow(said: str) -> str:
    """What an engine says of a context that does not fit, in this dialect's words."""
    window, given, wanted = (_number(mark, said) for mark in (_WINDOW, _INPUT, _OUTPUT))
    if given and window and wanted:
        told = f"input length and `max_tokens` exceed context limit: {given} + {wanted} > {window}"
    elif given and window:
        told = f"prompt is too long: {given} tokens > {window} maximum"
    elif wanted and window:
        told = f"max_tokens: {wanted} > {window}, which is the maximum allowed number of output tokens"
    else:
        told = "prompt is too long"
    return f"{told}. The engine says: {said}"


def _number(mark: re.Pattern[str], said: str) -> str | None:
    found = mark.search(said)
    return None if found is None else next(number for number in found.groups() if number)
