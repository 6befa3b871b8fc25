"""What a scripted engine answers: scripts as records, and the bodies and events they become. Pure.

Shapes and order are those of vLLM: streamed `prompt_token_ids` stand in the first event, `token_ids` in every later
one; completions have both inside the choice; usage comes in an event of its own before `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

END: Final = 99
SEPARATOR: Final = 98
VOCABULARY: Final = 16
"""Tokens of the scored one-token answers: ids 100 to 115."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One choice: what was sampled and how it reads."""

    ids: Sequence[int] | None = (5, END)
    """`None`: the engine reports no ids at all (a tool parser that drops them)."""
    logprobs: Sequence[float | None] | None = None
    """`None`: -0.25 for each id. An empty sequence: none are reported."""
    texts: Sequence[str] | None = None
    """The text of each streamed piece; default: `t<id> ` for each id, nothing for the end token."""
    finish_reason: str | None = "stop"
    """`None`: the stream ends without one."""
    stop_reason: int | str | None = None
    """The stop string or token that ended it, as vLLM names it."""
    deltas: Sequence[Json] | None = None
    """Whole deltas in place of texts, for tool calls and reasoning; the whole answer's message is `message`."""
    message: Json | None = None
    pieces: Sequence[int] | None = None
    """How many ids each streamed piece carries; default: one each."""

    def scores(self) -> Sequence[float | None]:
        if self.logprobs is not None:
            return self.logprobs
        return [-0.25] * len(self.ids or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one request gets. Fields for faults name after how many streamed events they strike."""

    prompt_ids: Sequence[int] | None = (1, 2)
    choices: Sequence[Answer] = (Answer(),)
    completion_tokens: int | None = None
    """What usage says; default: the number of ids (of pieces, where no ids are given)."""
    with_usage: bool = True
    delay_s: float = 0.0
    """Before the first byte of the answer, headers included."""
    gate: asyncio.Event | None = None
    """Answer only once this is set: a test then says when, instead of hoping that a delay is long enough."""
    headers_first: bool = False
    """Send the 200 and its headers before `delay_s` passes."""
    event_delay_s: float = 0.0
    reset_after: int | None = None
    """Reset the socket after this many events (0: before any; of a whole answer: before or in its body)."""
    close_after: int | None = None
    """End the stream in order after this many events: no finish_reason, no [DONE]."""
    error_after: int | None = None
    """Send `error` as an event after this many, then end."""
    hang_after: int | None = None
    """Send nothing more after this many events, and keep the connection."""
    status: int = 200
    """Another status answers `error` as JSON, before any event."""
    error: Json = field(default_factory=lambda: {"message": "scripted", "type": "scripted", "param": None, "code": 500})
    headers: Mapping[str, str] = field(default_factory=dict)
    raw_events: Sequence[bytes] | None = None
    """Exactly these bytes, one write each, in place of everything computed."""
    raw_body: bytes | None = None
    """Exactly this body, where the answer is whole."""


@dataclass(slots=True, kw_only=True)
class Received:
    """One request as it came, and what became of its connection. Times are `time.monotonic()`."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Json
    arrived_s: float
    peer: object = None
    """The connection's other end: equal for requests over one connection."""
    num_sent: int = 0
    """Events written so far."""
    ended_s: float | None = None
    """The answer was written to its end."""
    disconnected_s: float | None = None
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the caller closed its connection before the answer ended."""


def default_script(body: Json) -> Script:
    """The answer of default mode: ids by hash of the prompt, as many as the limit allows, at most 16 and an end."""
    prompt = prompt_ids_of(body)
    limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or 1 << 20)
    seed = zlib.crc32(repr(prompt).encode())
    choices = []
    for index in range(int(body.get("n") or 1)):
        ids = [1000 + (seed * (k + 1) + 7919 * k + index) % 30000 for k in range(min(limit, 16))]
        ended = len(ids) < limit
        choices.append(
            Answer(
                ids=(*ids, END) if ended else ids,
                logprobs=[-(1 + (i % 97)) / 64 for i in ids] + ([-0.5] if ended else []),
                finish_reason="stop" if ended else "length",
            )
        )
    return Script(prompt_ids=prompt, choices=choices)


def prompt_ids_of(body: Json) -> list[int]:
    """One id a word, a separator after each message; an assistant's words `t<id>` are the ids it sampled."""
    if "messages" not in body:
        prompt = body.get("prompt")
        return list(prompt) if isinstance(prompt, list) else _word_ids(str(prompt))
    ids: list[int] = []
    for message in body["messages"]:
        ids += _word_ids(_text_of(message.get("content")))
        if message.get("role") == "assistant":
            ids.append(END)
        ids.append(SEPARATOR)
    return ids


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def _word_ids(text: str) -> list[int]:
    return [
        int(word[1:]) if word[0] == "t" and word[1:].isdigit() else 40000 + zlib.crc32(word.encode()) % 20000
        for word in text.split()
    ]


def _texts(answer: Answer) -> list[str]:
    if answer.texts is not None:
        return list(answer.texts)
    return ["" if i == END else f"t{i} " for i in answer.ids or ()]


def _is_chat(received: Received) -> bool:
    return received.path.endswith("chat/completions")


def _usage(script: Script) -> Json:
    total = sum(len(a.ids) if a.ids is not None else len(_texts(a)) for a in script.choices)
    completion = total if script.completion_tokens is None else script.completion_tokens
    prompt = len(script.prompt_ids or ())
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(chat: bool, scores: Sequence[float | None], texts: Sequence[str]) -> Json:
    tokens = [texts[k] if k < len(texts) else "" for k in range(len(scores))]
    if chat:
        content = [
            {"token": t, "logprob": s, "bytes": list(t.encode()), "top_logprobs": []}
            for t, s in zip(tokens, scores, strict=True)
        ]
        return {"content": content}
    return {"tokens": tokens, "token_logprobs": list(scores), "text_offset": [0] * len(scores), "top_logprobs": None}


def _frame(received: Received, kind: str, choices: list[Json]) -> Json:
    return {
        "id": "engine-" + str(id(received) % 10**9),
        "object": kind,
        "created": 1_700_000_000,
        "model": received.body.get("model"),
        "choices": choices,
    }


def whole_answer(received: Received, script: Script) -> Json:
    chat, body = _is_chat(received), received.body
    choices: list[Json] = []
    for index, answer in enumerate(script.choices):
        text = "".join(_texts(answer))
        choice: Json = {"index": index, "finish_reason": answer.finish_reason, "logprobs": None}
        choice["stop_reason"] = answer.stop_reason
        if chat:
            choice["message"] = answer.message or {"role": "assistant", "content": text, "tool_calls": []}
        else:
            choice["text"] = text
        if body.get("logprobs") not in (None, False) and answer.logprobs != ():
            choice["logprobs"] = _logprobs(chat, answer.scores(), _texts(answer))
        if body.get("return_token_ids"):
            choice["token_ids"] = None if answer.ids is None else list(answer.ids)
            if not chat:
                choice["prompt_token_ids"] = script.prompt_ids
        choices.append(choice)
    whole = _frame(received, "chat.completion" if chat else "text_completion", choices)
    if script.with_usage:
        whole["usage"] = _usage(script)
    if chat and body.get("return_token_ids"):
        whole["prompt_token_ids"] = None if script.prompt_ids is None else list(script.prompt_ids)
    return whole


def encode_event(value: Json) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def stream_events(received: Received, script: Script) -> list[bytes]:
    """Every event of the stream, `[DONE]` included, in the order of vLLM."""
    if script.raw_events is not None:
        return list(script.raw_events)
    chat, asks_ids = _is_chat(received), bool(received.body.get("return_token_ids"))
    kind = "chat.completion.chunk" if chat else "text_completion"
    prompt = None if script.prompt_ids is None else list(script.prompt_ids)
    events: list[bytes] = []
    if chat:
        first = [
            {"index": k, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            for k in range(len(script.choices))
        ]
        frame = _frame(received, kind, first)
        events.append(encode_event({**frame, "prompt_token_ids": prompt} if asks_ids else frame))
    for index, answer in enumerate(script.choices):
        for piece in _pieces(answer, index, chat, received.body):
            if asks_ids and not chat:
                piece["prompt_token_ids"] = prompt
            events.append(encode_event(_frame(received, kind, [piece])))
    options = received.body.get("stream_options") or {}
    if options.get("include_usage") and script.with_usage:
        events.append(encode_event({**_frame(received, kind, []), "usage": _usage(script)}))
    return [*events, b"data: [DONE]\n\n"]


def _pieces(answer: Answer, index: int, chat: bool, body: Json) -> list[Json]:
    """The streamed choices of one answer: ids, scores and deltas dealt out over the pieces, the reason on the last."""
    texts, ids, scores = _texts(answer), list(answer.ids or ()), list(answer.scores())
    deltas = list(answer.deltas) if answer.deltas is not None else [{"content": t} for t in texts]
    sizes = list(answer.pieces) if answer.pieces is not None else [1] * max(len(ids), len(scores), len(deltas), 1)
    pieces: list[Json] = []
    at = 0
    for number, size in enumerate(sizes):
        last = number == len(sizes) - 1
        end = max(at + size, len(ids), len(scores)) if last else at + size
        mine = deltas[number:] if last else deltas[number : number + 1]
        piece: Json = {"index": index, "logprobs": None, "finish_reason": answer.finish_reason if last else None}
        if last and answer.stop_reason is not None:
            piece["stop_reason"] = answer.stop_reason
        if chat:
            piece["delta"] = mine[0] if mine else {}
        else:
            piece["text"] = "".join(str(d.get("content", "")) for d in mine)
        if body.get("logprobs") not in (None, False) and scores[at:end]:
            piece["logprobs"] = _logprobs(chat, scores[at:end], texts[at:end])
        if body.get("return_token_ids"):
            piece["token_ids"] = None if answer.ids is None else ids[at:end]
        pieces.append(piece)
        at = end
    return pieces


# Scored one-token answers.


def is_scoring(received: Received) -> bool:
    """A whole one-token completion that asks for alternatives and has no request id: a check, not an agent's call."""
    body = received.body
    asks = isinstance(body.get("logprobs"), int) and body.get("logprobs", 0) > 0
    if any(name.lower() == "x-request-id" for name in received.headers):
        return False
    return received.path == "/v1/completions" and body.get("max_tokens") == 1 and asks and not body.get("stream")


def scored(received: Received, processed: bool, served: str | None = None) -> Json:
    """The most probable token of a fixed distribution of the model, with log-probabilities at the temperature.

    `served` is the model that really answers, where it is not the one that was asked.
    """
    body = received.body
    model, temperature = served or str(body.get("model")), float(body.get("temperature", 1.0))
    logits = [3.0 * math.sin(1 + k + zlib.crc32(model.encode()) % 1000) for k in range(VOCABULARY)]
    divisor = temperature if processed and temperature > 0 else 1.0
    total = math.log(sum(math.exp(x / divisor) for x in logits))
    scores = {100 + k: x / divisor - total for k, x in enumerate(logits)}
    ranked = sorted(scores, key=lambda token: -scores[token])
    best, named = ranked[0], bool(body.get("return_tokens_as_token_ids"))
    names = {token: f"token_id:{token}" if named else f"t{token}" for token in ranked}
    prompt = prompt_ids_of(body)
    choice = {
        "index": 0,
        "text": f"t{best}",
        "finish_reason": "length",
        "stop_reason": None,
        "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        "token_ids": [best] if body.get("return_token_ids") else None,
        "logprobs": {
            "tokens": [names[best]],
            "token_logprobs": [scores[best]],
            "top_logprobs": [{names[t]: scores[t] for t in ranked[: int(body["logprobs"])]}],
            "text_offset": [0],
        },
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1}
    return {**_frame(received, "text_completion", [choice]), "usage": usage}
