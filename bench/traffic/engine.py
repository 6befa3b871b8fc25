"""An engine that costs almost nothing: what a gateway is measured before. Run as `python -m bench.traffic.engine`.

It answers as vLLM does where token ids, log-probabilities and usage are asked for, and does so for every caller, so
that the same bytes come to all. A prompt has a token for each word, an
answer `max_tokens` of them; pieces come one at a time, `pace` seconds apart, so that a gateway wakes up for each as it
does before a real engine. A prompt that begins with a number gets ids of its own: the calls of an episode then share
nothing, which is the dearest case for whoever keeps them. What can be is written down beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import lru_cache
from typing import Any, Final

import msgspec
import uvicorn

from bench.traffic.asgi import Message, Receive, Send, read_body
from gateway.scripted.engine import scored

Json = dict[str, Any]
BASE: Final = "base"
VOCABULARY: Final = 131_072
LOGPROB: Final = -0.75
JSON: Final = (b"content-type", b"application/json")
EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")


class Engine:
    """The ASGI application. A whole answer takes `delay_s`, a streamed one `pace_s` a piece."""

    def __init__(self, delay_s: float, pace_s: float) -> None:
        self._delay_s = delay_s
        self._pace_s = pace_s

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not scope["path"].endswith("completions"):
            await _whole(send, msgspec.json.encode({"object": "list", "data": [{"id": BASE, "object": "model"}]}))
            return
        asked = msgspec.json.decode(await read_body(receive))
        if not scope["path"].endswith("chat/completions"):
            prompt = asked["prompt"] if isinstance(asked["prompt"], list) else [1]
            await _whole(send, msgspec.json.encode(scored(asked, prompt)))
            return
        said = " ".join(str(message["content"]) for message in asked["messages"])
        seed, num_prompt = int(said.split(" ", 1)[0]), said.count(" ") + 1
        num_answer = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        if not asked.get("stream"):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await _whole(send, whole_answer(seed, num_prompt, num_answer))
            return
        await self._stream(send, pieces(seed, num_prompt, num_answer))

    async def _stream(self, send: Send, events: tuple[bytes, ...]) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": [EVENTS]})
        due_s = loop.time()
        for event in events:
            due_s += self._pace_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@lru_cache(256)
def whole_answer(seed: int, num_prompt: int, num_answer: int) -> bytes:
    """A whole answer of so many tokens."""
    ids = token_ids(seed + 1, num_answer)
    choice: Json = {
        "index": 0,
        "message": {"role": "assistant", "content": "word " * num_answer},
        "logprobs": _logprobs(ids),
        "finish_reason": "stop",
        "token_ids": ids,
    }
    answer: Json = {**_frame("chat.completion"), "choices": [choice], "usage": _usage(num_prompt, num_answer)}
    return msgspec.json.encode({**answer, "prompt_token_ids": token_ids(seed, num_prompt)})


@lru_cache(256)
def pieces(seed: int, num_prompt: int, num_answer: int) -> tuple[bytes, ...]:
    """The events of a streamed answer, one for each token; the first names the role and the prompt's ids."""
    frame = _frame("chat.completion.chunk")
    opening: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    events = [{**frame, "choices": [opening], "prompt_token_ids": token_ids(seed, num_prompt)}]
    for place, token in enumerate(token_ids(seed + 1, num_answer)):
        choice: Json = {
            "index": 0,
            "delta": {"content": "word "},
            "logprobs": _logprobs([token]),
            "finish_reason": "stop" if place == num_answer - 1 else None,
            "token_ids": [token],
        }
        events.append({**frame, "choices": [choice]})
    events.append({**frame, "choices": [], "usage": _usage(num_prompt, num_answer)})
    return tuple(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)


def token_ids(seed: int, count: int) -> list[int]:
    """Ids that look like those of a vocabulary, other ones for each seed."""
    return [(seed * 104_729 + place * 7_919) % VOCABULARY for place in range(count)]


def _frame(kind: str) -> Json:
    return {"id": "chatcmpl-0123456789abcdef", "object": kind, "created": 1_700_000_000, "model": BASE}


def _usage(num_prompt: int, num_answer: int) -> Json:
    return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": num_prompt + num_answer}


def _logprobs(ids: list[int]) -> Json:
    return {"content": [{"token": f"token_id:{i}", "logprob": LOGPROB, "bytes": None, "top_logprobs": []} for i in ids]}


async def _whole(send: Send, body: bytes) -> None:
    headers = [JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    app = Engine(options.delay, options.pace)
    uvicorn.run(app, port=options.port, access_log=False, log_level="warning", lifespan="off", backlog=4096)


if __name__ == "__main__":
    main()
