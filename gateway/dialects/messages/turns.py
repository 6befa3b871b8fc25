"""Anthropic's conversation in the form of chat completions, as the engine is asked. Pure.

Turns of one role that follow each other are one turn, as the dialect says. Text blocks of users and systems stay parts
of their own, those of the assistant are one text: so an answer that comes back as blocks is the message that the engine
gave. The results of tools come first in their turn, whatever stands around them, with the images in them behind; an
`is_error` is told in words, since chat has no field for it. Thinking goes back as reasoning. A header that Claude Code
puts among its system texts, new with every request, is no word to the model and would make every prompt a new one: it
is left out. Documents, remote media and blocks of tools that others run are refused, never dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from gateway.dialects.base import Json, decode_as
from gateway.dialects.messages.thinking import read_thinking
from tracker.errors import BadRequest

BILLING: Final = "x-anthropic-billing-header"
_TELLS_ERROR: Final = re.compile(r"\W*\w*error", re.IGNORECASE)
"""A result that begins by saying that it is an error."""
_ABSENT: Final = msgspec.Raw(b"")


class Block(msgspec.Struct, kw_only=True):
    """A content block: what any of the types that are taken holds."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = _ABSENT
    tool_use_id: str = ""
    content: msgspec.Raw = _ABSENT
    is_error: bool | None = None
    source: msgspec.Raw = _ABSENT


class _Source(msgspec.Struct):
    type: str
    media_type: str = ""
    data: str = ""


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


