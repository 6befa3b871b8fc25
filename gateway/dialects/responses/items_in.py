"""Items of the Responses API as engines are asked with them: a conversation in the form of chat completions.

What one answer of the model was given back as several items (reasoning, words, tool calls) becomes one assistant
message again, equal to the one the engine said. With no input between them, items belong together where their ids are
of one answer; without such ids, where a tool call follows, or where reasoning or a tool call not answered yet stands
before. Text parts stay parts, and a text stays a text. Refused, because nothing here could tell the model of them:
references to stored items, files, media by remote URL, items of tools that run at OpenAI. Reasoning that only OpenAI
can decrypt is left out. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Final, cast

from gateway.dialects.base import Json, decode_as, object_of
from tracker.errors import BadRequest

ROLES: Final = ("assistant", "developer", "system", "user")
WORDS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
SEALED: Final = "hone1."
"""What `encrypted_content` of ours begins with: the reasoning itself, for clients that bring back nothing else."""

_OWN_ID: Final = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{2}")


def seal(text: str) -> str:
    """Reasoning as the opaque text that clients carry along.

    >>> unseal(seal("first, I look")), unseal("gAAAAAB of somebody else")
    ('first, I look', '')
    """
    return SEALED + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def unseal(sealed: str) -> str:
    """The reasoning in it; empty if it is none of ours."""
    if not sealed.startswith(SEALED):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(SEALED), validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return ""


class Conversation:
    """Takes items in order; `messages` is what they say."""

    def __init__(self, instructions: str | None = None) -> None:
        self.messages: list[Json] = []
        self.has_media = False
        """Images or sound: their tokens are not what a trainer could run."""
        self._turn: _Turn | None = None
        if instructions is not None:
            self.messages.append({"role": "system", "content": instructions})

    def add_all(self, items: Iterable[bytes]) -> None:
        """Take every item; raises `BadRequest` naming the one that does not fit."""
        for number, raw in enumerate(items):
            where = f"input[{number}]"
            self._add(decode_as(raw, Json, where), where)
        self._end_turn()

    def _add(self, item: Json, where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "message":
            self._add_message(item, where)
        elif kind == "function_call":
            self._turn_for(item, is_call=True).add_call(item, where)
        elif kind == "function_call_output":
            self._add_output(item, where)
        elif kind == "reasoning":
            if text := _reasoning(item):
                self._turn_for(item, is_call=False).add_reasoning(text)
        else:
            raise _refused_item(str(kind), where)

    def _add_message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise BadRequest(f"{where}.role: write one of {', '.join(ROLES)}.", param=f"{where}.role")
        if role == "assistant":
            self._turn_for(item, is_call=False).add_words(item, where)
            return
        self._end_turn()
        content = self._content(item.get("content"), f"{where}.content")
        self.messages.append({"role": "system" if role == "developer" else role, "content": content})

    def _add_output(self, item: Json, where: str) -> None:
        self._end_turn()
        content = self._content(item.get("output"), f"{where}.output")
        call_id = text_field(item, "call_id", where)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _turn_for(self, item: Json, *, is_call: bool) -> _Turn:
        """The assistant's turn that an item belongs to: the one that goes on, or a new one."""
        stem = _stem(item.get("id"))
        turn = self._turn
        if turn is None or not turn.takes(stem, is_call=is_call):
            self._end_turn()
            turn = self._turn = _Turn()
        turn.stem = stem or turn.stem
        return turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn.message())
        self._turn = None

    def _content(self, content: object, where: str) -> str | list[Json]:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise BadRequest(f"{where}: write a text or a list of parts.", param=where)
        return [self._part(part, where) for part in cast("list[object]", content)]

    def _part(self, part: object, where: str) -> Json:
        fields = object_of(part)
        kind = fields.get("type")
        if kind in WORDS:
            return {"type": "text", "text": text_field(fields, "text", where)}
        if kind == "input_image":
            self.has_media = True
            return _image(fields, where)
        if kind == "input_audio":
            self.has_media = True
            return {"type": "input_audio", "input_audio": _audio(fields.get("input_audio"), where)}
        if kind == "input_file":
            told = f"{where}: files are not read here; send what they say as a part of type input_text."
            raise BadRequest(told, param=where, code="unsupported_value")
        raise BadRequest(f"{where}: a part must be of type input_text or input_image, not {kind}.", param=where)


