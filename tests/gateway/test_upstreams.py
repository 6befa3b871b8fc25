"""A judge beside a policy, as agents meet it: a whole gateway before an engine and before an upstream with its own key.

The upstream is a real server that knows one key and refuses every other; nothing of ours stands in its place.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.slow
KEY = "sk-upstream-secret"
ASK = [{"role": "user", "content": "Is 42 right?"}]
WHOLE: dict[str, Any] = {
    "id": "their-id",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-mini-2024",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "yes", "annotations": [], "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "token_ids": [1, 2],
        }
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13, "prompt_tokens_details": {"a": 1}},
}


class Judge:
    """A server of models that are no policy."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.refusal: dict[str, Any] = {"message": f"no good: {KEY}", "type": "t", "code": None}
        self.whole: dict[str, Any] = WHOLE
        self.events: list[bytes] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.path)
        if self.status in (301, 307):
            raise web.HTTPTemporaryRedirect("/elsewhere")
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": f"bad key {KEY}", "type": "auth"}}, status=401)
        if self.status != 200:
            return web.json_response({"error": self.refusal}, status=self.status, headers={"retry-after": "7"})
        if request.path.endswith("embeddings"):
            return web.json_response({"object": "list", "model": "emb", "data": [{"index": 0, "embedding": [0.5]}]})
        if not body.get("stream"):
            return web.json_response(self.whole)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            await response.write(event)
        return response


@asynccontextmanager
async def judging() -> AsyncIterator[Judge]:
    judge = Judge()
    app = web.Application()
    app.router.add_post("/{rest:.*}", judge.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield judge
    finally:
        await runner.cleanup()


@pytest.fixture
async def judge() -> AsyncIterator[Judge]:
    async with judging() as running:
        yield running


def written(tmp_path: Path, judge: Judge, key: str = KEY) -> dict[str, str]:
    table = f"""
[[upstreams]]
name = "openai"
base_url = "{judge.url}"
key_env = "JUDGE_KEY"
models = ["gpt-4o-mini", "o*"]
input_price = 1.0
output_price = 10.0
"""
    (tmp_path / "hone.toml").write_text(table)
    return {"HONE_CONFIG": str(tmp_path / "hone.toml"), "JUDGE_KEY": key}


@pytest.fixture
async def gateway(
    engine: ScriptedEngine, judge: Judge, tmp_path: Path, redis_url: str
) -> AsyncIterator[RunningGateway]:
    env = {"HONE_REDIS_URL": redis_url, **written(tmp_path, judge)}
    async with running_gateway(engine, tmp_path, env) as running:
        yield running


def agent(episode: dict[str, Any]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=episode["base_url"], api_key=episode["api_key"], max_retries=0)


def chunk(**delta: Any) -> dict[str, Any]:
    reason = delta.pop("finish_reason", None)
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their", "choices": [choice]}


def sse(*events: Any) -> list[bytes]:
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]


async def test_a_judge_runs_beside_the_policy_in_one_episode(
    engine: ScriptedEngine, judge: Judge, gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    episode = await gateway.open()
    async with agent(episode) as client:
        solved = await client.chat.completions.create(model="solver", messages=[{"role": "user", "content": "hi"}])
        raw = await client.chat.completions.with_raw_response.create(
            model="gpt-4o-mini", messages=ASK, temperature=0.2, response_format={"type": "json_object"}, max_tokens=9
        )
    told = json.loads(raw.content)
    assert raw.headers["x-hone-upstream"] == "openai"
    assert told["id"] == raw.headers["x-hone-call"] != "their-id"
    assert {**told, "id": 0, "model": 0} == {**WHOLE, "id": 0, "model": 0}
    assert told["model"] == "gpt-4o-mini"
    # the upstream saw its own key, the agent's own fields, and nothing of the agent's key
    (body,), (headers,) = judge.bodies, judge.headers
    assert body == {
        "model": "gpt-4o-mini",
        "messages": ASK,
        "temperature": 0.2,
        "response_format": {"type": "json_object"},
        "max_tokens": 9,
    }
    assert headers["authorization"] == f"Bearer {KEY}"
    assert episode["api_key"] not in json.dumps(headers)
    assert all(KEY not in json.dumps(dict(call.headers)) for call in engine.received)
    # recorded as words, never as tokens; the policy's call trains unharmed
    samples = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/samples")).json()
    assert [span["call_id"] for sample in samples["samples"] for span in sample["spans"]] == [solved.id]
    assert [(e["call_id"], e["reason"]) for e in samples["excluded"]] == [(told["id"], "not_policy_distribution")]
    timeline = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
    call = next(call for call in timeline["calls"] if call["call_id"] == told["id"])
    assert (call["policy"], call["model"], call["num_prompt_ids"]) == (None, "gpt-4o-mini", 0)
    assert call["message"]["content"] == "yes"
    assert call["usage"] == {"prompt_tokens": 11, "completion_tokens": 2, "counted": "reported", "cost": 3.1e-05}
    assert call["detail"] == ""
    assert KEY not in json.dumps(timeline)
    shown = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}")).json()
    assert shown["upstreams"] == {"num_calls": 1, "prompt_tokens": 11, "completion_tokens": 2, "cost": 3.1e-05}
    # archived, it reads the same
    reward = {"call_id": told["id"], "reward": 1}
    assert (await gateway.admin.post("/v1/reward", json=reward)).status_code == 201
    reward = {"episode_id": episode["episode_id"], "reward": 1}
    assert (await gateway.admin.post("/v1/reward", json=reward)).status_code == 201
    archived = await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
    assert archived["upstreams"] == shown["upstreams"]
    assert archived["num_samples"] == 1
    written_files = [path for path in gateway.settings.stores.data_dir.rglob("*") if path.is_file()]
    assert written_files
    assert all(KEY.encode() not in path.read_bytes() for path in written_files)
    assert KEY not in caplog.text


