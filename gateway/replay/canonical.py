"""When two requests are the same, and where two differ. Pure.

A request is its dialect, its conversation and its other fields, each as JSON whatever its order and spacing. Left out
is what does not decide what is answered, or is another each time: the sampling seed, how the answer is sent, labels for
users and caches, and the name of what is continued, whose conversation stands there instead.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gateway.message_fold import decode_json_value
from tracker.types import Call, Record

VOLATILE: Final = frozenset(
    {
        "client_metadata",
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
CONTEXT: Final = 3
"""Lines around a difference."""
MAX_LINES: Final = 80
"""Of a difference; what follows is seldom read."""


class Asking(Record, frozen=True):
    """A request, told so that equal ones are equal."""

    dialect: str
    fields: str
    """Its fields without the conversation, as canonical JSON."""
    messages: tuple[str, ...] = ()
    """Each as canonical JSON."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex): equal for equal requests."""
        whole = json.dumps((self.dialect, self.fields, self.messages))
        return hashlib.sha256(whole.encode()).hexdigest()


def asking_of(dialect: str, request: bytes, messages: Iterable[bytes]) -> Asking:
    """A request as it is recorded: its body without the conversation, and that.

    >>> one = asking_of("chat", b'{"model": "m", "seed": 1}', [b'{"role":"user","content":"hi"}'])
    >>> one == asking_of("chat", b'{"stream":true,"model":"m"}', [b'{"content": "hi", "role": "user"}'])
    True
    """
    fields: dict[str, Any] = decode_json_value(request)
    told = {name: value for name, value in fields.items() if name not in VOLATILE and value is not None}
    return Asking(
        dialect=dialect,
        fields=_canonical(told),
        messages=tuple(_canonical(decode_json_value(message)) for message in messages),
    )


def asking_of_call(call: Call) -> Asking:
    """What a recorded call was asked."""
    return asking_of(call.dialect, call.request, call.messages)


def num_shared(one: Asking, other: Asking) -> int:
    """How many messages two conversations begin with together."""
    pairs = zip(one.messages, other.messages, strict=False)
    return next(
        (place for place, (mine, its) in enumerate(pairs) if mine != its), min(map(len, (one.messages, other.messages)))
    )


def nearest(asked: Asking, recorded: Sequence[Asking]) -> Asking | None:
    """The recorded request that shares the longest beginning; of several one of the same dialect and fields, then the
    shortest."""

    def closeness(other: Asking) -> tuple[bool, int, bool, int]:
        return (
            other.dialect == asked.dialect,
            num_shared(asked, other),
            other.fields == asked.fields,
            -len(other.messages),
        )

    return max(recorded, key=closeness, default=None)


def difference(recorded: Asking, asked: Asking) -> Iterator[str]:
    """Where a request is another than the recorded one, as lines of a unified diff."""
    lines = difflib.unified_diff(_lines(recorded), _lines(asked), "recorded", "asked for now", n=CONTEXT, lineterm="")
    for number, line in enumerate(lines):
        if number == MAX_LINES:
            yield "…"
            return
        yield line


def _lines(asking: Asking) -> list[str]:
    told = {
        "dialect": asking.dialect,
        **decode_json_value(asking.fields.encode()),
        "messages": [decode_json_value(message.encode()) for message in asking.messages],
    }
    return json.dumps(told, indent=1, ensure_ascii=False).splitlines()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
