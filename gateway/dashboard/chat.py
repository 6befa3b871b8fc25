"""A conversation as people read it: the messages of every dialect as speakers and what they said, text only.

What an agent sent may be anything: a message that has none of the known forms is shown as the JSON that it is. Nothing
in it is ever more than text. Of a call only what its parent had not is new; the parent's answer, sent back as it was
given, is not told twice. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec

from tracker.types import Call

Json = dict[str, Any]
MAX_CHARS: Final = 20_000
"""Of one piece of a message on a page; the raw request has the rest."""
TEXTS: Final = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
MEDIA: Final = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio", "video_url", "file", "input_file", "document"}
)


@dataclass(frozen=True, slots=True)
class Said:
    """One piece of a message."""

    kind: str
    """`text`, `thought`, `tool`, `result`, `media` or `json`."""
    text: str
    title: str = ""
    """The name of a tool, or whose result it is."""
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """What one speaker said."""

    speaker: str
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A call as a part of a conversation."""

    num_before: int
    """Messages that the call it goes on from had too."""
    after: str | None
    """The call that these are counted from, which may be none it continues token by token."""
    repeats_answer: bool
    """The first message that is new is that call's own answer, sent back as it was given."""
    is_changed: bool
    """It stands in the place of that answer and is another."""
    new: tuple[Message, ...]
    answers: tuple[tuple[int, Message], ...]
    """(index of the choice, what it said)."""


def message_of(raw: bytes) -> Message:
    """A message of any dialect.

    >>> message_of(b'{"role": "user", "content": [{"type": "text", "text": "hi"}]}')
    Message(speaker='user', said=(Said(kind='text', text='hi', title='', is_cut=False),))
    >>> message_of(b'{"type": "function_call_output", "call_id": "c1", "output": "42"}').speaker
    'tool'
    """
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return Message(speaker="unreadable", said=(_cut(Said(kind="json", text=raw.decode("utf-8", "replace"))),))
    if isinstance(value, str):
        return Message(speaker="text", said=(_cut(Said(kind="text", text=value)),))
    if not isinstance(value, dict):
        return Message(speaker="message", said=(_json(value),))
    item = cast("Json", value)
    speaker = _speaker(item)
    return Message(speaker=speaker, said=tuple(_cut(said) for said in _pieces(item, speaker)))


def turn_of(call: Call, before: Call | None) -> Turn:
    """A call beside the call whose messages it goes on from."""
    known = () if before is None else before.messages
    num_before = _num_common(known, call.messages)
    rest = list(call.messages[num_before:])
    repeats = is_changed = False
    if before is not None and num_before == len(known) and rest:
        first = message_of(rest[0])
        given = [message_of(choice.message) for choice in before.choices]
        repeats = any(_is_same(first, one) for one in given)
        is_changed = not repeats and bool(given) and first.speaker == "assistant"
    new = tuple(message_of(raw) for raw in (rest[1:] if repeats else rest))
    return Turn(
        num_before=num_before,
        after=None if before is None or not num_before else before.call_id,
        repeats_answer=repeats,
        is_changed=is_changed,
        new=new,
        answers=tuple(
            (choice.index, message_of(choice.message)) for choice in call.choices if choice.message != b"null"
        ),
    )


def before_of(call: Call, calls: Sequence[Call], parents: Mapping[str, str | None]) -> Call | None:
    """The call whose messages a call goes on from: its parent; where it has none, the latest earlier call of which it
    repeats the most messages."""
    by_id = {one.call_id: one for one in calls}
    parent = parents.get(call.call_id)
    if parent is not None:
        return by_id.get(parent)
    earlier = [one for one in calls if (one.index, one.call_id) < (call.index, call.call_id)]
    shared = [(_num_common(one.messages, call.messages), place) for place, one in enumerate(earlier)]
    most = max(shared, default=(0, 0))
    return earlier[most[1]] if most[0] else None


