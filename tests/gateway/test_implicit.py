"""Calls with a key and nothing else: which of them are one episode, over the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import Admission
from gateway.arrivals import Arrival
from gateway.auth import Caller, mint
from gateway.conversation import conversation_of
from gateway.dialects.base import Limits
from gateway.dialects.chat import Chat
from gateway.implicit import ImplicitEpisodes
from gateway.meters import Payer
from gateway.paths import AgentPath
from gateway.requests import RequestHeaders
from tests.fakes.running import RunningDoor, running_door, until
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.archive import audit, sweep
from tracker.clock import SystemClock
from tracker.errors import Unavailable
from tracker.exclusion import exclusions
from tracker.memory_store import MemoryStore
from tracker.types import EpisodeStatus, Key, Reason, RunSettings, Scope

pytestmark = pytest.mark.slow
Json = dict[str, Any]
TOOLS: list[Json] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ENV = {"HONE_EPISODE_FROM": "header:X-Session,body:prompt_cache_key,body:metadata.user_id"}


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[RunningDoor]:
    async with ScriptedEngine() as engine, running_door(engine, tmp_path, env=ENV) as running:
        yield running


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(answer: Json) -> Json:
    return answer["choices"][0]["message"]


async def call(door: RunningDoor, messages: list[Json], path: str = "/v1/chat/completions", **more: Any) -> Json:
    """One call that names no episode: its answer, with the episode it was put in."""
    headers = {name.replace("_", "-"): value for name, value in more.pop("headers", {}).items()}
    body = {"model": "solver", "messages": messages, **more}
    async with door.client.post(door.url + path, headers=door.headers(**headers), json=body) as response:
        answer = json.loads(await response.read())
        assert response.status == 200, answer
        return {**answer, "episode": response.headers["X-Hone-Episode"]}


def tool_turn(call_id: str) -> Script:
    """An answer that asks for a tool."""
    function = {"name": "look", "arguments": '{"at": "it", "n": 1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "type": "function"}]}
    message["tool_calls"][0]["function"] = function
    return Script(choices=(Answer(ids=(7, 99), message=message, finish_reason="tool_calls"),))


async def test_a_loop_with_tools_is_one_episode(door: RunningDoor) -> None:
    door.engine.script(tool_turn("call_1"), tool_turn("call_2"))
    messages = [user("find it")]
    episodes: list[str] = []
    for number in (1, 2, 3):
        answer = await call(door, messages, tools=TOOLS)
        episodes.append(answer["episode"])
        messages.append(said(answer))
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "here"})
    assert len(set(episodes)) == 1
    view = await door.view(episodes[0])
    assert view.head.implicit
    assert view.head.task.startswith("auto:")
    assert [made.role for made in view.calls] == ["main"] * 3


async def test_an_answer_is_known_again_however_it_is_written_down(door: RunningDoor) -> None:
    first = await call(door, [user("one two")])
    text = said(first)["content"]
    parts = [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:] + "\n"}]
    history = [{"role": "system", "content": "new"}, {"role": "user", "content": [{"type": "text", "text": "one two"}]}]
    again = await call(door, [*history, {"role": "assistant", "content": parts}, user("go on")])
    assert again["episode"] == first["episode"]
    other = await call(door, [user("another beginning"), {"role": "assistant", "content": text}, user("go on")])
    assert other["episode"] != first["episode"]


async def test_arguments_may_come_back_in_another_order(door: RunningDoor) -> None:
    door.engine.script(tool_turn(""))
    first = await call(door, [user("x")], tools=TOOLS)
    message = said(first)
    message["tool_calls"][0]["function"]["arguments"] = '{"n":1,"at":"it"}'
    again = await call(door, [user("x"), message, user("go on")], tools=TOOLS)
    assert again["episode"] == first["episode"]


async def test_eight_parallel_agents_with_equal_answers_are_eight_episodes(door: RunningDoor) -> None:
    firsts = await asyncio.gather(*(call(door, [user("same")]) for _ in range(8)))
    assert len({said(first)["content"] for first in firsts}) == 1
    history = [user("same"), said(firsts[0]), user("more")]
    seconds = await asyncio.gather(*(call(door, history) for _ in range(8)))
    assert {one["episode"] for one in seconds} == {one["episode"] for one in firsts}
    assert len({one["episode"] for one in firsts}) == 8


async def test_a_task_keeps_conversations_apart_and_names_the_episode(door: RunningDoor) -> None:
    first = await call(door, [user("x")], "/t/task%20a/v1/chat/completions")
    history = [user("x"), said(first), user("y")]
    by_header = await call(door, history, headers={"X_Hone_Task": "task a"})
    other = await call(door, history, "/t/b/v1/chat/completions")
    assert by_header["episode"] == first["episode"] != other["episode"]
    assert [(await door.view(one["episode"])).head.task for one in (first, other)] == ["task a", "b"]
    async with door.client.post(
        f"{door.url}/t/b/v1/chat/completions",
        headers=door.headers(**{"X-Hone-Task": "c"}),
        json={"model": "solver", "messages": [user("x")]},
    ) as response:
        assert response.status == 400


async def test_a_task_beyond_ascii_is_the_same_in_a_header_as_in_the_path(door: RunningDoor) -> None:
    first = await call(door, [user("x")], "/t/t%C3%A4sk/v1/chat/completions", headers={"X_Hone_Task": "täsk"})
    second = await call(door, [user("x"), said(first), user("y")], headers={"X_Hone_Task": "täsk"})
    assert second["episode"] == first["episode"]
    assert (await door.view(first["episode"])).head.task == "täsk"


async def test_another_key_never_goes_on_with_an_episode(door: RunningDoor) -> None:
    first = await call(door, [user("x")])
    key, digest = mint()
    await door.services.ledger.add_key(Key(key_id="k2", digest=digest, scopes=(Scope.AGENT,)))
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "solver", "messages": [user("x"), said(first), user("y")]}
    async with door.client.post(f"{door.url}/v1/chat/completions", headers=headers, json=body) as response:
        assert response.status == 200
        assert response.headers["X-Hone-Episode"] != first["episode"]


async def test_an_episode_that_has_ended_is_followed_by_another_one(door: RunningDoor) -> None:
    first = await call(door, [user("x")])
    history = [user("x"), said(first), user("y")]
    await door.store.finish(first["episode"], EpisodeStatus.OK)
    assert (await call(door, history))["episode"] != first["episode"]


async def test_an_end_that_only_sql_has_heard_of_counts_too(door: RunningDoor) -> None:
    first = await call(door, [user("x")])
    await door.services.ledger.end_episode(first["episode"], EpisodeStatus.OK, 1)
    body = json.dumps({"model": "solver", "messages": [user("x"), said(first), user("y")]}).encode()
    asked = Chat().parse(body, Limits())
    arrival = Arrival(
        caller=Caller(tenant="default", key_id="k1"),
        path=AgentPath(route="chat/completions"),
        asked=asked,
        conversation=conversation_of(asked),
        body_digest="b",
        meter=door.services.meters.meter(Payer(key_id="")),
    )
    elsewhere = ImplicitEpisodes(door.services, Admission(door.services))
    joined = await elsewhere.join(arrival, RequestHeaders([]), "")
    assert joined.admitted.head.episode_id != first["episode"]


async def test_an_episode_that_ends_while_its_next_call_comes_in_is_followed_by_another_one(tmp_path: Path) -> None:
    class Ending(MemoryStore):
        ends = ""

        async def begin_call(self, intent: Any, *rest: Any) -> Any:
            if intent.episode_id == self.ends:
                await self.finish(intent.episode_id, EpisodeStatus.OK)
            return await super().begin_call(intent, *rest)

    store = Ending(SystemClock())
    async with ScriptedEngine() as engine, running_door(engine, tmp_path, store=store) as door:
        first = await call(door, [user("x")])
        store.ends = first["episode"]
        second = await call(door, [user("x"), said(first), user("y")])
        assert second["episode"] != first["episode"]
        assert second["id"].split("-")[1] == second["episode"].removeprefix("ep-")


async def test_sub_agents_join_by_their_session(door: RunningDoor) -> None:
    session = {"headers": {"X_Session": "s1"}}
    asked = [call(door, [user(f"part {n}")], tools=TOOLS, **session) for n in range(4)]
    answers = await asyncio.gather(*asked)
    [episode] = {answer["episode"] for answer in answers}
    sub = await call(door, [{"role": "system", "content": "You check."}, user("check")], **session)
    other = await call(door, [user("x")], headers={"X_Session": "s2"})
    assert sub["episode"] == episode != other["episode"]
    assert [made.role for made in await door.calls(episode)] == ["main"] * 4 + ["subagent"]


async def test_a_session_may_stand_in_the_body(door: RunningDoor) -> None:
    one = await call(door, [user("a")], metadata={"user_id": "u"})
    two = await call(door, [user("b")], metadata={"user_id": "u"})
    three = await call(door, [user("c")], metadata={"user_id": "u"}, prompt_cache_key="k")
    assert one["episode"] == two["episode"] != three["episode"]


async def test_a_retry_supersedes_the_attempt_that_the_agent_never_saw(door: RunningDoor) -> None:
    gate = asyncio.Event()
    door.engine.script(Script(gate=gate))
    messages = [user("x")]
    lost = asyncio.create_task(call(door, messages))
    await until(lambda: len(door.engine.calls) == 1)
    again = await call(door, messages, headers={"x_stainless_retry_count": "1"})
    gate.set()
    assert (await lost)["episode"] == again["episode"]
    calls = await door.calls(again["episode"])

    assert exclusions(calls, RunSettings(run="r")) == {(calls[0].call_id, 0): Reason.SUPERSEDED}


async def test_a_retry_of_a_failed_call_joins_it(door: RunningDoor) -> None:
    door.engine.script(Script(status=503))
    headers = door.headers(**{"x-stainless-retry-count": "0"})
    body = {"model": "solver", "messages": [user("x")]}
    async with door.client.post(f"{door.url}/v1/chat/completions", headers=headers, json=body) as response:
        assert response.status == 503
        failed = response.headers["X-Hone-Episode"]
    again = await call(door, [user("x")], headers={"x_stainless_retry_count": "1"})
    other = await call(door, [user("x")])
    assert again["episode"] == failed != other["episode"]


async def test_two_equal_calls_without_a_retry_count_are_two_episodes(door: RunningDoor) -> None:
    one, other = await asyncio.gather(*(call(door, [user("x")]) for _ in range(2)))
    assert one["episode"] != other["episode"]


async def test_completions_are_an_episode_each(door: RunningDoor) -> None:
    seen: list[str] = []
    for _ in range(2):
        async with door.client.post(
            f"{door.url}/v1/completions", headers=door.headers(), json={"model": "solver", "prompt": "x"}
        ) as response:
            assert response.status == 200
            seen.append(response.headers["X-Hone-Episode"])
    assert len(set(seen)) == 2


async def test_calls_that_name_their_episode_cost_no_claim(tmp_path: Path) -> None:
    class Unclaimed(MemoryStore):
        async def claim(self, claim: object) -> Any:
            raise AssertionError(claim)

    async with ScriptedEngine() as engine, running_door(engine, tmp_path, store=Unclaimed(SystemClock())) as door:
        assert (await door.chat(await door.open_episode(), {"model": "solver", "messages": [user("x")]})).status == 200


async def test_an_idle_episode_ends_well_and_its_call_can_still_be_rewarded(door: RunningDoor) -> None:
    await door.services.ledger.put_run("default", RunSettings(run="default", idle_s=0))
    first = await call(door, [user("x")])
    stored = (door.store, door.services.ledger, door.services.clock)
    await audit(*stored)
    await sweep(*stored)
    row = await door.services.ledger.get_episode("default", first["episode"])
    assert (row.state, row.status, row.head.group_id) == ("archived", EpisodeStatus.OK, None)
    again = await call(door, [user("x"), said(first), user("y")])
    assert again["episode"] != first["episode"]


async def test_without_the_store_a_new_call_is_refused_unless_the_run_says_otherwise(tmp_path: Path) -> None:
    class Away(MemoryStore):
        async def claim(self, claim: object) -> Any:
            raise Unavailable("The store is away.")

        async def begin_call(self, intent: Any, *rest: Any) -> Any:
            raise Unavailable("The store is away.")

    async with ScriptedEngine() as engine, running_door(engine, tmp_path, store=Away(SystemClock())) as door:
        body = {"model": "solver", "messages": [user("x")]}
        async with door.client.post(f"{door.url}/v1/chat/completions", headers=door.headers(), json=body) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        await door.services.ledger.put_run("default", RunSettings(run="default", record="best_effort"))
        answer = await call(door, [user("x")])
        row = await door.services.ledger.get_episode("default", answer["episode"])
        assert row.events[0].kind == Reason.UNRECORDED


async def ask(door: RunningDoor, route: str, body: Json) -> Json:
    async with door.client.post(f"{door.url}/v1/{route}", headers=door.headers(), json=body) as response:
        answer = json.loads(await response.read())
        assert response.status == 200, answer
        return {**answer, "episode": response.headers["X-Hone-Episode"]}


async def test_a_response_that_names_the_one_before_joins_its_episode(door: RunningDoor) -> None:
    first = await ask(door, "responses", {"model": "solver", "input": "x"})
    named = {"model": "solver", "input": "y", "previous_response_id": first["id"]}
    second = await ask(door, "responses", named)
    assert second["episode"] == first["episode"]
    await door.store.finish(first["episode"], EpisodeStatus.OK)
    third = await ask(door, "responses", {**named, "previous_response_id": second["id"]})
    assert third["episode"] != first["episode"]


async def test_responses_that_send_their_history_are_one_episode(door: RunningDoor) -> None:
    door.engine.script(tool_turn("call_1"))
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    items: list[Json] = [{"role": "user", "content": "find it"}]
    first = await ask(door, "responses", {"model": "solver", "input": items, "tools": tools})
    items += [*first["output"], {"type": "function_call_output", "call_id": "call_1", "output": "here"}]
    second = await ask(door, "responses", {"model": "solver", "input": items, "tools": tools})
    items += [*second["output"], {"role": "user", "content": "more"}]
    third = await ask(door, "responses", {"model": "solver", "input": items, "tools": tools})
    assert first["episode"] == second["episode"] == third["episode"]


async def test_messages_are_one_episode_whatever_blocks_the_agent_sends_back(door: RunningDoor) -> None:
    door.engine.script(tool_turn("call_1"))
    body: Json = {"model": "solver", "max_tokens": 50, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    turns: list[Json] = [{"role": "user", "content": "find it"}]
    first = await ask(door, "messages", {**body, "messages": turns})
    turns.append({"role": "assistant", "content": first["content"]})
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "here", "cache_control": {"type": "ephemeral"}}
    turns.append({"role": "user", "content": [result]})
    second = await ask(door, "messages", {**body, "system": "new", "messages": turns})
    turns.append({"role": "assistant", "content": second["content"]})
    turns.append(
        {"role": "user", "content": [{"type": "text", "text": "more", "cache_control": {"type": "ephemeral"}}]}
    )
    third = await ask(door, "messages", {**body, "messages": turns})
    assert first["episode"] == second["episode"] == third["episode"]
