"""The scripted engine: a stand-in for a model server, for rehearsals of agents where no model is at hand.

It speaks the part of vLLM's API that the gateway asks for: chat completions and completions, whole and streamed, with
token ids and log-probabilities, `/v1/models`, `/tokenize` and `/detokenize`. Its answers are those of
`answers.py`, its tokens those of `tokens.py`: always the same for the same request. Nothing can be
learned from it. Requests come from our own gateway, which has checked them.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Final, cast

import tiktoken
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.dialects.base import Json
from gateway.scripted.answers import Said, answer_to
from gateway.scripted.tokens import END, Piece, Tokens

LOGPROB: Final = -0.25
SCORES: Final = (2.0, 1.0, 0.0, -1.0)
"""Logits of the four tokens of a scored one-token answer."""


def create_scripted_engine(models: Sequence[str], encoding: tiktoken.Encoding) -> Starlette:
    """The application, answering to these model names."""
    tokens = Tokens(encoding)
    names = frozenset(models)
    routes = [
        Route("/health", _health),
        Route("/v1/models", partial(_list, sorted(names))),
        Route("/v1/chat/completions", partial(_answer, names, tokens), methods=["POST"]),
        Route("/v1/completions", partial(_answer, names, tokens), methods=["POST"]),
        Route("/tokenize", partial(_tokenize, tokens), methods=["POST"]),
        Route("/detokenize", partial(_detokenize, tokens), methods=["POST"]),
    ]
    return Starlette(routes=routes)


class _Answered:
    """One choice: its pieces up to the limit, and how it ended."""

    def __init__(self, tokens: Tokens, said: Said, limit: int | None, call_id: str) -> None:
        pieces = tokens.pieces(said, call_id)
        num_ids = sum(len(piece.ids) for piece in pieces) + 1
        self.is_cut = limit is not None and num_ids > limit
        if self.is_cut:
            ids = [token for piece in pieces for token in piece.ids][:limit]
            pieces = [Piece((token,), {"content": tokens.text([token])}) for token in ids]
        else:
            pieces = [*pieces, Piece((END,), {})]
        self.pieces = pieces
        self.finish_reason = "length" if self.is_cut else "tool_calls" if said.tool else "stop"
        self._said = said
        self._call_id = call_id

    @property
    def ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.ids]

    @property
    def text(self) -> str:
        return "".join(str(piece.delta.get("content", "")) for piece in self.pieces)

    @property
    def message(self) -> Json:
        if self._said.tool is None or self.is_cut:
            return {"role": "assistant", "content": self.text}
        function = {"name": self._said.tool, "arguments": self._said.arguments}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": self._call_id, "type": "function", "function": function}],
        }


async def _health(request: Request) -> Response:
    del request
    return Response()


async def _list(models: Sequence[str], request: Request) -> Response:
    del request
    cards = [{"id": name, "object": "model", "root": name, "owned_by": "hone"} for name in models]
    return JSONResponse({"object": "list", "data": cards})


async def _tokenize(tokens: Tokens, request: Request) -> Response:
    ids = tokens.prompt(await request.json())
    return JSONResponse({"count": len(ids), "max_model_len": 2**20, "tokens": ids})


async def _detokenize(tokens: Tokens, request: Request) -> Response:
    body = await request.json()
    return JSONResponse({"prompt": tokens.text(body["tokens"])})


async def _answer(models: frozenset[str], tokens: Tokens, request: Request) -> Response:
    body = cast("Json", await request.json())
    if body.get("model") not in models:
        error = {"message": f"The model {body.get('model')!r} does not exist.", "type": "NotFoundError", "code": 404}
        return JSONResponse({"error": error}, status_code=404)
    is_chat = request.url.path.endswith("chat/completions")
    prompt = tokens.prompt(body)
    if not is_chat and body.get("max_tokens") == 1 and body.get("logprobs"):
        return JSONResponse(scored(body, prompt))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    seed = zlib.crc32(repr(prompt).encode())
    answers = [
        _Answered(tokens, answer_to(body, index), limit, f"call_{seed:08x}{index:02x}")
        for index in range(int(body.get("n") or 1))
    ]
    frame = {"id": f"scripted-{seed:08x}", "created": 0, "model": body["model"]}
    if not body.get("stream"):
        return JSONResponse(_whole(frame, prompt, answers, is_chat=is_chat))
    events = _events(frame, prompt, answers, is_chat=is_chat)
    return StreamingResponse(events, media_type="text/event-stream")


def _whole(frame: Json, prompt: list[int], answers: list[_Answered], *, is_chat: bool) -> Json:
    choices = [
        {
            "index": index,
            **({"message": answer.message} if is_chat else {"text": answer.text, "prompt_token_ids": prompt}),
            "finish_reason": answer.finish_reason,
            "logprobs": _logprobs(answer.ids, is_chat=is_chat),
            "token_ids": answer.ids,
        }
        for index, answer in enumerate(answers)
    ]
    whole = {**frame, "object": "chat.completion" if is_chat else "text_completion", "choices": choices}
    return {**whole, "usage": _usage(prompt, answers), **({"prompt_token_ids": prompt} if is_chat else {})}


async def _events(frame: Json, prompt: list[int], answers: list[_Answered], *, is_chat: bool) -> AsyncGenerator[bytes]:
    frame = {**frame, "object": "chat.completion.chunk" if is_chat else "text_completion"}
    if is_chat:
        opening = [
            {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            for index in range(len(answers))
        ]
        yield _event({**frame, "choices": opening, "prompt_token_ids": prompt})
    for index, answer in enumerate(answers):
        for piece in answer.pieces:
            choice: Json = {"index": index, "finish_reason": None, "token_ids": list(piece.ids)}
            choice["logprobs"] = _logprobs(piece.ids, is_chat=is_chat)
            if is_chat:
                choice["delta"] = piece.delta
            else:
                choice |= {"text": piece.delta.get("content", ""), "prompt_token_ids": prompt}
            if piece is answer.pieces[-1]:
                choice["finish_reason"] = answer.finish_reason
            yield _event({**frame, "choices": [choice]})
    yield _event({**frame, "choices": [], "usage": _usage(prompt, answers)})
    yield b"data: [DONE]\n\n"


def _event(value: Json) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _usage(prompt: list[int], answers: list[_Answered]) -> Json:
    sampled = sum(len(answer.ids) for answer in answers)
    return {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}


def _logprobs(ids: Sequence[int], *, is_chat: bool) -> Json:
    if is_chat:
        return {"content": [{"token": f"token_id:{token}", "logprob": LOGPROB, "top_logprobs": []} for token in ids]}
    return {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": [LOGPROB] * len(ids)}


def scored(body: Json, prompt: list[int]) -> Json:
    """A one-token answer with its alternatives, from one fixed distribution at the temperature that is asked for."""
    temperature = float(body.get("temperature") or 1.0)
    total = math.log(sum(math.exp(logit / temperature) for logit in SCORES))
    scores: dict[str, float] = {f"token_id:{n}": logit / temperature - total for n, logit in enumerate(SCORES)}
    logprobs: dict[str, Any] = {"tokens": ["token_id:0"], "token_logprobs": [scores["token_id:0"]]}
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": "length",
        "logprobs": {**logprobs, "top_logprobs": [scores]},
        "token_ids": [0],
        "prompt_token_ids": prompt,
    }
    return {"id": "scripted", "object": "text_completion", "created": 0, "model": body["model"], "choices": [choice]}
