"""What is fuzzed: functions of bytes that anybody may send, each with the law that no bytes break.

A target raises only for a broken law: a refusal in Hone's own words is an answer. Shared by the fuzzer and by the test
that replays what it once found.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import zstandard

from gateway.addresses import TrustedProxies
from gateway.capture import Capture, EndTokens
from gateway.conversation import conversation_of
from gateway.dialects.base import Asked, Dialect, Limits, Target
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.messages.dialect import Messages
from gateway.dialects.responses.dialect import Responses
from gateway.embeddings import parse_embeddings
from gateway.paths import normalise
from gateway.roles import shape_of
from gateway.sse import SseParser
from gateway.upstream import engine_object, error_in
from tracker.codec import ARCHIVE_MAGIC, ARCHIVE_SCHEMA, decode_calls
from tracker.errors import BadRequest, CorruptRecord, HoneError, NotFound

DIALECTS: tuple[Dialect, ...] = (Chat(), Completions(), Messages(), Responses())
REFUSED = (400, 404, 413, 422)
PROMPT: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "prompt": "hi",
}


def fuzz_sse(data: bytes) -> None:
    """However bytes are cut, the events are the same, and nothing of them is lost."""
    cut, stream = (data[0], data[1:]) if data else (0, b"")
    whole, pieces = SseParser(), SseParser()
    together = whole.feed(stream)
    size = 1 + cut % 16
    apart = [event for k in range(0, len(stream), size) for event in pieces.feed(stream[k : k + size])]
    assert [*apart, *pieces.close()] == [*together, *whole.close()]
    assert stream.startswith(b"".join(event.raw for event in together))


def fuzz_dialects(data: bytes) -> None:
    """A body is understood or refused; what was understood can be sent on as JSON, and looked at in every way."""
    for dialect in DIALECTS:
        try:
            asked = dialect.parse(data, Limits())
        except HoneError as error:
            check_refusal(dialect, error)
            continue
        with contextlib.suppress(BadRequest):  # what nobody had to read before
            shape_of(asked, conversation_of(asked))
        for target in (Target(model="x"), Target(model="x", overrides=True), Target(model="x", captures=False)):
            with contextlib.suppress(BadRequest):
                sent = msgspec.json.decode(dialect.engine_body(asked, target), type=dict[str, msgspec.Raw])
                assert bytes(sent["model"]) == b'"x"'
    with contextlib.suppress(BadRequest):
        parse_embeddings(data)


def check_refusal(dialect: Dialect, error: HoneError) -> None:
    """A refusal blames the request, and can be told."""
    assert error.status in REFUSED, error
    assert json.loads(msgspec.json.encode(dialect.error_body(error)))


def fuzz_answers(data: bytes) -> None:
    """Events of an engine that has gone wrong are passed on or refused, in every dialect, streamed or whole."""
    for streams in (True, False):
        for dialect in DIALECTS:
            with contextlib.suppress(HoneError):
                _read_answer(dialect, _asked(dialect, streams), data)


def _asked(dialect: Dialect, streams: bool) -> Asked:
    return dialect.parse(json.dumps({**PROMPT, "stream": streams}).encode(), Limits())


def _read_answer(dialect: Dialect, asked: Asked, data: bytes) -> None:
    capture, writer = Capture(asked, takes_tokens=True), dialect.writer(asked, "id")
    try:
        for line in data.split(b"\n"):
            said = engine_object(line, "the engine")
            error = error_in(said)
            if error is not None:
                raise error
            if capture.feed(said):
                assert isinstance(writer.event(said) if asked.streams else writer.whole(said), bytes)
        assert isinstance(writer.done(b"data: [DONE]\n\n"), bytes)
    finally:
        capture.choices(9, EndTokens())
        capture.detail()


def fuzz_codec(data: bytes) -> None:
    """Stored bytes are calls or a corrupt record, also where only what is inside was damaged."""
    inside = zstandard.ZstdCompressor().compress(data[1:])
    for blob in (data, ARCHIVE_MAGIC + bytes([ARCHIVE_SCHEMA]) + inside):
        with contextlib.suppress(CorruptRecord):
            decode_calls(blob)


def fuzz_paths(data: bytes) -> None:
    """A path is one of the agent's, none of them, or refused; it never names a route outside the list."""
    try:
        path = normalise(data)
    except (BadRequest, NotFound):
        return
    assert path is None or "." not in path.route
    TrustedProxies(["10.0.0.0/8"]).client_of("10.0.0.1", [data.decode("latin-1")])


def fuzz_shapes(data: bytes) -> None:
    """Requests with the right names and the wrong values in them: bytes say what to put where."""
    fuzz_dialects(json.dumps(edited(_BODIES, data)).encode())


def fuzz_answer_shapes(data: bytes) -> None:
    """Answers of the same kind, of two events each."""
    half = len(data) // 2
    events = (edited((_CHUNK, _WHOLE), data[:half]), edited((_CHUNK, _WHOLE), data[half:]))
    fuzz_answers(b"\n".join(json.dumps(event).encode() for event in events))


