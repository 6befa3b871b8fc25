"""The JSON of answers: pieces of text in, OpenAI's objects out, with vLLM's fields for token ids.

The rule: a whole answer is the fold of the same parts that a stream sends one by one, so both say the same. A `Shape`
knows one dialect (chat or completions): what a part is, how parts are folded, where prompt ids stand. Tokens come from
elsewhere, and so does the writing of events.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainer.engine.chat import ToolCall, ToolCallReader
from trainer.engine.sampling import Draw
from trainer.engine.text import Piece

_LOWEST = -9999.0
"""What a probability of 0 is reported as: JSON has no infinity, and vLLM says the same."""

Json = dict[str, Any]
TokenText = Callable[[int], str]
"""The text of one token by itself."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the request wants to see in its answer."""

    answer_id: str
    created: int
    model: str
    prompt_ids: tuple[int, ...]
    num_choices: int
    has_logprobs: bool
    has_token_ids: bool
    has_usage: bool
    """Whether a stream ends with a chunk of usage."""
    has_tools: bool


class Shape(Protocol):
    """One dialect's way to write an answer."""

    def opening(self) -> list[Json]:
        """Return the chunks that a stream starts with."""
        ...

    def chunk(self, piece: Piece) -> Json:
        """Return the chunk of one piece."""
        ...

    def whole(self, pieces: Iterable[Piece]) -> Json:
        """Return the whole answer without its usage."""
        ...

    def envelope(self, choices: list[Json]) -> Json:
        """Return what surrounds the choices of a chunk."""
        ...


def usage(num_prompt: int, num_sampled: int) -> Json:
    return {"prompt_tokens": num_prompt, "completion_tokens": num_sampled, "total_tokens": num_prompt + num_sampled}


