"""The four dialects as an agent of each sees them: how a question is put, and what its answers say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it came over the wire."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.raw)
        except ValueError as error:
            raise AssertionError(f"the answer ({self.status}) is not JSON: {self.raw[:200]!r}") from error

    @property
    def data(self) -> list[bytes]:
        """The data of each event of a stream."""
        return data_of(self.raw)

    @property
    def events(self) -> list[Json]:
        """Each event that is a JSON object; the end mark is none."""
        try:
            return [json.loads(one) for one in self.data if one != b"[DONE]"]
        except ValueError as error:
            raise AssertionError(f"an event is not JSON: {self.raw[-300:]!r}") from error


def data_of(raw: bytes) -> list[bytes]:
    """The joined `data` lines of each whole event, comments and bare fields left out."""
    blocks = _EVENT_END.split(raw)[:-1]
    lines = [[line for line in _LINE_END.split(block) if line.startswith(b"data:")] for block in blocks]
    return [b"\n".join(line[5:].removeprefix(b" ") for line in block) for block in lines if block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One dialect."""

    name: str
    path: str
    prefix: str
    """What ids of its answers begin with."""
    limit: str = "max_tokens"
    """The field that limits the answer's length."""
    ask: Callable[[str], Json]
    """The fields that put one question."""
    words: Callable[[Json], str]
    """The text of a whole answer."""
    delta: Callable[[Json], str]
    """The text of one event."""
    ends: Callable[[Sequence[Json]], bool]
    """Whether these events end as an answer that is whole does (apart from the end mark)."""
    fixed: Json = field(default_factory=dict)
    """Fields that the dialect wants in every request."""

    @property
    def need(self) -> str:
        return self.name

    def body(self, text: str, /, **fields: Any) -> Json:
        return {**self.fixed, **self.ask(text), **fields}

    def text(self, answered: Answered) -> str:
        """What the model said, whole or streamed."""
        if answered.headers.get("content-type", "").startswith("text/event-stream"):
            return "".join(self.delta(event) for event in answered.events)
        return self.words(answered.json)

    def has_ended(self, answered: Answered) -> bool:
        """Whether a stream came to its regular end."""
        marked = self.name not in ("chat", "completions") or answered.data[-1:] == [b"[DONE]"]
        return marked and self.ends(answered.events)

    def is_error_event(self, event: Json) -> bool:
        if self.name == "messages":
            return event.get("type") == "error" and {"type", "message"} <= set(event.get("error", {}))
        if self.name == "responses":
            return event.get("type") == "error" or event.get("type") == "response.failed"
        return set(event) == {"error"} and bool(event["error"]["message"])

    def error_of(self, answered: Answered) -> Json:
        """The error an answer tells, in the form of the dialect."""
        said = answered.json
        assert answered.headers.get("content-type", "").startswith("application/json"), answered.headers
        assert isinstance(said, dict), said
        if self.name == "messages":
            assert said.get("type") == "error", said
        error = said.get("error")
        assert isinstance(error, dict), said
        wanted = {"type", "message"} if self.name == "messages" else {"message", "type", "param", "code"}
        assert wanted <= set(error), said
        assert error["message"]
        return error


def _chat_delta(event: Json) -> str:
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in event.get("choices", []))


def _has_finish(events: Sequence[Json]) -> bool:
    return any(choice.get("finish_reason") for event in events for choice in event.get("choices", []))


def _responses_words(said: Json) -> str:
    parts = [part for item in said["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


def _of_type(name: str, value: Callable[[Json], str]) -> Callable[[Json], str]:
    return lambda event: value(event) if event.get("type") == name else ""


def _is_type(*names: str) -> Callable[[Sequence[Json]], bool]:
    return lambda events: bool(events) and events[-1].get("type") in names


def user(text: Any) -> Json:
    return {"role": "user", "content": text}


CHAT = Form(
    name="chat",
    path="/v1/chat/completions",
    prefix="chatcmpl-",
    limit="max_completion_tokens",
    ask=lambda text: {"messages": [user(text)]},
    words=lambda said: said["choices"][0]["message"]["content"] or "",
    delta=_chat_delta,
    ends=_has_finish,
)
COMPLETIONS = Form(
    name="completions",
    path="/v1/completions",
    prefix="cmpl-",
    ask=lambda text: {"prompt": text},
    words=lambda said: said["choices"][0]["text"],
    delta=lambda event: "".join(choice.get("text") or "" for choice in event.get("choices", [])),
    ends=_has_finish,
)
RESPONSES = Form(
    name="responses",
    path="/v1/responses",
    prefix="resp_",
    limit="max_output_tokens",
    ask=lambda text: {"input": text},
    words=_responses_words,
    delta=_of_type("response.output_text.delta", lambda event: event["delta"]),
    ends=_is_type("response.completed", "response.incomplete"),
)
MESSAGES = Form(
    name="messages",
    path="/v1/messages",
    prefix="msg_",
    ask=lambda text: {"messages": [user(text)]},
    words=lambda said: "".join(part["text"] for part in said["content"] if part["type"] == "text"),
    delta=_of_type("content_block_delta", lambda event: event["delta"].get("text", "")),
    ends=_is_type("message_stop"),
    fixed={"max_tokens": 64},
)
FORMS: Mapping[str, Form] = {form.name: form for form in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
OPENAI: Mapping[str, Form] = {form.name: form for form in (CHAT, COMPLETIONS)}
"""The dialects whose events are the engine's own."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A dialect together with something else that varies."""

    form: Form
    value: Any

    @property
    def need(self) -> str:
        return self.form.need


def across(forms: Iterable[Form], values: Mapping[str, Any]) -> dict[str, Sibling]:
    """Every value in every dialect."""
    return {f"{form.name}, {label}": Sibling(form, value) for form in forms for label, value in values.items()}
