"""What every dialect gives the door: a request as it was understood, how engines are asked, how answers are written.

A dialect parses once, refuses what is dangerous or cannot be honoured, and keeps the agent's own bytes for everything
it need not know: a number is sent on as it was written. Fields that every dialect refuses stand here. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from gateway.json_depth import refuse_deep
from tracker.errors import BadRequest, HoneError
from tracker.types import Record, Sampling

T = TypeVar("T")
Json = dict[str, Any]
"""A JSON object of the engine's or the agent's that passes through: nothing of ours."""

FORBIDDEN_ANYWHERE: Final = frozenset(
    {
        "api_base",
        "api_key",
        "api_version",
        "azure_endpoint",
        "base_url",
        "chat_template",
        "custom_llm_provider",
        "default_headers",
        "extra_body",
        "extra_headers",
        "extra_query",
        "http_client",
        "prompt_embeds",
        "proxies",
        "proxy",
    }
)
"""They steer a proxy or an engine to where the caller has no business, at whatever depth they stand."""
FORBIDDEN: Final = FORBIDDEN_ANYWHERE | {
    "cache_salt",
    "kv_transfer_params",
    "logits_processors",
    "priority",
    "request_id",
    "truncate_prompt_tokens",
    "vllm_xargs",
}
"""Refused at the top of a body."""
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SUSPECT: Final = re.compile(rb"\\u|" + b"|".join(sorted(name.encode() for name in FORBIDDEN_ANYWHERE)))


class Limits(Record, frozen=True):
    """The caps of the gateway's settings."""

    max_choices: int = 8
    max_output_tokens: int | None = None


class Asked(Record, frozen=True):
    """One request, understood. `shows_…` is what the agent asked to see; the rest is stripped from the answer."""

    model: str
    streams: bool = False
    num_choices: int = 1
    shows_usage: bool = True
    """Whole answers always do; streams where `stream_options.include_usage` says so."""
    shows_logprobs: bool = False
    shows_token_ids: bool = False
    shows_reasoning: bool = True
    has_media: bool = False
    """Images, sound or video: their tokens are not what a trainer could run."""
    has_stop: bool = False
    """The agent gave stop strings, so "stop" need not mean an end token."""
    sampling: Sampling = Sampling()
    """What the agent asked for; `given` says which fields it named."""
    given: frozenset[str] = frozenset()
    """Names of all fields that are present and not null."""
    messages: tuple[bytes, ...] = ()
    """The conversation as the agent has it, each piece one JSON value; recorded."""
    request: bytes = b"{}"
    """The body as the agent sent it, without its messages."""
    previous: str | None = None
    """The call that this one continues, as `previous_response_id` names it; its conversation is not in `messages` until
    `response_state.py` has put it there."""
    fields: Mapping[str, msgspec.Raw] = {}
    """What is sent on, before the fields that the gateway owns. Every dialect but completions puts the conversation
    here in the form of chat completions, under `messages`, and tools in that form under `tools`."""


class Target(Record, frozen=True):
    """Whom a call is sent to, and how its answer is sampled."""

    model: str
    """The name to ask for there."""
    sampling: Sampling = Sampling()
    overrides: bool = False
    """Drop the agent's own sampling fields."""
    captures: bool = True
    """Ask for token ids and log-probabilities; not of a server that is no engine of ours."""


class Writer(Protocol):
    """Writes one answer for the agent: what the engine said, event by event, in the words of the dialect.

    It is fed in order, each event after `Capture.feed` has stripped what the agent did not ask for.
    """

    @property
    def error_form(self) -> ErrorForm | None:
        """What tells the errors of this call, in dialects whose error event belongs to those before it."""
        ...

    def event(self, said: Json) -> bytes:
        """What the agent gets for one event of a streamed answer: no, one or several whole events."""
        ...

    def done(self, mark: bytes) -> bytes:
        """What ends a stream, once the engine ended it in order; `mark` is the end mark as it came, or empty."""
        ...

    def whole(self, said: Json) -> bytes:
        """The body of a whole answer."""
        ...


