"""The engine over a real socket, with httpx and the openai package."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "hello there"}]
Start = Callable[..., AbstractContextManager[str]]


def chat(url: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"messages": HELLO, "max_tokens": 8, "seed": 1, **fields}
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def completion(url: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "hello", "max_tokens": 8, "seed": 1, **fields}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def stream(url: str, path: str = "chat/completions", **fields: Any) -> list[dict[str, Any]]:
    body = {"max_tokens": 8, "seed": 1, "stream": True, **fields}
    if path == "chat/completions":
        body.setdefault("messages", HELLO)
    with httpx.stream("POST", f"{url}/v1/{path}", json=body, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def load(url: str, name: str, path: Path | str) -> httpx.Response:
    return httpx.post(url + "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}, timeout=60)


def unload(url: str, name: str) -> httpx.Response:
    return httpx.post(url + "/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)


def is_idle(url: str) -> bool:
    return httpx.get(url + "/load", timeout=60).json()["server_load"] == 0


def wait_for(predicate: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not predicate():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_a_whole_answer_carries_ids_and_logprobs_of_every_sampled_token(engine: str) -> None:
    answer = chat(engine, logprobs=True, top_logprobs=3, return_token_ids=True, max_tokens=30)
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in choice["logprobs"]["content"])
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in {"stop", "length"}


def test_nothing_is_added_that_was_not_asked_for(engine: str) -> None:
    answer = chat(engine)
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
    assert answer["choices"][0]["logprobs"] is None
    assert "tool_calls" not in answer["choices"][0]["message"]


def test_a_stream_says_the_same_as_the_whole_answer(engine: str) -> None:
    asked = {"logprobs": True, "return_token_ids": True, "n": 3, "max_tokens": 20}
    whole = chat(engine, **asked)
    chunks = stream(engine, **asked, stream_options={"include_usage": True})
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    parts = [chunk["choices"][0] for chunk in chunks[:-1]]
    for choice in whole["choices"]:
        mine = [part for part in parts if part["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [i for part in mine[1:] for i in part["token_ids"]] == choice["token_ids"]
        assert [e for part in mine[1:] for e in part["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert "".join(part["delta"]["content"] for part in mine) == choice["message"]["content"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
    assert len({tuple(choice["token_ids"]) for choice in whole["choices"]}) == 3


def test_a_completion_stream_says_the_same_as_the_whole_answer(engine: str) -> None:
    asked = {"prompt": "once", "logprobs": 2, "return_token_ids": True, "n": 2}
    whole = completion(engine, **asked)
    chunks = stream(engine, "completions", **asked)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [i for part in mine for i in part["token_ids"]] == choice["token_ids"]
        assert [p for part in mine for p in part["logprobs"]["token_logprobs"]] == choice["logprobs"]["token_logprobs"]
        assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])


def test_log_probabilities_name_tokens_by_id_where_that_is_asked_for(engine: str) -> None:
    choice = completion(
        engine, prompt=[7], logprobs=20, max_tokens=1, return_tokens_as_token_ids=True, return_token_ids=True
    )["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{choice['token_ids'][0]}"]
    top = choice["logprobs"]["top_logprobs"][0]
    assert len(top) in (20, 21)
    assert all(name.startswith("token_id:") for name in top)


def test_token_ids_as_a_prompt_equal_the_text(engine: str) -> None:
    text = completion(engine, prompt="some words", return_token_ids=True, logprobs=0)
    ids = text["choices"][0]["prompt_token_ids"]
    for prompt in (ids, [ids], ["some words"]):
        again = completion(engine, prompt=prompt, return_token_ids=True, logprobs=0)
        assert again["choices"] == text["choices"]


def test_a_temperature_of_zero_is_deterministic_and_equals_a_top_k_of_one(engine: str) -> None:
    asked = {"return_token_ids": True, "max_tokens": 40, "ignore_eos": True}
    first = chat(engine, temperature=0, seed=1, **asked)
    again = chat(engine, temperature=0, seed=2, **asked)
    top_1 = chat(engine, temperature=1, top_k=1, **asked)
    assert first["choices"] == again["choices"]
    assert top_1["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


async def test_a_seed_gives_the_same_answer_in_any_company(engine: str) -> None:
    alone = chat(engine, seed=42, return_token_ids=True, max_tokens=30)
    async with httpx.AsyncClient(base_url=engine, timeout=60) as client:
        bodies = [
            {"messages": [{"role": "user", "content": "x" * i}], "max_tokens": 20, "seed": i} for i in range(1, 20)
        ]
        bodies.insert(9, {"messages": HELLO, "seed": 42, "max_tokens": 30, "return_token_ids": True})
        answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
    assert answers[9].json()["choices"] == alone["choices"]


def test_without_a_seed_answers_differ(engine: str) -> None:
    answers = [chat(engine, seed=None, max_tokens=20)["choices"][0]["message"]["content"] for _ in range(3)]
    assert len(set(answers)) == 3


def test_the_end_token_is_among_the_ids_and_not_in_the_text(engine: str) -> None:
    end = 258
    answer = chat(engine, logit_bias={str(end): 100}, return_token_ids=True, logprobs=True)
    choice = answer["choices"][0]
    assert choice["token_ids"] == [end]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == ""
    assert choice["logprobs"]["content"][0]["logprob"] == pytest.approx(0.0, abs=1e-4)
    assert answer["usage"]["completion_tokens"] == 1
    more = chat(engine, logit_bias={str(end): 100}, return_token_ids=True, ignore_eos=True, max_tokens=3)
    assert more["choices"][0]["token_ids"] == [end] * 3
    assert more["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_cuts_the_text_and_keeps_the_ids(engine: str) -> None:
    free = completion(engine, return_token_ids=True, max_tokens=60, logit_bias={"258": -100, "256": -100, "257": -100})
    text = free["choices"][0]["text"]
    stop = text[20:22]
    cut = completion(
        engine,
        return_token_ids=True,
        max_tokens=60,
        stop=["never this", stop],
        logit_bias={"258": -100, "256": -100, "257": -100},
    )["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["text"] == text[: text.index(stop)]
    assert cut["token_ids"] == free["choices"][0]["token_ids"][: len(cut["token_ids"])]
    wait_for(lambda: is_idle(engine))


def test_tokens_are_counted_as_they_are_rendered(engine: str) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    asked = {"messages": [{"role": "system", "content": "brief"}, *HELLO], "tools": tools}
    counted = httpx.post(engine + "/tokenize", json={"model": "tiny", **asked}, timeout=60).json()
    answer = chat(engine, return_token_ids=True, **asked)
    assert counted["tokens"] == answer["prompt_token_ids"]
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    unknown = httpx.post(engine + "/tokenize", json={"model": "none", **asked}, timeout=60)
    assert unknown.status_code == 404


def test_ids_are_told_as_text_with_their_marks(engine: str) -> None:
    answer = chat(engine, return_token_ids=True)
    told = httpx.post(engine + "/detokenize", json={"tokens": answer["prompt_token_ids"]}, timeout=60).json()
    assert HELLO[-1]["content"] in told["prompt"]
    far = httpx.post(engine + "/detokenize", json={"tokens": [10**9]}, timeout=60)
    assert far.status_code == 400


def test_text_parts_developer_and_null_content_reach_the_template(engine: str) -> None:
    plain = [{"role": "system", "content": "a\nb"}, {"role": "assistant", "content": ""}, *HELLO]
    odd = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        *HELLO,
    ]
    first = chat(engine, messages=plain, return_token_ids=True)
    second = chat(engine, messages=odd, return_token_ids=True)
    assert first["prompt_token_ids"] == second["prompt_token_ids"]


def test_null_means_absent(engine: str) -> None:
    nulls = dict.fromkeys(("n", "stop", "top_p", "tools", "logprobs", "response_format", "temperature", "stream"))
    assert chat(engine, **nulls)["choices"] == chat(engine)["choices"]


REFUSED = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "judge", "content": "x"}]}, "judge"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text parts"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": [""]}, "stop"),
    ({"seed": 2**70}, "seed"),
    ({"top_logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"max_tokens": 2000}, "maximum context length is 512"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "maximum context length is 512"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=[str(fields)[:60] for fields, _ in REFUSED])
def test_what_cannot_be_served_is_refused_by_name(engine: str, fields: dict[str, Any], named: str) -> None:
    error = chat(engine, status=400, **fields)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert named in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": [5, -1]},
        {"prompt": [259]},
        {"prompt": None},
        {"prompt": "a", "echo": True},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "best_of": 2},
        {"prompt": "a", "logprobs": 50},
        {"prompt": list(range(256)) * 2},
    ],
)
def test_completions_that_cannot_be_served_are_refused(engine: str, fields: dict[str, Any]) -> None:
    assert completion(engine, status=400, **fields)["error"]["type"] == "BadRequestError"


def test_fields_that_ask_for_nothing_are_accepted(engine: str) -> None:
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "top_k": -1,
        "nobody_knows": {"this": 1},
    }
    assert chat(engine, **neutral)["choices"] == chat(engine)["choices"]


def test_no_json_and_no_such_route_are_errors_in_json(engine: str) -> None:
    broken = httpx.post(engine + "/v1/chat/completions", content=b"{oops")
    assert broken.status_code == 400
    assert broken.json()["error"]["type"] == "BadRequestError"
    lost = httpx.get(engine + "/v1/nothing")
    assert lost.status_code == 404
    assert lost.json()["error"]["type"] == "NotFoundError"


def test_an_unknown_model_is_a_404(engine: str) -> None:
    error = chat(engine, status=404, model="nope")["error"]
    assert error["message"] == "The model `nope` does not exist."
    assert error["code"] == 404


def test_a_context_that_is_exactly_full_is_served(engine: str) -> None:
    answer = completion(engine, prompt=[97] * 500, max_tokens=12, ignore_eos=True)
    assert answer["usage"] == {"prompt_tokens": 500, "completion_tokens": 12, "total_tokens": 512}
    completion(engine, status=400, prompt=[97] * 500, max_tokens=13)
    open_end = chat(engine, max_tokens=None, ignore_eos=True)
    assert open_end["usage"]["total_tokens"] == 512


def test_the_key_is_asked_for_everywhere_but_health(start_engine: Start) -> None:
    with start_engine(key="secret") as url:
        assert httpx.get(url + "/health").status_code == 200
        assert httpx.get(url + "/v1/models").status_code == 401
        assert httpx.get(url + "/v1/models", headers={"authorization": "Bearer no"}).status_code == 401
        assert httpx.get(url + "/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200


def test_the_openai_package_reads_whole_and_streamed_answers(engine: str) -> None:
    with openai.OpenAI(base_url=engine + "/v1", api_key="x") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        whole = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], seed=3, max_tokens=9, logprobs=True
        )
        assert whole.choices[0].logprobs is not None
        with client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], seed=3, max_tokens=9, stream=True
        ) as chunks:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        done = client.completions.create(model="tiny", prompt="hi", max_tokens=4)
        assert done.usage is not None
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], n=0)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nope", prompt="hi")


async def test_the_async_openai_package_streams_many_answers_at_once(engine: str) -> None:
    async with openai.AsyncOpenAI(base_url=engine + "/v1", api_key="x") as client:

        async def one(seed: int) -> int:
            chunks = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"number {seed}"}],
                seed=seed,
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
            usages = [chunk.usage.completion_tokens async for chunk in chunks if chunk.usage]
            return usages[0]

        counts = await asyncio.gather(*(one(seed) for seed in range(40)))
    assert all(1 <= count <= 20 for count in counts)


async def test_clients_that_leave_take_their_sequences_along(engine: str) -> None:
    async with httpx.AsyncClient(base_url=engine, timeout=60) as client:

        async def leave(number: int) -> None:
            body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "stream": number % 2 == 0, "n": 2}
            request = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await asyncio.wait({request}, timeout=0.02 * (number % 5))
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

        await asyncio.gather(*(leave(number) for number in range(50)))
    await asyncio.to_thread(wait_for, lambda: is_idle(engine))
    assert chat(engine)["choices"]


@pytest.mark.slow
async def test_health_answers_while_the_model_works(engine: str) -> None:
    async with httpx.AsyncClient(base_url=engine, timeout=60) as client:
        body = {"messages": HELLO, "max_tokens": 300, "ignore_eos": True}
        work = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(16)]
        num_asked = 0
        while not all(task.done() for task in work):
            assert (await client.get("/health")).status_code == 200
            num_asked += 1
        assert {task.result().status_code for task in work} == {200}
    assert num_asked > 10