async def test_a_stream_passes_one_for_one_and_is_counted(judge: Judge, gateway: RunningGateway) -> None:
    extra = {"type": "moderation", "flagged": False}
    judge.events = [
        b": OPENROUTER PROCESSING\n\n",
        *sse(
            chunk(role="assistant", content="", x_extra=1),
            extra,
            chunk(content="ye"),
            {**chunk(content="s"), "obfuscation": "zz"},
            chunk(finish_reason="stop"),
        ),
        b"data: [DONE]\n\n",
    ]
    episode = await gateway.open()
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    body = {"model": "o3", "messages": ASK, "stream": True}
    answered = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)
    events = answered.content.split(b"\n\n")
    assert events[0] == b": OPENROUTER PROCESSING"
    said = [json.loads(event.removeprefix(b"data: ")) for event in events[1:6]]
    call_id = answered.headers["x-hone-call"]
    same = {"id": call_id, "model": "o3"}
    assert said == [
        {**chunk(role="assistant", content="", x_extra=1), **same},
        extra,
        {**chunk(content="ye"), **same},
        {**chunk(content="s"), "obfuscation": "zz", **same},
        {**chunk(finish_reason="stop"), **same},
    ]
    assert events[6:] == [b"data: [DONE]", b""]
    assert judge.bodies[0]["stream_options"] == {"include_usage": True}
    timeline = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
    (call,) = timeline["calls"]
    assert call["message"]["content"] == "yes"
    assert call["usage"]["counted"] == "tiktoken:o200k_base"
    assert call["usage"]["completion_tokens"] == 1
    assert call["usage"]["cost"] > 0


