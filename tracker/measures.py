"""What the answers of an episode were like, in numbers: lengths, truncation, parse errors, refusals, repetition. Pure.

Measured once, when the episode is archived, from its calls as they are stored: sums, so that they can be added up over
episodes. What they are compared with is left to `trials.py` and `drift.py`. Words that were redacted are not seen, and
need not be. Only calls of policies that were answered count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec

from tracker.types import Call, CallState, Choice, Record

MIXED: Final = -1
"""Stands for the version of an episode that called several."""
SEEN_CHARS: Final = 4_000
"""How much of an answer's text is looked at: from its beginning for refusals, to its end for repetition."""
OPENING_CHARS: Final = 200
"""A refusal is told by how an answer begins."""
REFUSALS: Final = re.compile(
    r"\b(?:I(?:'|’)?m sorry|I apologi[sz]e|sorry, but)\b"
    r"|\bI (?:can(?:no|'|’)t|am (?:not able|unable) to|will not|won(?:'|’)t|must decline)\b"
    r"|\bas an AI\b",
    re.IGNORECASE,
)
MARKUP: Final = re.compile(r"</?tool_call>|<\|?tool_calls?\|?>|<function=|\[TOOL_CALLS\]")
"""What a call of a tool looks like that nobody could parse: it is still in the text."""
GRAM: Final = 4
"""Words of a repeated phrase."""
MIN_WORDS: Final = 24
"""Below, nothing counts as repeated."""
REPEATED: Final = 0.5
"""Share of the phrases of a text that stood in it before, from which it counts as repeated."""


class Measures(Record, frozen=True):
    """Sums over the answers of one policy in one episode."""

    num_calls: int = 0
    num_choices: int = 0
    num_tokens: int = 0
    """Sampled."""
    nats: float = 0.0
    """Minus the log-probabilities of the sampled tokens: over `num_tokens`, an estimate of the entropy at each."""
    num_truncated: int = 0
    num_unparsed: int = 0
    """Choices with a tool call, or JSON that was asked for, that nobody can parse."""
    num_refusals: int = 0
    num_repeated: int = 0
    call_ms: int = 0
    """What the calls took."""

    def share(self, name: str) -> float:
        """A count over the choices."""
        return float(getattr(self, name)) / self.num_choices if self.num_choices else 0.0


def measure(calls: Iterable[Call]) -> dict[str, tuple[int, Measures]]:
    """policy -> (its version, `MIXED` for several; what its answers were like)."""
    by_policy: dict[str, list[Call]] = {}
    for call in calls:
        if call.policy is not None and call.state is CallState.COMPLETED and call.choices:
            by_policy.setdefault(call.policy, []).append(call)
    return {policy: (_version(found), _measured(found)) for policy, found in by_policy.items()}


def is_refusal(text: str) -> bool:
    """Whether an answer begins by declining.

    >>> is_refusal("I'm sorry, but I can't help with that."), is_refusal("The answer is 4.")
    (True, False)
    """
    return REFUSALS.search(text[:OPENING_CHARS]) is not None


def is_repeated(text: str) -> bool:
    """Whether half of its phrases stood in it before: an answer that goes round in circles.

    >>> is_repeated("and so we go on and on " * 9), is_repeated("a b c d " * 2)
    (True, False)
    """
    words = text[-SEEN_CHARS:].split()
    if len(words) < MIN_WORDS:
        return False
    grams = [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) >= REPEATED


def _version(calls: Sequence[Call]) -> int:
    versions = {call.version for call in calls}
    return versions.pop() if len(versions) == 1 else MIXED


def _measured(calls: Sequence[Call]) -> Measures:
    choices = [(call, choice) for call in calls for choice in call.choices]
    texts = [_text(choice) for _, choice in choices]
    return Measures(
        num_calls=len(calls),
        num_choices=len(choices),
        num_tokens=sum(len(choice.sampled_ids) for _, choice in choices),
        nats=_nats(choice for _, choice in choices),
        num_truncated=sum(choice.truncated for _, choice in choices),
        num_unparsed=sum(_is_unparsed(call, choice) for call, choice in choices),
        num_refusals=sum(map(is_refusal, texts)),
        num_repeated=sum(map(is_repeated, texts)),
        call_ms=sum(max(0, call.ended_ms - call.started_ms) for call in calls),
    )


def _nats(choices: Iterable[Choice]) -> float:
    return -math.fsum(value for choice in choices for value in choice.logprobs if -9999.0 < value <= 0)


def _is_unparsed(call: Call, choice: Choice) -> bool:
    if choice.truncated:
        return False
    message = _message(choice)
    if any(not _is_object(_arguments(each)) for each in _tool_calls(message)):
        return True
    text = _text(choice)
    if MARKUP.search(text[:SEEN_CHARS]):
        return True
    return b'"json_' in call.request and _wants_json(call) and not _tool_calls(message) and not _is_json(text)


def _wants_json(call: Call) -> bool:
    request: Any = msgspec.json.decode(call.request)
    asked: Any = request.get("response_format") if isinstance(request, dict) else None  # pyright: ignore
    return isinstance(asked, dict) and str(asked.get("type", "")).startswith("json_")  # pyright: ignore


def _message(choice: Choice) -> Any:
    try:
        return msgspec.json.decode(choice.message)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(choice: Choice) -> str:
    message = _message(choice)
    content: Any = cast("dict[str, Any]", message).get("content") if isinstance(message, dict) else message
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [cast("dict[str, Any]", part).get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _tool_calls(message: Any) -> list[Any]:
    found: Any = cast("dict[str, Any]", message).get("tool_calls") if isinstance(message, dict) else None
    return cast("list[Any]", found) if isinstance(found, list) else []


def _arguments(tool_call: Any) -> Any:
    function: Any = cast("dict[str, Any]", tool_call).get("function") if isinstance(tool_call, dict) else None
    return cast("dict[str, Any]", function).get("arguments") if isinstance(function, dict) else None


def _is_object(arguments: Any) -> bool:
    """Arguments are text that holds an object; none at all are an empty one."""
    if arguments in (None, ""):
        return True
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
