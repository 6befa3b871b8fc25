"""Rendering, generation from ids and derendering over a real socket: what vLLM serves with its scale-out endpoints."""

import json
from typing import Any

import httpx
import pytest

from tests.trainer.engine.conftest import byte_tokenizer
from tests.trainer.engine.test_app import HELLO, chat

pytestmark = pytest.mark.slow

Json = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "get", "arguments": {"item": "desk"}}</tool_call>'
ASKED: Json = {"messages": HELLO, "max_tokens": 16, "seed": 1, "logprobs": True, "top_logprobs": 2, "n": 2}


def post(url: str, path: str, body: Json, status: int = 200) -> Json:
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def generate(url: str, body: Json, status: int = 200) -> Json:
    return post(url, "/inference/v1/generate", body, status)


def derender(url: str, **body: Any) -> Json:
    return post(url, "/v1/chat/completions/derender", body)


def ids_of(text: str) -> list[int]:
    """What the byte tokenizer of these tests makes of a text."""
    return byte_tokenizer()(text, add_special_tokens=False)["input_ids"]


def test_a_rendering_can_be_generated_from_and_gives_the_same_answer(engine: str) -> None:
    whole = chat(engine, **ASKED, return_token_ids=True)
    rendered = post(engine, "/v1/chat/completions/render", ASKED)
    assert rendered["token_ids"] == whole["prompt_token_ids"]
    for mode in ("text", "tokens"):
        made = generate(engine, {**rendered, "return_token_ids": True, "output_mode": mode})
        assert made["prompt_token_ids"] == whole["prompt_token_ids"]
        assert made["usage"] == whole["usage"]
        for one, other in zip(made["choices"], whole["choices"], strict=True):
            assert one["token_ids"] == other["token_ids"]
            assert one["finish_reason"] == other["finish_reason"]
            scores, expected = ([entry["logprob"] for entry in side["logprobs"]["content"]] for side in (one, other))
            assert scores == pytest.approx(expected, abs=1e-4)
            assert all(len(entry["top_logprobs"]) == 2 for entry in one["logprobs"]["content"])
        if mode == "text":
            texts = [one["message"]["content"] for one in whole["choices"]]
            assert [one["text"] for one in made["choices"]] == texts
            assert all("token" in entry for one in made["choices"] for entry in one["logprobs"]["content"])


def test_a_streamed_generation_says_the_same(engine: str) -> None:
    rendered = post(engine, "/v1/chat/completions/render", ASKED)
    asked = {**rendered, "return_token_ids": True, "output_mode": "text"}
    whole = generate(engine, asked)
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{engine}/inference/v1/generate", json=streamed, timeout=60) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    *events, last = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert ["prompt_token_ids" in event for event in events] == [True] + [False] * (len(events) - 1)
    for choice in whole["choices"]:
        mine = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert [i for part in mine for i in part["token_ids"]] == choice["token_ids"]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", ["naïve 日本 🙂", f"let me see\n{CALL}", "cut <tool_cal", "\ufffd"])
def test_pieces_say_what_the_whole_says(engine: str, text: str, size: int) -> None:
    ids = ids_of(text)
    context = {"chat_request": {"messages": HELLO, "tools": TOOLS}, "prompt_token_ids": ids_of("hi")}
    generated = {"request_id": "r", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}
    message = derender(engine, generate_response=generated, **context)["choices"][0]["message"]
    state, content, calls = None, "", []
    for start in range(0, len(ids), size):
        finish = "stop" if start + size >= len(ids) else None
        chunk = {"choices": [{"index": 0, "token_ids": ids[start : start + size], "finish_reason": finish}]}
        said = derender(engine, stream=True, generate_chunk=chunk, stream_state=state, **context)
        state, delta = said["stream_state"], said["chunk"]["choices"][0]["delta"]
        assert ("role" in delta) == (start == 0)
        content += delta["content"] or ""
        calls += delta.get("tool_calls", [])
    assert content == (message["content"] or "")
    told = [call["function"] for call in message.get("tool_calls", [])]
    assert [call["function"] for call in calls] == told
    assert bool(told) == (CALL in text)


def test_what_cannot_be_served_is_refused(engine: str) -> None:
    ids = ids_of("hi")
    for body in (
        {"token_ids": [], "sampling_params": {}},
        {"token_ids": [10**6], "sampling_params": {}},
        {"token_ids": ids, "sampling_params": {"temperature": -1}},
        {"token_ids": ids, "sampling_params": {"repetition_penalty": 1.3}},
        {"token_ids": ids, "sampling_params": {}, "features": {"images": []}},
    ):
        assert generate(engine, body, 400)["error"]["code"] == 400
    far = generate(engine, {"token_ids": ids * 400, "sampling_params": {}}, 400)
    assert "maximum context length" in far["error"]["message"]
    assert post(engine, "/v1/chat/completions/render", {**ASKED, "model": "none"}, 404)
    two = {"choices": [{"index": 0, "token_ids": ids}, {"index": 1, "token_ids": ids}]}
    for body in ({}, {"stream": True, "generate_chunk": two}, {"generate_response": {"choices": [{"index": 0}]}}):
        post(engine, "/v1/chat/completions/derender", body, 400)


def test_an_answer_without_a_limit_fills_the_context(engine: str) -> None:
    ids = ids_of("x" * 500)
    for params in ({"ignore_eos": True}, {"ignore_eos": True, "max_tokens": 5000}):
        (choice,) = generate(engine, {"token_ids": ids, "sampling_params": params})["choices"]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (512 - len(ids), "length")