@dataclass(slots=True)
class _Turn:
    """One turn, taken apart."""

    role: str
    parts: list[Json] = field(default_factory=list[Json])
    """Words and images."""
    results: list[Json] = field(default_factory=list[Json])
    """Results of tools, each a message of its own in chat."""
    images: list[Json] = field(default_factory=list[Json])
    """Those in results, which chat allows in a user's message only."""
    calls: list[Json] = field(default_factory=list[Json])
    thinking: list[str] = field(default_factory=list[str])

    def join(self, later: _Turn) -> None:
        """Go on with a later turn of the same role."""
        self.parts += later.parts
        self.results += later.results
        self.images += later.images
        self.calls += later.calls
        self.thinking += later.thinking


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as engines are asked for its next message."""

    messages: list[Json]
    has_media: bool
    is_open: bool
    """It ends with words of the assistant, which the answer continues."""


def read_conversation(system: str | Sequence[Block], raws: Sequence[msgspec.Raw], kept: int | None) -> Conversation:
    """Read system prompt and messages; of thinking, what the last `kept` turns of the assistant hold (`None`: all)."""
    turns: list[_Turn] = [_read_turn("system", system, "system")] if system else []
    for number, raw in enumerate(raws):
        where = f"messages[{number}]"
        message = decode_as(raw, _Message, where)
        turn = _read_turn(message.role, message.content, where)
        if turns and turns[-1].role == turn.role:
            turns[-1].join(turn)
        else:
            turns.append(turn)
    _forget_thinking(turns, kept)
    last = turns[-1]
    if last.role == "assistant" and last.calls:
        told = "messages: the last turn has tool_use blocks; add their tool_result blocks in a user turn behind it."
        raise BadRequest(told, param="messages")
    return Conversation(
        messages=[message for turn in turns for message in _in_chat(turn)],
        has_media=any(part["type"] != "text" for turn in turns for part in (*turn.parts, *turn.images)),
        is_open=last.role == "assistant",
    )


# blocks in


def _read_turn(role: str, content: str | Sequence[Block], where: str) -> _Turn:
    turn = _Turn(role)
    if isinstance(content, str):
        turn.parts.append(_words(content))
        return turn
    if role == "user" and not content:
        raise BadRequest(f"{where}.content: write at least one block.", param=f"{where}.content")
    for number, block in enumerate(content):
        _add_block(turn, block, f"{where}.content[{number}]" if where != "system" else f"system[{number}]")
    return turn


def _add_block(turn: _Turn, block: Block, where: str) -> None:
    match turn.role, block.type:
        case "system", "text":
            if not block.text.startswith(BILLING):
                turn.parts.append(_words(block.text))
        case "user" | "assistant", "text":
            turn.parts.append(_words(block.text))
        case "user", "image":
            turn.parts.append(_image(block.source, f"{where}.source"))
        case "user", "tool_result":
            _add_result(turn, block, where)
        case "assistant", "tool_use":
            turn.calls.append(_call(block, where))
        case "assistant", "thinking":
            turn.thinking.append(read_thinking(block.thinking, block.signature, where))
        case _:
            raise _refused_block(turn.role, block.type, where)


def _add_result(turn: _Turn, block: Block, where: str) -> None:
    if not block.tool_use_id:
        raise BadRequest(f"{where}.tool_use_id: name the tool_use that this is the result of.", param=where)
    texts: list[str] = []
    for number, inner in enumerate(_result_blocks(block.content, f"{where}.content")):
        inside = f"{where}.content[{number}]"
        if inner.type == "text":
            texts.append(inner.text)
        elif inner.type == "image":
            turn.images.append(_image(inner.source, f"{inside}.source"))
        else:
            raise _refused_block("tool_result", inner.type, inside)
    if block.is_error and not (texts and _TELLS_ERROR.match(texts[0])):
        texts = [f"Error: {texts[0]}" if texts else "Error", *texts[1:]]
    content = _collapsed([_words(text) for text in texts])
    turn.results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})


def _result_blocks(content: msgspec.Raw, where: str) -> list[Block]:
    if bytes(content) in (b"", b"null"):
        return []
    if bytes(content).startswith(b'"'):
        return [Block(type="text", text=decode_as(content, str, where))]
    return decode_as(content, list[Block], where)


def _call(block: Block, where: str) -> Json:
    """A tool call, its arguments written as engines write them: so what they gave comes back as they gave it."""
    if not (block.id and block.name):
        raise BadRequest(f"{where}: a tool_use has an id and a name.", param=where)
    arguments = decode_as(block.input, Json, f"{where}.input") if bytes(block.input) not in (b"", b"null") else {}
    try:
        written = json.dumps(arguments, ensure_ascii=False)
    except RecursionError as error:
        raise BadRequest(f"{where}.input: it is nested too deeply.", param=f"{where}.input") from error
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": written}}


def _image(raw: msgspec.Raw, where: str) -> Json:
    source = decode_as(raw, _Source, where)
    if source.type == "url":
        told = f"{where}: a remote address is never fetched; send the image as base64 instead."
        raise BadRequest(told, param=where, code="remote_media")
    if source.type != "base64" or not source.media_type.startswith("image/"):
        told = f"{where}: send the image as base64, with its media_type."
        raise BadRequest(told, param=where, code="unsupported_block")
    return {"type": "image_url", "image_url": {"url": f"data:{source.media_type};base64,{source.data}"}}


def _refused_block(holder: str, kind: str, where: str) -> BadRequest:
    match kind:
        case "document" | "search_result":
            instead = "give its text in a text block instead"
        case "redacted_thinking":
            instead = "this gateway never gives such blocks and cannot read them: leave it out"
        case "tool_reference" | "tool_addition" | "tool_removal":
            instead = "name all tools in tools instead"
        case _:
            instead = "write text, image and tool_result for users, text, tool_use and thinking for the assistant"
    return BadRequest(f"{where}: {kind} is not taken in {holder}: {instead}.", param=where, code="unsupported_block")


def _words(text: str) -> Json:
    return {"type": "text", "text": text}


# chat out


def _forget_thinking(turns: Sequence[_Turn], kept: int | None) -> None:
    mine = [turn for turn in turns if turn.role == "assistant" and turn.thinking]
    for turn in mine if kept == 0 else mine[:-kept] if kept is not None else ():
        turn.thinking.clear()


def _in_chat(turn: _Turn) -> list[Json]:
    if turn.role == "assistant":
        return [_answer(turn)]
    parts = [*turn.images, *turn.parts]
    spoken: list[Json] = [{"role": turn.role, "content": _collapsed(parts)}] if parts else []
    return [*turn.results, *spoken]


def _answer(turn: _Turn) -> Json:
    """The assistant's message as an engine gives it."""
    text = "".join(part["text"] for part in turn.parts)
    message: Json = {"role": "assistant", "content": text or None if turn.calls else text}
    if thinking := "".join(turn.thinking):
        message |= {"reasoning": thinking, "reasoning_content": thinking}
    if turn.calls:
        message["tool_calls"] = turn.calls
    return message


def _collapsed(parts: list[Json]) -> str | list[Json]:
    """One text as it is; more, or an image, as parts."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