class ChatShape:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, wanted: Wanted, token_text: TokenText) -> None:
        self._wanted = wanted
        self._token_text = token_text
        self._readers = [ToolCallReader() for _ in range(wanted.num_choices)]

    def envelope(self, choices: list[Json]) -> Json:
        return _envelope(self._wanted, "chat.completion.chunk", choices)

    def opening(self) -> list[Json]:
        chunks = [
            self.envelope([{"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
            for i in range(self._wanted.num_choices)
        ]
        if self._wanted.has_token_ids:
            chunks[0]["prompt_token_ids"] = list(self._wanted.prompt_ids)
        return chunks

    def chunk(self, piece: Piece) -> Json:
        """What a piece adds; why it stopped is told once it has, as vLLM does."""
        part = self._part(piece)
        if part["finish_reason"] is None:
            del part["stop_reason"]
        return self.envelope([part])

    def _part(self, piece: Piece) -> Json:
        """Return one choice of a chunk: what the piece adds to it."""
        delta, reason = self._delta(piece)
        part: Json = {"index": piece.index, "delta": delta, "logprobs": None, "finish_reason": reason}
        part["stop_reason"] = piece.stop
        if self._wanted.has_logprobs:
            part["logprobs"] = {"content": [token_logprob(piece.draw, self._token_text)]}
        if self._wanted.has_token_ids:
            part["token_ids"] = [piece.draw.token_id]
        return part

    def _delta(self, piece: Piece) -> tuple[Json, str | None]:
        if not self._wanted.has_tools:
            return {"content": piece.text}, piece.finish_reason
        reader = self._readers[piece.index]
        said = reader.push(piece.text, is_last=piece.finish_reason is not None)
        delta: Json = {"content": said.content}
        if said.tool_calls:
            delta["tool_calls"] = [{"index": call.index, **tool_call(call)} for call in said.tool_calls]
        is_call = piece.finish_reason == "stop" and reader.num_calls > 0
        return delta, "tool_calls" if is_call else piece.finish_reason

    def whole(self, pieces: Iterable[Piece]) -> Json:
        choices = [self._empty_choice(i) for i in range(self._wanted.num_choices)]
        for piece in pieces:
            _fold_chat(choices[piece.index], self._part(piece))
        for choice in choices:
            message = choice["message"]
            if message["tool_calls"]:
                message["content"] = message["content"] or None
            else:
                del message["tool_calls"]
        answer = _envelope(self._wanted, "chat.completion", choices)
        if self._wanted.has_token_ids:
            answer["prompt_token_ids"] = list(self._wanted.prompt_ids)
        return answer

    def _empty_choice(self, index: int) -> Json:
        choice: Json = {
            "index": index,
            "message": {"role": "assistant", "content": "", "tool_calls": []},
            "logprobs": {"content": []} if self._wanted.has_logprobs else None,
            "finish_reason": None,
            "stop_reason": None,
        }
        if self._wanted.has_token_ids:
            choice["token_ids"] = []
        return choice


def _fold_chat(choice: Json, part: Json) -> None:
    """Add one part of a stream to a whole choice."""
    message = choice["message"]
    message["content"] += part["delta"]["content"]
    for call in part["delta"].get("tool_calls", ()):
        message["tool_calls"].append({key: value for key, value in call.items() if key != "index"})
    if part["logprobs"] is not None:
        choice["logprobs"]["content"] += part["logprobs"]["content"]
    if "token_ids" in part:
        choice["token_ids"] += part["token_ids"]
    choice |= {name: part[name] for name in ("finish_reason", "stop_reason")}


class CompletionShape:
    """`text_completion`, streamed and whole."""

    def __init__(self, wanted: Wanted, token_text: TokenText) -> None:
        self._wanted = wanted
        self._token_text = token_text
        self._offsets = [0] * wanted.num_choices

    def envelope(self, choices: list[Json]) -> Json:
        return _envelope(self._wanted, "text_completion", choices)

    def opening(self) -> list[Json]:
        """Completions have no opening chunk; the prompt ids stand in the choice of each one's first chunk."""
        return []

    def chunk(self, piece: Piece) -> Json:
        is_first = self._offsets[piece.index] == 0
        part = self._part(piece)
        if is_first and self._wanted.has_token_ids:
            part["prompt_token_ids"] = list(self._wanted.prompt_ids)
        return self.envelope([part])

    def _part(self, piece: Piece) -> Json:
        part: Json = {
            "index": piece.index,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop,
        }
        text = self._token_text(piece.draw.token_id)
        if self._wanted.has_logprobs:
            top = {self._token_text(i): finite(p) for i, p in piece.draw.top}
            top[text] = finite(piece.draw.logprob)
            part["logprobs"] = {
                "tokens": [text],
                "token_logprobs": [finite(piece.draw.logprob)],
                "top_logprobs": [top],
                "text_offset": [self._offsets[piece.index]],
            }
        self._offsets[piece.index] += max(len(text), 1)
        if self._wanted.has_token_ids:
            part["token_ids"] = [piece.draw.token_id]
        return part

    def whole(self, pieces: Iterable[Piece]) -> Json:
        choices = [self._empty_choice(i) for i in range(self._wanted.num_choices)]
        for piece in pieces:
            part = self._part(piece)
            choice = choices[piece.index]
            choice["text"] += part["text"]
            choice |= {name: part[name] for name in ("finish_reason", "stop_reason")}
            entries: dict[str, list[Any]] = part["logprobs"] or {}
            for key, values in entries.items():
                choice["logprobs"][key] += values
            if "token_ids" in part:
                choice["token_ids"] += part["token_ids"]
        return _envelope(self._wanted, "text_completion", choices)

    def _empty_choice(self, index: int) -> Json:
        keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        choice: Json = {
            "index": index,
            "text": "",
            "logprobs": {key: [] for key in keys} if self._wanted.has_logprobs else None,
            "finish_reason": None,
            "stop_reason": None,
        }
        if self._wanted.has_token_ids:
            choice["prompt_token_ids"] = list(self._wanted.prompt_ids)
            choice["token_ids"] = []
        return choice


def _envelope(wanted: Wanted, kind: str, choices: list[Json]) -> Json:
    return {
        "id": wanted.answer_id,
        "object": kind,
        "created": wanted.created,
        "model": wanted.model,
        "choices": choices,
    }


def tool_call(call: ToolCall) -> Json:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def token_logprob(draw: Draw, token_text: TokenText) -> Json:
    top = [_named_logprob(i, p, token_text) for i, p in draw.top]
    return {**_named_logprob(draw.token_id, draw.logprob, token_text), "top_logprobs": top}


def _named_logprob(token_id: int, logprob: float, token_text: TokenText) -> Mapping[str, Any]:
    text = token_text(token_id)
    return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}


def finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
