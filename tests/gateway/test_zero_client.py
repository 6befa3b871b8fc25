"""Base URL and an ordinary key, nothing else: an agent of the openai package before a gateway as users start it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.gateway_process import gateway_process
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_answers import END, SEPARATOR
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.types import Scope

pytestmark = pytest.mark.slow
Json = dict[str, Any]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def tool_turns(engine: ScriptedEngine, first: int, last: int) -> None:
    """Each answer asks for the tool again, and each prompt begins with all that came before."""
    prompt = [1, 2]
    for turn in range(last):
        ids = (10 + turn, END)
        message = {"role": "assistant", "content": None, "tool_calls": [tool_call(f"call-{turn}")]}
        answer = Answer(ids=ids, message=message, finish_reason="tool_calls")
        if turn >= first:
            engine.script(Script(prompt_ids=tuple(prompt), choices=(answer,)))
        prompt += [*ids, SEPARATOR, 50 + turn]


def tool_call(call_id: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def client_of(url: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def turn(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> tuple[str, Any]:
    """One call of the agent's loop, which grows its messages; the episode it was put in and the answer."""
    raw = await client.chat.completions.with_raw_response.create(model="solver", messages=messages, **more)
    answer = raw.parse()
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "seen"})
    return raw.headers["x-hone-episode"], answer


async def test_a_loop_is_one_episode_also_over_a_gateway_that_is_killed_between_its_turns(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "find it"}]
    episodes: set[str] = set()
    async with gateway_process(tmp_path / "data", HONE_WORKERS="2") as gateway:
        key = gateway.agent_key
        tool_turns(gateway.engine, 0, 2)
        async with client_of(gateway.url, key) as client:
            for _ in range(2):
                episodes.add((await turn(client, messages, tools=TOOLS))[0])
        os.kill(gateway.pid, signal.SIGKILL)
    async with gateway_process(tmp_path / "data", HONE_WORKERS="2") as gateway:
        tool_turns(gateway.engine, 2, 4)
        async with client_of(gateway.url, key) as client:
            for _ in range(2):
                episodes.add((await turn(client, messages, tools=TOOLS))[0])
        [episode] = episodes
        samples = await gateway.ask("GET", f"/v1/episodes/{episode}/samples")
        [sample] = samples["samples"]
        assert (samples["num_calls"], len(sample["spans"]), samples["excluded"]) == (4, 4, [])
        assert sum(sample["loss_mask"]) == 8


async def test_agents_that_know_nothing_are_grouped_rewarded_and_ended(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    env = {"HONE_REDIS_URL": redis_url, "HONE_EPISODE_FROM": "header:X-Session"}
    async with running_gateway(engine, tmp_path, env) as gateway:
        run = {"run": "default", "idle_s": 6, "group_size": 8}
        assert (await gateway.admin.post("/v1/runs", json=run)).is_success
        async with await gateway.client(Scope.AGENT) as agent:
            key = agent.headers["Authorization"].removeprefix("Bearer ")
        async with client_of(gateway.url, key) as client:
            seconds = await eight_agents(client)
            main = await team(client)
        calls = (await gateway.admin.get(f"/v1/episodes/{main}/timeline")).json()["calls"]
        told = [(call["role"], call["reason"]) for call in calls]
        assert told == [("main", None), ("subagent", None), ("title", "role")]
        for number, (episode, answer) in enumerate(seconds):
            view = await gateway.until(f"/v1/episodes/{episode}", state="archived")
            assert (view["status"], view["group_id"], view["num_calls"]) == ("ok", None, 2)
            rewarded = (await gateway.admin.post("/v1/reward", json={"call_id": answer.id, "reward": 1})).json()
            assert (rewarded["episode_id"], rewarded["late"]) == (episode, False)
            await gateway.admin.post("/v1/reward", json={"episode_id": episode, "reward": number % 2})
        [group] = (await gateway.admin.get("/v1/groups")).json()["data"]
        assert {member["episode_id"] for member in group["members"]} == {episode for episode, _ in seconds}


async def eight_agents(client: openai.AsyncOpenAI) -> list[tuple[str, Any]]:
    """Eight agents that say and hear the same, each in two turns."""
    agents: list[list[Any]] = [[{"role": "user", "content": "same"}] for _ in range(8)]
    firsts = await asyncio.gather(*(turn(client, messages) for messages in agents))
    for messages in agents:
        messages.append({"role": "user", "content": "go on"})
    seconds = await asyncio.gather(*(turn(client, messages) for messages in agents))
    assert len({episode for episode, _ in firsts}) == 8
    assert {episode for episode, _ in firsts} == {episode for episode, _ in seconds}
    return seconds


async def team(client: openai.AsyncOpenAI) -> str:
    """An agent, its helper and a title, of one session."""
    session = {"extra_headers": {"X-Session": "team"}}
    helper = [{"role": "system", "content": "You check."}, {"role": "user", "content": "check"}]
    titled = [{"role": "user", "content": "Generate a title for this conversation: plan"}]
    main, _ = await turn(client, [{"role": "user", "content": "plan"}], tools=TOOLS, **session)
    assert (await turn(client, helper, **session))[0] == main
    assert (await turn(client, titled, **session))[0] == main
    return main


async def test_an_sdk_that_tries_again_leaves_one_episode_in_which_one_attempt_counts(
    engine: ScriptedEngine, gateway: RunningGateway
) -> None:
    engine.script(Script(gate=asyncio.Event()), Script(status=503))
    client = openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=gateway.admin.headers["Authorization"][7:], timeout=3, max_retries=2
    )
    async with client:
        episode, _ = await turn(client, [{"role": "user", "content": "find it"}])
    calls = (await gateway.admin.get(f"/v1/episodes/{episode}/timeline")).json()["calls"]
    assert [(call["retry"], call["state"], call["reason"]) for call in calls] == [
        (0, "aborted", "superseded"),
        (1, "failed", "upstream_failed"),
        (2, "completed", None),
    ]
