"""Calls that are prompted exactly, from agents to the embedded engine: one branch, whatever templates do to history."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.engine_api import EngineApi
from gateway.engines import EnginePool, Fitness
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.errors import SettingsError
from tracker.settings import PolicySettings

pytestmark = pytest.mark.slow

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
CONTEXT = 16384
"""What the model has room for."""
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}]
ASKED = {"role": "user", "content": "price?"}
POLICIES = """
[[policies]]
name = "solver"
model = "worded"
prompting = "exact"

[[policies]]
name = "plain"
model = "worded"
"""


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded engine with a model that says what its template's mode leads to."""
    folder = tmp_path_factory.mktemp("models") / "worded"
    subprocess.run([sys.executable, "-m", "tests.fakes.worded_model", str(folder)], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "trainer.engine", "--port", "0", "--model", str(folder), "--threads", "1"]
    command += ["--max-model-len", str(CONTEXT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        try:
            assert running.stdout is not None
            found = re.search(r"http://\S+", running.stdout.readline())
            assert found is not None
            yield found.group()
        finally:
            running.kill()


@asynccontextmanager
async def exact_gateway(engine_url: str, tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    (tmp_path / "hone.toml").write_text(POLICIES)
    env = {"HONE_POLICIES": "", "HONE_REDIS_URL": redis_url}
    async with running_gateway(engine_url, tmp_path, env) as running:
        yield running


@pytest.fixture
async def gateway(engine_url: str, tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    async with exact_gateway(engine_url, tmp_path, redis_url) as running:
        yield running


async def ask(gateway: RunningGateway, episode: Json, messages: list[Json], mode: str, **fields: Any) -> Json:
    """One call; the answer's first choice."""
    body = {"model": "solver", "max_tokens": 20, **fields, "messages": messages}
    body["chat_template_kwargs"] = {"mode": mode}
    if mode == "tools":
        body["tools"] = TOOLS
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    response = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body, timeout=60)
    assert response.status_code == 200, response.text
    if not fields.get("stream"):
        return response.json()["choices"][0]
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line and line != "data: [DONE]"]
    assert response.text.endswith("data: [DONE]\n\n")
    return _folded(events)


def _folded(events: list[Json]) -> Json:
    """What a stream's events add up to."""
    message: Json = {"role": "assistant", "content": ""}
    choice: Json = {"message": message}
    for part in (part for event in events for part in event["choices"] if part["index"] == 0):
        message["content"] += part["delta"].get("content") or ""
        message.setdefault("tool_calls", []).extend(part["delta"].get("tool_calls", []))
        choice["finish_reason"] = part["finish_reason"]
    if not message["tool_calls"]:
        del message["tool_calls"]
    return choice


async def converse(gateway: RunningGateway, episode: Json, mode: str, **fields: Any) -> list[Json]:
    """Three turns of an agent that sends back what it received; its messages."""
    messages = [ASKED]
    for _ in range(3):
        choice = await ask(gateway, episode, messages, mode, **fields)
        messages.append(choice["message"])
        for call in choice["message"].get("tool_calls", []):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "42"})
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": "more"})
    return messages