def edited(seeds: Sequence[dict[str, Any]], program: bytes) -> Any:
    """A copy of a seed with up to eight of its values replaced or taken out."""
    body = json.loads(json.dumps(seeds[program[0] % len(seeds)] if program else seeds[0]))
    for where, what in zip(program[1:17:2], program[2:17:2], strict=False):
        places = list(_places(body))
        if places:
            holder, name = places[where % len(places)]
            value = VALUES[what % len(VALUES)]
            if value is DROPPED:
                del holder[name]
            else:
                holder[name] = json.loads(json.dumps(value))
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside, as what holds it and its name or number there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in list(inside):
        yield value, name
        yield from _places(item)


DROPPED = object()
VALUES: tuple[Any, ...] = (
    *(DROPPED, None, True, 0, -1, 1.5, 2**63, 10**30, 1e308, float("nan"), "", "\ud800", "\x00", "x" * 99, "1"),
    *([], {}, [[]], [{}], {"a": {}}, [None], [1, "a"], {"type": []}, {"role": {}}, {"type": "text", "text": []}),
    *("system", "developer", "assistant", "tool", "user", "function", "json_schema", "auto", "required"),
)

TARGETS: dict[str, Callable[[bytes], None]] = {
    "answer_shapes": fuzz_answer_shapes,
    "answers": fuzz_answers,
    "codec": fuzz_codec,
    "dialects": fuzz_dialects,
    "paths": fuzz_paths,
    "shapes": fuzz_shapes,
    "sse": fuzz_sse,
}

_CHUNK: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion.chunk",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "delta": {
                "content": "a",
                "reasoning_content": "b",
                "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}],
            },
            "token_ids": [5],
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}]},
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1},
}
_MESSAGE: dict[str, Any] = {"role": "assistant", "content": "a"}
_WHOLE: dict[str, Any] = {**_CHUNK, "choices": [{**_CHUNK["choices"][0], "message": _MESSAGE, "text": "a"}]}
_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_BODIES: tuple[dict[str, Any], ...] = (
    {**PROMPT, "tools": [_TOOL], "tool_choice": "auto", "n": 2, "temperature": 0.5, "stop": ["x"], "stream": True},
    {**PROMPT, "system": "s", "tools": [{"name": "f", "input_schema": {}}], "thinking": {"type": "disabled"}},
    {
        **PROMPT,
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}],
    },
    {
        **PROMPT,
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}],
    },
    {
        **PROMPT,
        "instructions": "i",
        "input": [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
        ],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "reasoning": {"effort": "low"},
    },
)
_EVENT = b'data: {"a": 1}\n\n: ping\r\n\r\nevent: x\rdata: y\r\rdata: [DONE]\n\n'

_PROGRAMS = tuple(bytes([body, *range(3, 19)]) for body in range(len(_BODIES)))
SEEDS: dict[str, tuple[bytes, ...]] = {
    "answer_shapes": _PROGRAMS,
    "shapes": _PROGRAMS,
    "answers": tuple(json.dumps(said).encode() for said in (_CHUNK, _WHOLE, {"error": {"message": "m", "code": 400}})),
    "codec": (
        ARCHIVE_MAGIC + bytes([ARCHIVE_SCHEMA]),
        b"\x95\xa1e\x90\x90\x90\x90",
        b"\x95\xa1e\x91\x92\xa1c\x00\x91\xc4\x01x\x90\x90",
    ),
    "dialects": tuple(json.dumps(body).encode() for body in _BODIES),
    "paths": (
        b"/v1/chat/completions",
        b"/e/x/v1//v1/models/m",
        b"/t/a%20b/v1/responses/resp_1",
        b"10.0.0.2:1, [::1]:2",
    ),
    "sse": (b"\x03" + _EVENT, b"\x00" + _EVENT.replace(b"\n", b"\r\n")),
}
EVERY: tuple[bytes, ...] = tuple(
    bytes([number]) + seed for number, name in enumerate(sorted(TARGETS)) for seed in SEEDS[name]
)


def fuzz_every(data: bytes) -> None:
    """The target that the first byte says."""
    if data:
        TARGETS[sorted(TARGETS)[data[0] % len(TARGETS)]](data[1:])


def _names(value: object) -> set[str]:
    """Every name and text inside: what a fuzzer is given to put together."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return set(fields).union(*map(_names, fields.values()))
    if isinstance(value, list | tuple):
        return set[str]().union(*map(_names, cast("list[object]", value)))
    return {value} if isinstance(value, str) else set()


WORDS: tuple[str, ...] = tuple(
    sorted(
        _names([_CHUNK, _WHOLE, *_BODIES])
        | {"null", "NaN", "1e999", "\\ud800", "[[[[", "{}", "data:", "%2f", "%2e", "/v1/", "/e/", "/t/", "api_base"}
    )
)
