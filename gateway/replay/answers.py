"""A recorded answer as an engine would give it again: whole, or in pieces as a stream. Pure.

What was recorded is the message, not how it was cut: a stream comes in pieces of a few words, in the order in which
engines send them (reasoning, text, tool calls), with the recorded ids and log-probabilities where the agent asks for
them. A dialect's own writer makes the agent's events of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from gateway.dialects.base import Asked, Json, object_of
from gateway.message_fold import REASONING, decode_json_value
from tracker.types import Call, Choice

PIECE: Final = 24
"""Characters of a piece."""
COMPLETIONS: Final = "completions"
_CUT: Final = (*REASONING, "content", "refusal")


def whole_answer(call: Call, asked: Asked) -> Json:
    """The answer in one."""
    is_chat = call.dialect != COMPLETIONS
    choices = [
        {**_whole_words(choice, is_chat), **_ending(choice), **_tokens(call, choice, asked)} for choice in call.choices
    ]
    whole = {
        **_frame(call, "chat.completion" if is_chat else "text_completion"),
        "choices": choices,
        "usage": _usage(call),
    }
    return {**whole, **_prompt_ids(call, asked)} if is_chat else whole


def streamed_answer(call: Call, asked: Asked) -> Iterator[Json]:
    """The answer as events; usage in one of its own at the end, where it is to be shown."""
    is_chat = call.dialect != COMPLETIONS
    frame = _frame(call, "chat.completion.chunk" if is_chat else "text_completion")
    if is_chat:
        opening = [{"index": choice.index, "delta": _opening(choice), "finish_reason": None} for choice in call.choices]
        yield {**frame, "choices": opening, **_prompt_ids(call, asked)}
    for choice in call.choices:
        for piece in _deltas(choice) if is_chat else ({"text": part} for part in _pieces(_text(choice))):
            words = {"delta": piece} if is_chat else piece
            yield {**frame, "choices": [{"index": choice.index, **words, "finish_reason": None}]}
        last: Json = {"delta": {}} if is_chat else {"text": ""}
        yield {**frame, "choices": [{**last, **_ending(choice), **_tokens(call, choice, asked)}]}
    if asked.shows_usage:
        yield {**frame, "choices": [], "usage": _usage(call)}


def _frame(call: Call, kind: str) -> Json:
    return {"id": call.call_id, "object": kind, "created": call.started_ms // 1000, "model": call.model}


def _ending(choice: Choice) -> Json:
    return {"index": choice.index, "finish_reason": choice.finish_reason or "stop"}


def _whole_words(choice: Choice, is_chat: bool) -> Json:
    return {"message": _message(choice)} if is_chat else {"text": _text(choice)}


def _opening(choice: Choice) -> Json:
    """What comes once: the role, and whatever of the message is no text."""
    rest = {name: value for name, value in _message(choice).items() if name not in (*_CUT, "tool_calls")}
    return {"role": "assistant", "content": "", **rest}


def _deltas(choice: Choice) -> Iterator[Json]:
    message = _message(choice)
    for name in _CUT:
        text = message.get(name)
        for piece in _pieces(text) if isinstance(text, str) else ():
            yield {name: piece}
    for index, call in enumerate(cast("list[object]", message.get("tool_calls") or [])):
        yield from _tool_deltas(index, object_of(call))


def _tool_deltas(index: int, call: Json) -> Iterator[Json]:
    function = object_of(call.get("function"))
    begun: Json = {**call, "index": index, "function": {**function, "arguments": ""}}
    yield {"tool_calls": [begun]}
    for piece in _pieces(str(function.get("arguments") or "")):
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _tokens(call: Call, choice: Choice, asked: Asked) -> Json:
    told: Json = {} if call.dialect != COMPLETIONS else _prompt_ids(call, asked)
    if asked.shows_token_ids:
        told["token_ids"] = list(choice.sampled_ids)
    if asked.shows_logprobs:
        names = [f"token_id:{token}" for token in choice.sampled_ids]
        scores = list(choice.logprobs)
        told["logprobs"] = _logprobs(names, scores, is_chat=call.dialect != COMPLETIONS)
    return told


def _logprobs(names: list[str], scores: list[float], *, is_chat: bool) -> Json:
    if not is_chat:
        return {"tokens": names, "token_logprobs": scores}
    pairs = zip(names, scores, strict=False)
    return {"content": [{"token": name, "logprob": score, "bytes": None, "top_logprobs": []} for name, score in pairs]}


def _prompt_ids(call: Call, asked: Asked) -> Json:
    return {"prompt_token_ids": list(call.prompt_ids)} if asked.shows_token_ids else {}


def _usage(call: Call) -> Json:
    num_in = len(call.prompt_ids) if call.usage is None else call.usage.prompt_tokens
    num_sampled = sum(len(choice.sampled_ids) for choice in call.choices)
    num_out = num_sampled if call.usage is None else call.usage.completion_tokens
    return {"prompt_tokens": num_in, "completion_tokens": num_out, "total_tokens": num_in + num_out}


def _message(choice: Choice) -> Json:
    return object_of(decode_json_value(choice.message))


def _text(choice: Choice) -> str:
    value: Any = decode_json_value(choice.message)
    return value if isinstance(value, str) else ""


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))