class ErrorForm(Protocol):
    """How a dialect tells an error."""

    def error_body(self, error: HoneError) -> Json:
        """The JSON of an answer that is no success."""
        ...

    def error_event(self, error: HoneError) -> bytes:
        """The event that ends a stream which had begun."""
        ...


class Dialect(ErrorForm, Protocol):
    """One shape of request and answer."""

    @property
    def name(self) -> str: ...

    @property
    def id_prefix(self) -> str:
        """What ids of its answers begin with."""
        ...

    @property
    def engine_path(self) -> str:
        """The route of the engine that is asked."""
        ...

    def parse(self, body: bytes, limits: Limits) -> Asked:
        """Understand a request; raises `BadRequest`, saying what to write instead."""
        ...

    def engine_body(self, asked: Asked, target: Target) -> bytes:
        """What the engine is sent."""
        ...

    def writer(self, asked: Asked, call_id: str) -> Writer:
        """Writes the answer to this request; `call_id` is the id that the agent sees."""
        ...


def parse_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, each as its own bytes, without those that are null."""
    refuse_deep(body)
    try:
        body.decode()  # fields that are passed on unread must be text too
        fields = _FIELDS.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest("The body must be a JSON object.", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    return {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}


def refuse_forbidden(fields: Mapping[str, msgspec.Raw], own_words: frozenset[str]) -> None:
    """Raise on a field that could steer the proxy or the engine.

    `own_words` are the fields that hold what the agent says to the model or to itself: no name in them means anything
    to us. Schemas of tools and of structured output are left out the same way.
    """
    for name, raw in fields.items():
        if name in FORBIDDEN:
            raise _forbidden(name)
        if name not in own_words and _SUSPECT.search(raw):
            for inside, _ in walk(decode_as(raw, object, name), _SCHEMAS):
                if inside in FORBIDDEN_ANYWHERE:
                    raise _forbidden(f"{name}: {inside}")


def decode_as(raw: bytes | msgspec.Raw, kind: type[T], where: str | None = None) -> T:
    """Decode the body, or the part of it that `where` names; raises `BadRequest` naming the field that does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _misfit(error, where) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = f"{where or 'The body'} is not valid JSON: {error}."
        raise BadRequest(told, param=where, code="invalid_json") from error


def object_of(value: object) -> Json:
    """A JSON value that must be an object to be read; nothing is in any other.

    >>> object_of([1]), object_of({"a": 1})
    ({}, {'a': 1})
    """
    return cast("Json", value) if isinstance(value, dict) else {}


def walk(value: object, skipped: frozenset[str] = frozenset()) -> Generator[tuple[str, object]]:
    """Every (name, value) inside, at any depth, but nothing inside of those skipped; a list's items have no name."""
    waiting = [value]
    while waiting:
        at = waiting.pop()
        if isinstance(at, list):
            for item in cast("list[object]", at):
                yield "", item
                waiting.append(item)
        elif isinstance(at, dict):
            for name, item in cast("dict[str, object]", at).items():
                yield name, item
                if name not in skipped:
                    waiting.append(item)


def _misfit(error: msgspec.ValidationError, where: str | None) -> BadRequest:
    message, _, path = str(error).partition(" - at `$")
    param = path.rstrip("`").removeprefix(".")
    if message.startswith("Object missing required field"):
        param = message.split("`")[1]
    named = ".".join(part for part in (where, param) if part)
    return BadRequest(f"{named}: {message}." if named else f"{message}.", param=named or None)


_SCHEMAS: Final = frozenset({"parameters", "input_schema", "input_examples", "schema", "guided_json", "json"})


def _forbidden(where: str) -> BadRequest:
    return BadRequest(f"The field {where} is not allowed here: leave it out.", param=where, code="forbidden_field")
