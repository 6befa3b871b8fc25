"""Whether an agent sent back unchanged what it had received: conversations as chains of digests, one for each message.

What counts as the same message: the same role, the same text, the same tool calls by id, name and the value of their
arguments (an object's keys have no order, spaces between them no meaning). Hidden reasoning that an agent leaves out is
no change, one that it sends otherwise than it came is. Fields that shape the rendering of the whole conversation (its
tools, arguments of the template) begin the chain, so that a change of them is a change of every message. The chain is
keyed by episode: equal text in two episodes has different digests. Pure; which ids follow is left to `prompt.py`.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from gateway.dialects.base import Json, object_of
from gateway.message_fold import REASONING, decode_json_value
from tracker.deltas import DIGEST_BYTES, episode_key
from tracker.errors import BadRequest
from tracker.types import Call, CallState, Choice, Record

SHAPING: Final = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "reasoning_effort",
    "tools",
)
"""Fields of a request that templates may see beside the messages."""
ASSISTANT: Final = "assistant"


class Conversation(Record, frozen=True):
    """The messages of one request, in the form of chat completions."""

    messages: tuple[Json, ...]
    digests: tuple[bytes, ...]
    """`digests[n]` covers what shapes the rendering and the first n messages."""
    thoughts: dict[int, bytes]
    """Place of a message -> digest of the hidden reasoning that was sent with it."""

    @property
    def has_answers(self) -> bool:
        """Whether any message is the assistant's."""
        return any(message.get("role") == ASSISTANT for message in self.messages)


class Ending(Record, frozen=True):
    """One answer of an earlier call, as what an agent may go on from."""

    call_id: str
    index: int
    """Order of the call in its episode."""
    choice: int
    digest: bytes
    """Of the call's conversation with this answer after it."""
    thought: bytes | None
    """Digest of the hidden reasoning that came with it."""
    thoughts: dict[int, bytes]
    """Hidden reasoning known of the messages before it."""
    prompt_ids: array[int]
    sampled_ids: tuple[int, ...]
    truncated: bool
    source: tuple[str, int] | None
    """The (call id, choice) that the call itself went on from."""

    @property
    def num_ids(self) -> int:
        return len(self.prompt_ids) + len(self.sampled_ids)

    def ids(self) -> tuple[int, ...]:
        """Everything the engine saw and said."""
        return (*self.prompt_ids, *self.sampled_ids)


class Match(Record, frozen=True):
    """An earlier answer that the conversation goes on from."""

    ending: Ending
    num_messages: int
    """How many messages of the conversation it covers; the last of them is the answer."""

    @property
    def known(self) -> dict[int, bytes]:
        """The hidden reasoning known of the messages it covers."""
        own = self.ending.thought
        return self.ending.thoughts if own is None else {**self.ending.thoughts, self.num_messages - 1: own}

    def fits(self, conversation: Conversation) -> bool:
        """Whether no hidden reasoning came back otherwise than it went out."""
        known, sent = self.known, conversation.thoughts.items()
        return all(known.get(place) == thought for place, thought in sent if place < self.num_messages)


def read_conversation(fields: Mapping[str, msgspec.Raw], policy: str, episode_id: str) -> Conversation:
    """The conversation of a request, from its fields in the form of chat completions; raises `BadRequest`."""
    try:
        return _read(fields, policy, episode_key(episode_id))
    except (RecursionError, ValueError) as error:
        raise BadRequest("messages: they are nested too deeply.", param="messages") from error