class _Turn:
    """One message of the assistant, as its items come back."""

    def __init__(self) -> None:
        self.stem: str | None = None
        """What the ids of one answer's items share, if they came with ids of ours."""
        self._reasoning: list[str] = []
        self._content: str | list[Json] | None = None
        self._refusals: list[str] = []
        self._calls: list[Json] = []
        self._waits = False
        """Whether the newest item leads to another of the same answer: reasoning, or a tool call not answered yet."""

    def takes(self, stem: str | None, *, is_call: bool) -> bool:
        """Whether an item that comes next is of this turn."""
        if stem is not None and self.stem is not None:
            return stem == self.stem
        return is_call or self._waits

    def add_reasoning(self, text: str) -> None:
        self._reasoning.append(text)
        self._waits = True

    def add_call(self, item: Json, where: str) -> None:
        name = engine_name(text_field(item, "name", where), item.get("namespace"))
        function = {"name": name, "arguments": text_field(item, "arguments", where)}
        self._calls.append({"id": text_field(item, "call_id", where), "type": "function", "function": function})
        self._waits = True

    def add_words(self, item: Json, where: str) -> None:
        content: object = item.get("content")
        parts = cast("list[object]", content) if isinstance(content, list) else [content or ""]
        words: list[Json] = []
        for part in parts:
            said: object = {"type": "output_text", "text": part} if isinstance(part, str) else part
            self._add_part(said, words, f"{where}.content")
        if len(words) > 1 and self.stem is not None:  # the engine said it in one
            words = [{"type": "text", "text": "".join(word["text"] for word in words)}]
        if words:
            self._content = _joined(self._content, words)
        self._waits = False

    def message(self) -> Json:
        """The message in the form of chat completions."""
        content = self._content if self._calls or self._refusals else self._content or ""
        message: Json = {"role": "assistant", "content": content or None if self._calls else content}
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        if self._refusals:
            message["refusal"] = "".join(self._refusals)
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    def _add_part(self, part: object, words: list[Json], where: str) -> None:
        fields = object_of(part)
        kind = fields.get("type")
        if kind == "refusal":
            self._refusals.append(text_field(fields, "refusal", where))
        elif kind in WORDS:
            words.append({"type": "text", "text": text_field(fields, "text", where)})
        else:
            raise BadRequest(f"{where}: a part of an answer must be of type output_text or refusal.", param=where)


def engine_name(name: str, namespace: object) -> str:
    """What engines, which know no namespaces, call a function.

    >>> engine_name("close_agent", "agents"), engine_name("look", None)
    ('agents__close_agent', 'look')
    """
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def text_field(fields: Json, name: str, where: str) -> str:
    """A field that must be a text; raises `BadRequest`."""
    value: object = fields.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name}: write a text.", param=f"{where}.{name}")
    return value


def _joined(before: str | list[Json] | None, words: list[Json]) -> str | list[Json]:
    """Words that go on: one text as it stood, several as parts."""
    if isinstance(before, list):
        return [*before, *words]
    if len(words) == 1:
        return (before or "") + words[0]["text"]
    return [{"type": "text", "text": before}, *words] if before else words


def _reasoning(item: Json) -> str:
    """What of a reasoning item the model can be told."""
    content: object = item.get("content")
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    text = "".join(str(cast("Json", part).get("text") or "") for part in parts if isinstance(part, dict))
    return text or unseal(str(item.get("encrypted_content") or ""))


def _image(part: Json, where: str) -> Json:
    url = part.get("image_url")
    if not isinstance(url, str):
        told = f"{where}: an image must come as image_url with a data: URL; files are not stored here."
        raise BadRequest(told, param=where, code="unsupported_value")
    if not url.lstrip().lower().startswith("data:"):
        told = f"{where}: image_url names a remote address, which is never fetched; send a data: URL instead."
        raise BadRequest(told, param=where, code="remote_media")
    detail = {} if part.get("detail") is None else {"detail": text_field(part, "detail", where)}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _audio(audio: object, where: str) -> Json:
    fields = object_of(audio)
    return {name: text_field(fields, name, f"{where}.input_audio") for name in ("data", "format")}


def _stem(item_id: object) -> str | None:
    """What the ids of one answer's items share, if they are ours: all but the prefix and their place."""
    match = _OWN_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return None if match is None else match[1]


def _refused_item(kind: str, where: str) -> BadRequest:
    if kind == "item_reference":
        told = f"{where}: items are not stored by id; send the item itself, or name the answer in previous_response_id."
    else:
        told = (
            f"{where}: items of type {kind} are not known to models here; send message, function_call, "
            "function_call_output or reasoning."
        )
    return BadRequest(told, param=where, code="unsupported_item")
