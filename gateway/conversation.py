"""A conversation, read once: its messages, and digests by which an answer of ours is known again when it comes back.

Messages are compared by what they say, in the form of chat completions, so that every dialect is one: role, text and
tool calls. A text is the same as a string or in parts; arguments are the same however they are written down; reasoning
and white space around a text do not count, since agents drop them. System messages are no part of a conversation's
identity. Only implicit episodes are found this way; tokens never are. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from gateway.dialects.base import Asked, Json, object_of
from gateway.message_fold import decode_json_value
from tracker.errors import BadRequest
from tracker.types import Record

SYSTEM: Final = frozenset({"system", "developer"})
MAX_TRACES: Final = 256
"""How many traces are looked up, the last ones: an agent adds less than that after an answer of ours."""
DIGEST_BYTES: Final = 16
_START: Final = bytes(DIGEST_BYTES)
_THOUGHT: Final = re.compile(r"\A\s*(?:<think(?:ing)?>)?.*?</think(?:ing)?>", re.DOTALL)
"""Reasoning that an engine left in the text; some templates open it for the model."""
_NAMED_ID: Final = re.compile(r"""['"]id['"]\s*:\s*['"]([^'"\s]{6,128})['"]""")
"""A tool call that an agent turned into text (smolagents does)."""
MAX_NAMED_IDS: Final = 8
Item = tuple[str, ...]
"""One thing that is said: a text, or a tool call."""


class Conversation(Record, frozen=True):
    """What a request says so far."""

    messages: tuple[Json, ...] = ()
    prompt: bytes = b""
    """The prompt of a completion, which has no messages."""


class Thread(Record, frozen=True):
    """A conversation as a chain of digests, without its system messages."""

    end: bytes
    """Of all of it."""
    traces: tuple[bytes, ...]
    """What answers of ours that it may hold are found by, those of the last one first."""


def conversation_of(asked: Asked) -> Conversation:
    """The conversation in the form that engines are sent; raises `BadRequest` on what cannot be read."""
    raw = asked.fields.get("messages")
    if raw is None:
        return Conversation(prompt=b"".join(asked.messages))
    try:
        messages: object = decode_json_value(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"messages is not valid JSON: {error}.", param="messages", code="invalid_json") from error
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    return Conversation(messages=tuple(cast("Json", one) for one in listed if isinstance(one, dict)))


def text_of(content: object) -> str:
    """What a content says; a part that is no text counts by its digest.

    >>> text_of([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])
    'one two'
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in cast("list[object]", content))
    return ""


def items_of(message: Mapping[str, Any]) -> Iterator[Item]:
    """What a message says, one thing after the other: how it is cut into messages does not matter."""
    role = str(message.get("role", ""))
    text = text_of(message.get("content"))
    if role == "assistant" and "</think" in text:
        text = _THOUGHT.sub("", text, count=1)
    text = text.strip()
    if role == "tool":
        yield role, str(message.get("tool_call_id", "")), text
    elif text:
        yield "system" if role in SYSTEM else role, text
    for name, call_id, arguments in _tool_calls(message):
        yield "call", call_id, name, _normalised(arguments)


def thread_of(conversation: Conversation) -> Thread:
    """The chain of a conversation.

    >>> said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    >>> before = thread_of(Conversation(messages=tuple(said[:1])))
    >>> thread_of(Conversation(messages=tuple(said))).traces == traces_of(before.end, said[1])
    True
    """
    state = _START
    traces: list[bytes] = []
    for message in conversation.messages:
        if message.get("role") in SYSTEM:
            continue
        found = _recalled(state, message) if message.get("role") == "assistant" else ()
        state = _extended(state, items_of(message))
        traces += reversed(found)
    return Thread(end=state, traces=tuple(reversed(traces[-MAX_TRACES:])))


def traces_of(before: bytes, answer: Mapping[str, Any]) -> tuple[bytes, ...]:
    """How an answer that was given after `before` is found: as a whole, and by each of its tool calls.

    The whole comes first, since some engines give the same ids in every conversation.
    """
    items = list(items_of(answer))
    if not items:
        return ()
    ids = dict.fromkeys(call_id for _, call_id, _ in _tool_calls(answer) if call_id)
    return (_extended(before, items), *map(_key_of, ids))


def answer_of(message: bytes) -> Json | None:
    """A recorded answer; `None` for the text of a completion."""
    value: object = decode_json_value(message)
    return cast("Json", value) if isinstance(value, dict) else None


def task_of(conversation: Conversation) -> str:
    """The task of a call that names none: what it begins with, system messages and the first of the user."""
    opening: list[Item] = []
    for message in conversation.messages:
        opening += items_of(message)
        if message.get("role") not in SYSTEM:
            break
    state = _extended(_digest(b"prompt", conversation.prompt), opening)
    return f"auto:{state.hex()}"


def system_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The system messages that a conversation begins with."""
    texts: list[str] = []
    for message in messages:
        if message.get("role") not in SYSTEM:
            break
        texts.append(text_of(message.get("content")))
    return "\n".join(texts)


def _recalled(before: bytes, message: Mapping[str, Any]) -> tuple[bytes, ...]:
    """What a message of the assistant is looked for by: itself, its first tool call, or those that its text names."""
    traces = traces_of(before, message)
    if not traces or len(traces) > 1:
        return traces[:2]
    named = dict.fromkeys(_NAMED_ID.findall(text_of(message.get("content"))))
    return (*traces, *map(_key_of, [*named][:MAX_NAMED_IDS]))


def _key_of(call_id: str) -> bytes:
    return _digest(b"tool call", call_id)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    said = cast("Json", part)
    for name in ("text", "refusal"):
        if isinstance(said.get(name), str):
            return said[name]
    if said.get("type") in ("thinking", "reasoning", "redacted_thinking"):
        return ""
    return f"\0{_digest(b'part', _canonical(said)).hex()}"


def _tool_calls(message: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """(name, id, arguments) of each."""
    calls = message.get("tool_calls")
    for call in cast("list[object]", calls) if isinstance(calls, list) else ():
        if isinstance(call, dict):
            said = cast("Json", call)
            function = object_of(said.get("function"))
            yield str(function.get("name", "")), str(said.get("id") or ""), function.get("arguments")


def _normalised(arguments: object) -> str:
    """Arguments whatever their order and spacing; those that are no JSON as they are."""
    if not isinstance(arguments, str):
        return _canonical(arguments)
    try:
        return _canonical(decode_json_value(arguments.encode("utf-8", "surrogatepass")))
    except (ValueError, RecursionError):
        return arguments.strip()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _extended(state: bytes, items: Iterable[Item]) -> bytes:
    for item in items:
        state = _digest(state, *item)
    return state


def _digest(first: bytes, *parts: str | bytes) -> bytes:
    """Of parts that are told apart by their lengths."""
    hasher = hashlib.blake2b(first, digest_size=DIGEST_BYTES, person=b"hone-identity")
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hasher.update(len(raw).to_bytes(8, "big"))
        hasher.update(raw)
    return hasher.digest()