def endings(call: Call) -> list[Ending]:
    """The answers of a recorded call that an agent may have received whole, with sound ids."""
    prompting = call.prompting
    if prompting is None or call.state is not CallState.COMPLETED or call.reason is not None:
        return []
    key = episode_key(call.episode_id)
    prompt = array("q", call.prompt_ids)
    source = (prompting.source, prompting.choice) if prompting.source else None
    found: list[Ending] = []
    for choice in call.choices:
        answer = _answer(choice)
        if answer is None:
            continue
        found.append(
            Ending(
                call_id=call.call_id,
                index=call.index,
                choice=choice.index,
                digest=_digest(key, prompting.history + canonical(answer)),
                thought=_thought(key, answer),
                thoughts=dict(prompting.thoughts),
                prompt_ids=prompt,
                sampled_ids=choice.sampled_ids,
                truncated=choice.truncated,
                source=source,
            )
        )
    return found


def canonical(message: Json) -> bytes:
    """What of a message counts, so that equal messages are equal bytes; hidden reasoning is left out.

    >>> canonical({"role": "user", "content": [{"type": "text", "text": "hi"}]}) == canonical(
    ...     {"content": "hi", "role": "user"})
    True
    """
    calls = cast("list[object]", message.get("tool_calls") or [])
    told: list[object] = [
        message.get("role"),
        _content(message.get("content")),
        [_tool_call(call) for call in calls],
        message.get("tool_call_id"),
        message.get("name"),
    ]
    return _dumped(told)


def _read(fields: Mapping[str, msgspec.Raw], policy: str, key: bytes) -> Conversation:
    messages = tuple(cast("list[Json]", decode_json_value(bytes(fields["messages"]))))
    shaping: Json = {name: decode_json_value(bytes(fields[name])) for name in SHAPING if name in fields}
    shaping = {name: value for name, value in shaping.items() if value not in ([], {})}
    is_tool_free = bytes(fields.get("tool_choice", b"")) == b'"none"'
    digests = [_digest(key, _dumped([policy, is_tool_free, shaping]))]
    for message in messages:
        digests.append(_digest(key, digests[-1] + canonical(message)))
    thoughts = {place: thought for place, one in enumerate(messages) if (thought := _thought(key, one)) is not None}
    return Conversation(messages=messages, digests=tuple(digests), thoughts=thoughts)


def _answer(choice: Choice) -> Json | None:
    """The message of a choice whose ids are sound."""
    if choice.reason is not None or not choice.sampled_ids:
        return None
    answer: object = decode_json_value(choice.message)
    return cast("Json", answer) if isinstance(answer, dict) else None


def _content(content: object) -> object:
    """A text, or what the parts are; one text part is that text."""
    if not isinstance(content, list):
        return content or ""
    parts = [_part(part) for part in cast("list[object]", content)]
    match parts:
        case []:
            return ""
        case [str(text)]:
            return text
        case _:
            return parts


def _part(part: object) -> object:
    text: object = object_of(part).get("text")
    return text if isinstance(text, str) else part


def _tool_call(call: object) -> object:
    fields = object_of(call)
    named = object_of(fields.get("function"))
    return [fields.get("id"), named.get("name"), _arguments(named.get("arguments"))] if named else call


def _arguments(value: object) -> object:
    """The value that arguments are, or their text where they are no JSON; none at all are an empty object."""
    text = value if isinstance(value, str) else json.dumps({} if value is None else value)
    try:
        return _dumped(_plain(json.loads(text or "{}"))).decode()
    except (ValueError, RecursionError):
        return [text]


def _plain(value: Any) -> Any:
    """Numbers as every language writes them back: 1.0 is 1."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _plain(item) for name, item in cast("Json", value).items()}
        case list():
            return [_plain(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


def _thought(key: bytes, message: Json) -> bytes | None:
    """Digest of the hidden reasoning of an assistant's message, if any was sent."""
    if message.get("role") != ASSISTANT:
        return None
    told = next((text for name in REASONING if isinstance(text := message.get(name), str) and text), None)
    return None if told is None else _digest(key, _dumped(told))


def _dumped(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(key: bytes, told: bytes) -> bytes:
    return hashlib.blake2b(told, key=key, digest_size=DIGEST_BYTES, person=b"hone-history").digest()