async def test_what_goes_wrong_upstream_is_told_in_words_that_are_no_fault_of_the_agents_key(
    judge: Judge, gateway: RunningGateway, engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    episode = await gateway.open()
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    body = {"model": "gpt-4o-mini", "messages": ASK}

    async def status_and_words(status: int) -> tuple[int, str]:
        judge.status = status
        answered = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)
        assert KEY not in answered.text
        return answered.status_code, answered.json()["error"]["message"]

    for status in (400, 404, 429, 503):
        assert await status_and_words(status) == (status, "no good: ***")
    assert (await status_and_words(500))[0] == 502
    for status in (401, 403):
        code, words = await status_and_words(status)
        assert code == 502
        assert f"The upstream openai refused the key that this gateway has for it (HTTP {status})" in words
    code, words = await status_and_words(307)
    assert (code, words) == (502, "The upstream openai answered with a redirect, which is never followed.")
    assert "/elsewhere" not in judge.paths
    judge.status = 200
    judge.events = [*sse(chunk(content="y"), {"error": {"message": f"over {KEY}", "type": "x", "code": 429}})]
    streamed = await gateway.admin.post("/v1/chat/completions", headers=headers, json={**body, "stream": True})
    last = streamed.content.split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "over ***"
    refused = await gateway.admin.post(
        "/v1/chat/completions", headers=headers, json={**body, "api_base": "http://127.0.0.1:9"}
    )
    assert refused.status_code == 400
    unknown = await gateway.admin.post("/v1/chat/completions", headers=headers, json={**body, "model": "claude"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert "gpt-4o-mini" in unknown.json()["error"]["message"]
    env = {"HONE_REDIS_URL": redis_url, **written(tmp_path, judge, key="wrong")}
    async with running_gateway(engine, tmp_path / "other", env) as other:
        opened = await other.open()
        async with agent(opened) as client:
            with pytest.raises(openai.InternalServerError) as failed:
                await client.chat.completions.create(model="gpt-4o-mini", messages=ASK)
            assert failed.value.status_code == 502
            assert "bad key" not in str(failed.value)


async def test_completions_and_models_know_upstreams_too(judge: Judge, gateway: RunningGateway) -> None:
    text = {"index": 0, "text": " 42", "finish_reason": "length"}
    judge.whole = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [text]}
    episode = await gateway.open()
    async with agent(episode) as client:
        assert [model.id async for model in client.models.list()] == ["solver", "gpt-4o-mini"]
        assert (await client.models.retrieve("o3-mini")).owned_by == "openai"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("claude")
        answer = await client.completions.create(model="o1", prompt="6 * 7 =", max_tokens=1)
    assert (answer.choices[0].text, answer.model) == (" 42", "o1")
    assert judge.paths == ["/v1/completions"]
    (call,) = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()["calls"]
    assert (call["message"], call["truncated"]) == (" 42", True)


async def test_embeddings_pass_through_unrecorded(
    engine: ScriptedEngine, judge: Judge, gateway: RunningGateway
) -> None:
    episode = await gateway.open()
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    async with agent(episode) as client:
        answer = await client.embeddings.create(model="o-embed", input=["a", "b"], dimensions=1)
        assert (answer.data[0].embedding, answer.model) == ([0.5], "o-embed")
    assert (judge.paths, judge.headers[0]["authorization"]) == (["/v1/embeddings"], f"Bearer {KEY}")
    assert judge.bodies[0]["input"] == ["a", "b"]
    assert judge.bodies[0]["dimensions"] == 1

    async def post(**body: Any) -> tuple[int, Any]:
        answered = await gateway.admin.post("/v1/embeddings", headers=headers, json={"input": "a", **body})
        return answered.status_code, answered.json()["error"]

    # a policy's name, and the engine's own name for its base, are the engine's; this one serves no embeddings
    for name in ("solver", "base"):
        assert (await post(model=name))[0] == 404
        asked = [received for received in engine.received if received.path == "/v1/embeddings"][-1]
        assert asked.body["model"] == "base"
    assert (await post(model="claude"))[1]["code"] == "model_not_found"
    assert (await post(model="solver", api_base="http://127.0.0.1:9"))[1]["code"] == "forbidden_field"
    assert (await post(model="solver", messages=[]))[0] == 400
    assert (await post(model="solver", input=None))[1]["param"] == "input"
    assert (await post())[1]["param"] == "model"
    assert (await gateway.admin.get("/v1/embeddings")).status_code == 405
    assert (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}")).json()["num_calls"] == 0
    assert (
        await gateway.admin.post(f"/v1/episodes/{episode['episode_id']}/finish", json={"status": "ok"})
    ).status_code == 200
    assert (await post(model="o-embed"))[0] == 410


async def test_responses_and_messages_reach_an_upstream_as_chats(judge: Judge, gateway: RunningGateway) -> None:
    judge.events = [
        b": ping\n\n",
        *sse(
            chunk(role="assistant", content=""),
            {"type": "moderation"},
            chunk(content="ye"),
            chunk(content="s"),
            chunk(finish_reason="stop"),
            {**chunk(), "choices": [], "usage": WHOLE["usage"]},
        ),
        b"data: [DONE]\n\n",
    ]
    episode = await gateway.open()
    root = episode["base_url"].removesuffix("/v1")
    claude = anthropic.AsyncAnthropic(base_url=root, api_key=episode["api_key"], max_retries=0)
    asked: dict[str, Any] = {"model": "gpt-4o-mini", "max_tokens": 9, "messages": ASK}
    async with agent(episode) as client, claude:
        whole = await client.responses.create(model="gpt-4o-mini", input="Is 42 right?", max_output_tokens=9)
        async with client.responses.stream(model="gpt-4o-mini", input="Is 42 right?") as stream:
            streamed = await stream.get_final_response()
        message = await claude.messages.create(**asked)
        async with claude.messages.stream(**asked) as messages:
            said = await messages.get_final_text()
    assert [whole.output_text, streamed.output_text, message.content[0].text, said] == ["yes"] * 4
    assert set(judge.paths) == {"/v1/chat/completions"}
    known = {"model", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
    assert [set(body) - known for body in judge.bodies] == [set()] * 4
    calls = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()["calls"]
    assert [call["dialect"] for call in calls] == ["responses", "responses", "messages", "messages"]
    for call in calls:
        assert (call["policy"], call["reason"], call["num_prompt_ids"]) == (None, "not_policy_distribution", 0)
        assert (call["message"]["content"], call["usage"]["prompt_tokens"]) == ("yes", 11)