def _num_common(left: Sequence[bytes], right: Sequence[bytes]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


def _is_same(sent: Message, given: Message) -> bool:
    """Whether an answer came back as it was; agents may leave its hidden reasoning out."""

    def words(message: Message) -> list[tuple[str, str, str]]:
        kept = (said for said in message.said if said.kind != "thought" and said.text.strip())
        return [(said.kind, said.title, said.text.strip()) for said in kept]

    return sent.speaker == given.speaker == "assistant" and words(sent) == words(given)


def _speaker(item: Json) -> str:
    kind = item.get("type")
    if kind in ("function_call", "reasoning", "custom_tool_call"):
        return "assistant"
    if kind in ("function_call_output", "custom_tool_call_output"):
        return "tool"
    role = item.get("role")
    return role if isinstance(role, str) and role else "message"


def _pieces(item: Json, speaker: str) -> Iterator[Said]:
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        yield _tool(item.get("name"), item.get("arguments", item.get("input")))
        return
    if kind in ("function_call_output", "custom_tool_call_output"):
        yield Said(kind="result", title=_text(item.get("call_id")), text=_flat(item.get("output")))
        return
    for name in ("reasoning_content", "reasoning"):
        if isinstance(item.get(name), str) and item[name]:
            yield Said(kind="thought", text=item[name])
    if kind == "reasoning":
        yield Said(kind="thought", text=_flat([*_listed(item.get("summary")), *_listed(item.get("content"))]))
        return
    yield from _content(item.get("content"), speaker, _text(item.get("tool_call_id") or item.get("name")))
    for call in _listed(item.get("tool_calls")):
        function: object = cast("Json", call).get("function") if isinstance(call, dict) else None
        named = cast("Json", function) if isinstance(function, dict) else {}
        yield _tool(named.get("name"), named.get("arguments")) if named else _json(cast("object", call))


def _content(content: object, speaker: str, title: str) -> Iterator[Said]:
    kind = "result" if speaker == "tool" else "text"
    if isinstance(content, str):
        if content:
            yield Said(kind=kind, text=content, title=title if kind == "result" else "")
    elif isinstance(content, list):
        for part in cast("list[object]", content):
            yield _part(part, kind, title)
    elif content is not None:
        yield _json(content)


def _part(part: object, kind: str, title: str) -> Said:
    """One part of a message's content."""
    if isinstance(part, str):
        return Said(kind=kind, text=part)
    item = cast("Json", part) if isinstance(part, dict) else {}
    match item.get("type"):
        case str(name) if name in TEXTS and isinstance(item.get("text"), str):
            return Said(kind=kind, text=item["text"], title=title if kind == "result" else "")
        case "refusal":
            return Said(kind="text", text=_text(item.get("refusal")))
        case "thinking":
            return Said(kind="thought", text=_text(item.get("thinking")))
        case "tool_use":
            return _tool(item.get("name"), item.get("input"))
        case "tool_result":
            return Said(kind="result", title=_text(item.get("tool_use_id")), text=_flat(item.get("content")))
        case str(name) if name in MEDIA:
            return Said(kind="media", text=f"{name}, not shown here")
        case _:
            return _json(cast("object", part))


def _tool(name: object, arguments: object) -> Said:
    text = arguments if isinstance(arguments, str) else _pretty(arguments)
    return Said(kind="tool", title=_text(name), text=_indented(text))


def _indented(text: str) -> str:
    """Arguments as JSON to be read, where they are JSON."""
    try:
        return msgspec.json.format(text.encode("utf-8", "surrogatepass"), indent=2).decode("utf-8", "replace")
    except msgspec.MsgspecError:
        return text


def _flat(value: object) -> str:
    """The text of a result: of its text parts, where it is made of parts."""
    if isinstance(value, str):
        return value
    parts = [_part(part, "text", "").text for part in _listed(value)]
    return "\n".join(parts) if parts else _pretty(value)


def _json(value: object) -> Said:
    return _cut(Said(kind="json", text=_pretty(value)))


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8", "replace")


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else _pretty(value)


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _cut(said: Said) -> Said:
    if len(said.text) <= MAX_CHARS:
        return said
    return replace(said, text=said.text[:MAX_CHARS], is_cut=True)


def spoken(messages: Iterable[bytes]) -> list[Message]:
    """All of a request's messages."""
    return [message_of(raw) for raw in messages]