async def timeline(gateway: RunningGateway, episode: Json) -> Json:
    return (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()


def prompting(told: Json) -> list[Json]:
    return [call["prompting"] for call in told["calls"]]


@pytest.mark.parametrize("mode", ["think", "tools", "letters"])
@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_that_sends_back_what_it_got_stays_on_one_branch(
    gateway: RunningGateway, mode: str, streams: bool
) -> None:
    episode = await gateway.open()
    messages = await converse(gateway, episode, mode, stream=streams)
    expected = {"think": "so</think>done", "letters": "abc"}.get(mode, "")
    assert [m["content"] or "" for m in messages if m["role"] == "assistant"] == [expected] * 3
    told = await timeline(gateway, episode)
    assert len(told["branches"]) == 1, told
    first, *later = prompting(told)
    assert (first["mode"], first["reason"]) == ("rendered", "no_answer")
    assert [one["mode"] for one in later] == ["stored", "stored"]
    assert [one["source"] for one in later] == [call["call_id"] for call in told["calls"][:2]]
    assert all(one["num_stored"] > 0 and one["num_changed"] > 0 for one in later)
    samples = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/samples")).json()
    assert len(samples["samples"]) == 1
    assert samples["excluded"] == []


@pytest.mark.parametrize("mode", ["think", "tools", "letters"])
async def test_without_it_every_drift_begins_a_branch_that_shares_what_is_equal(
    gateway: RunningGateway, mode: str
) -> None:
    episode = await gateway.open()
    await converse(gateway, episode, mode, model="plain")
    told = await timeline(gateway, episode)
    assert len(told["branches"]) == 3
    assert prompting(told) == [None] * 3


async def test_where_nothing_drifts_the_prompt_is_the_plain_one(gateway: RunningGateway) -> None:
    exact, plain = await gateway.open(), await gateway.open()
    await converse(gateway, exact, "plain")
    await converse(gateway, plain, "plain", model="plain")
    told, other = await timeline(gateway, exact), await timeline(gateway, plain)
    assert len(told["branches"]) == len(other["branches"]) == 1
    assert [one["num_changed"] for one in prompting(told)] == [0, 0, 0]
    sizes = [[call["num_prompt_ids"] for call in one["calls"]] for one in (told, other)]
    assert sizes[0] == sizes[1]


async def test_what_the_agent_edits_is_rendered_from_there_on(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    messages = await converse(gateway, episode, "think")
    edited = [*messages]
    edited[3] = {**edited[3], "content": "so</think>undone"}
    await ask(gateway, episode, edited, "think")
    await ask(gateway, episode, [{**ASKED, "content": "other?"}, *messages[1:]], "think")
    told = await timeline(gateway, episode)
    third, fourth, fifth = prompting(told)[2:]
    first_call = told["calls"][0]["call_id"]
    assert third["mode"] == fourth["mode"] == "stored"
    assert fourth["source"] == first_call  # the answer before the edited one stands
    assert (fifth["mode"], fifth["reason"]) == ("rendered", "no_match")
    assert len(told["branches"]) == 3


async def test_a_cut_answer_gets_the_templates_end_as_context(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    first = await ask(gateway, episode, [ASKED], "letters", max_tokens=2)
    assert (first["message"]["content"], first["finish_reason"]) == ("ab", "length")
    await ask(gateway, episode, [ASKED, first["message"], ASKED], "letters")
    told = await timeline(gateway, episode)
    assert len(told["branches"]) == 1
    (sample,) = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/samples")).json()["samples"]
    start, end = sample["spans"][0]["start"], sample["spans"][0]["end"]
    assert end - start == 2
    assert sample["loss_mask"][end] == 0


async def test_stop_strings_are_cut_and_ids_kept(gateway: RunningGateway) -> None:
    for streams in (False, True):
        episode = await gateway.open()
        first = await ask(gateway, episode, [ASKED], "letters", stop=["bc"], stream=streams)
        assert (first["message"]["content"], first["finish_reason"]) == ("a", "stop")
        await ask(gateway, episode, [ASKED, first["message"], ASKED], "letters", stop="nothing", stream=streams)
        told = await timeline(gateway, episode)
        assert told["calls"][0]["choices"][0]["num_sampled_ids"] == 3
        assert told["calls"][1]["message"]["content"] == "abc"
        assert len(told["branches"]) == 1


async def test_the_agent_sees_what_it_asked_for_and_each_choice_is_kept(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    choice = await ask(gateway, episode, [ASKED], "tools", n=3, logprobs=True, return_token_ids=True)
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 2
    quiet = await ask(gateway, episode, [ASKED], "tools", n=2, stream=True)
    assert quiet["message"]["tool_calls"][0]["function"] == {"name": "get", "arguments": '{"b": 1, "a": 2}'}
    calls = (await timeline(gateway, episode))["calls"]
    assert [len(call["choices"]) for call in calls] == [3, 2]
    assert [call["reason"] for call in calls] == [None, None]


@pytest.mark.parametrize("mode", ["think", "tools"])
async def test_responses_stay_on_one_branch_too(gateway: RunningGateway, mode: str) -> None:
    episode = await gateway.open()
    items: list[Json] = [{"role": "user", "content": "price?"}]
    for _ in range(3):
        body: Json = {"model": "solver", "input": items, "chat_template_kwargs": {"mode": mode}}
        if mode == "tools":
            body["tools"] = [{"type": "function", "name": "get", "parameters": {"type": "object"}}]
        answer = await post(gateway, episode, "/v1/responses", body)
        items += answer["output"]
        calls = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        items += [{"type": "function_call_output", "call_id": call_id, "output": "42"} for call_id in calls]
        items += [] if calls else [{"role": "user", "content": "more"}]
    await check_one_branch(gateway, episode)


@pytest.mark.parametrize("mode", ["think", "tools"])
async def test_messages_stay_on_one_branch_too(gateway: RunningGateway, mode: str) -> None:
    episode = await gateway.open()
    messages: list[Json] = [{"role": "user", "content": "price?"}]
    for _ in range(3):
        body: Json = {"model": "solver", "max_tokens": 20, "system": mode, "messages": messages}
        if mode == "tools":
            body["tools"] = [{"name": "get", "input_schema": {"type": "object"}}]
        content = (await post(gateway, episode, "/v1/messages", body))["content"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "42"}
            for block in content
            if block["type"] == "tool_use"
        ]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results or "more"}]
    await check_one_branch(gateway, episode)


async def post(gateway: RunningGateway, episode: Json, path: str, body: Json) -> Json:
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    response = await gateway.admin.post(path, headers=headers, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


async def check_one_branch(gateway: RunningGateway, episode: Json) -> None:
    told = await timeline(gateway, episode)
    assert [one["mode"] for one in prompting(told)] == ["rendered", "stored", "stored"], prompting(told)
    assert all(one["num_changed"] for one in prompting(told)[1:])
    assert len(told["branches"]) == 1


async def test_another_gateway_finds_what_the_first_one_stored(engine_url: str, tmp_path: Path, redis_url: str) -> None:
    async with exact_gateway(engine_url, tmp_path, redis_url) as first:
        episode = await first.open()
        messages = await converse(first, episode, "think")
    async with exact_gateway(engine_url, tmp_path, redis_url) as second:
        await ask(second, episode, messages, "think")
        told = await timeline(second, episode)
    assert len(told["branches"]) == 1
    assert prompting(told)[-1]["mode"] == "stored"


async def test_a_conversation_beyond_the_context_is_refused_like_a_plain_one(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    body = {"model": "solver", "messages": [{"role": "user", "content": "x" * (CONTEXT + 1000)}]}
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    response = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert (await timeline(gateway, episode))["calls"][0]["reason"] == "context_limit"


async def test_a_client_that_leaves_ends_the_generation(gateway: RunningGateway, engine_url: str) -> None:
    episode = await gateway.open()
    body = {"model": "solver", "messages": [ASKED], "stream": True, "chat_template_kwargs": {"mode": "endless"}}
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    async with gateway.admin.stream("POST", "/v1/chat/completions", headers=headers, json=body) as response:
        async for _ in response.aiter_bytes():
            break
    async with httpx.AsyncClient() as client, asyncio.timeout(30):
        while (await client.get(f"{engine_url}/load")).json()["server_load"]:
            await asyncio.sleep(0.05)
    await gateway.until(f"/v1/episodes/{episode['episode_id']}", num_in_flight=0)
    (call,) = (await timeline(gateway, episode))["calls"]
    assert (call["state"], call["reason"]) == ("aborted", "client_gone")
    assert 0 < call["choices"][0]["num_sampled_ids"] < CONTEXT / 2


async def test_an_engine_that_cannot_is_refused_with_what_would_help(engine: ScriptedEngine) -> None:
    exact = PolicySettings(name="solver", model="base", prompting="exact")
    async with httpx.AsyncClient() as http:
        pool = EnginePool([engine.url], [exact], EngineApi(http, None))
        with pytest.raises(SettingsError, match=f"solver.*{engine.url}.*--enable-scale-out"):
            await pool.look_at(engine.url)
        assert pool.states()[0].fitness is Fitness.REFUSED
