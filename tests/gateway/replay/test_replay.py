"""`hone replay`: agents with the SDKs people use get again what was recorded, and a change of theirs is shown."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.exporting.export import Order, export
from gateway.exporting.forms import Form, Wanted
from gateway.replay.canonical import Asking, asking_of, difference, nearest
from gateway.replay.door import ReplayDoor
from gateway.replay.recordings import Recordings, Source, recordings_of
from tests.fakes.gateways import RunningGateway
from tests.fakes.recording import end
from tests.fakes.running import serving
from tests.fakes.scripted_answers import END, Answer, Script
from tests.fakes.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CLAUDE_TOOL: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
ARGUMENTS = '{"place": "Zürich, by the lake, behind the old town hall"}'
CALLED = Script(
    choices=(
        Answer(
            ids=tuple(range(5, 15)),
            deltas=(
                {"reasoning": "hm"},
                {"content": "let me see"},
                {
                    "tool_calls": [
                        {"index": 0, "id": "c0", "type": "function", "function": {"name": "look", "arguments": ""}}
                    ]
                },
                {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS}}]},
            ),
            message={
                "role": "assistant",
                "content": "let me see",
                "reasoning": "hm",
                "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}],
            },
            finish_reason="tool_calls",
        ),
    )
)
AGENT = """
import os, sys, openai
said = sys.argv[1]
client = openai.OpenAI(max_retries=0)
messages = [{"role": "user", "content": "hi"}]
first = client.chat.completions.create(model="solver", messages=messages, seed=int(sys.argv[2]))
messages += [first.choices[0].message.to_dict(), {"role": "user", "content": said}]
chunks = client.chat.completions.create(model="solver", messages=messages, stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""


async def agent(url: str, key: str) -> list[object]:
    """Every dialect, whole and streamed, with tools; what the agent saw."""
    seen: list[object] = []
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    claude = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)
    messages: Any = [{"role": "user", "content": "where?"}]
    async with client, claude:
        first = await client.chat.completions.create(model="solver", messages=messages, tools=[TOOL], logprobs=True)
        seen.append(first.choices[0].message.to_dict())
        seen.append([entry.logprob for entry in first.choices[0].logprobs.content])  # type: ignore[union-attr]
        messages += [first.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": "c0", "content": "here"}]
        options: Any = {"include_usage": True}
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="solver", messages=messages, tools=[TOOL], stream=True, stream_options=options
            )
        ]
        seen.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
        seen.append(chunks[-1].usage.to_dict() if chunks[-1].usage else None)
        seen.append((await client.completions.create(model="solver", prompt="once")).choices[0].text)
        answered = await client.responses.create(model="solver", input="hello")
        seen.append(answered.output_text)
        async with client.responses.stream(
            model="solver", input="and then?", previous_response_id=answered.id
        ) as stream:
            seen.append((await stream.get_final_response()).output_text)
        asked: Any = {"model": "solver", "max_tokens": 50, "messages": [{"role": "user", "content": "look"}]}
        whole = await claude.messages.create(**asked, tools=[CLAUDE_TOOL])
        seen.append([block.to_dict() for block in whole.content])
        async with claude.messages.stream(**asked, tools=[CLAUDE_TOOL]) as stream:
            message = await stream.get_final_message()
        seen.append(([block.to_dict() for block in message.content], message.stop_reason, message.usage.output_tokens))
    return seen


@pytest.fixture
async def recorded(gateway: RunningGateway, engine: ScriptedEngine) -> tuple[str, list[object]]:
    """An episode of an agent that speaks everything, and what it saw."""
    engine.when(lambda call: bool(call.body.get("tools")) and len(call.body["messages"]) == 1, CALLED)
    episode = await gateway.open()
    seen = await agent(gateway.url, str(episode["api_key"]))
    return await end(gateway, episode, 1.0), seen


@pytest.mark.slow
async def test_an_agent_sees_again_what_it_saw_in_every_dialect(
    gateway: RunningGateway, recorded: tuple[str, list[object]], tmp_path: Path
) -> None:
    episode_id, seen = recorded
    stores = gateway.settings.stores
    order = Order(run="default", tenant="default", wanted=Wanted(form=Form.EPISODES))
    await export(stores, order, tmp_path / "whole.jsonl", lambda _: None)
    for source in (Source(run="default"), Source(episode_ids=(episode_id,)), Source(path=tmp_path / "whole.jsonl")):
        recordings = await recordings_of(stores, source)
        door = ReplayDoor(recordings)
        async with serving(door) as url:
            assert await agent(url, "any key") == seen
        assert (recordings.num_given, recordings.num_recorded, door.mismatch) == (7, 7, None)


@pytest.mark.slow
async def test_equal_requests_are_answered_in_recorded_order_and_one_more_is_a_mismatch(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    for word in (11, 12):
        engine.script(Script(choices=(Answer(ids=(word, END), texts=(f"word {word}", "")),)))
        episode = await gateway.open(task=f"t{word}")
        await gateway.chat(episode)
        await end(gateway, episode, 1.0)
    door = ReplayDoor(await recordings_of(gateway.settings.stores, Source(run="default")))
    asked: Any = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
    async with serving(door) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=3) as client:
        said = [
            (await client.chat.completions.create(**asked, seed=seed)).choices[0].message.content for seed in (1, 2)
        ]
        assert said == ["word 11", "word 12"]
        for _ in range(2):
            with pytest.raises(openai.ConflictError, match="more often"):
                await client.chat.completions.create(**asked)
    assert door.failed.is_set()


@pytest.mark.slow
async def test_a_changed_agent_fails_with_a_diff_against_the_nearest_request(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    episode = await gateway.open()

    async def play(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HONE_", "OPENAI_"))}
        data = {"PYTHONPATH": str(ROOT), "HONE_DATA_DIR": str(gateway.settings.stores.data_dir)}
        return await asyncio.to_thread(
            subprocess.run, arguments, env={**kept, **data, **(env or {})}, capture_output=True, text=True, timeout=120
        )

    command = (sys.executable, str(tmp_path / "agent.py"))
    told = await play(*command, "go on", "1", env=episode["env"])
    assert told.returncode == 0, told.stderr
    await end(gateway, episode, 1.0)
    replay = (sys.executable, "-m", "gateway.cli", "replay", "--run", "default")
    again = await play(*replay, "--", *command, "go on", "2")
    assert (again.returncode, again.stdout) == (0, told.stdout), again.stderr
    assert "2 answers given, 0 recorded" in again.stderr
    assert (await play(*replay, "--", *command, "go on", "2", "7")).returncode == 7
    changed = await play(*replay, "--", *command, "go elsewhere", "2")
    assert changed.returncode == 1
    assert '-   "content": "go on",' in changed.stderr
    assert '+   "content": "go elsewhere",' in changed.stderr
    assert '"content": "hi"' not in changed.stderr.partition("@@")[0]
    assert (await play(*replay, "--strict", "--", "true")).returncode == 1
    assert (await play(*replay, "--", "true")).returncode == 0
    none = await play(*replay[:-1], "nothing", "--", "true")
    assert (none.returncode, none.stderr.count("\n")) == (2, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": JSON}), max_size=4), JSON)
def test_order_spaces_and_seeds_make_no_difference_and_anything_else_does(messages: list[Json], field: object) -> None:
    def raw(value: object, **style: Any) -> bytes:
        return json.dumps(value, **style).encode()

    one = asking_of("chat", raw({"model": "m", "x": field}), [raw(message) for message in messages])
    spaced = [raw(dict(reversed(message.items())), indent=2) for message in messages]
    same = asking_of("chat", raw({"seed": 7, "x": field, "stream": True, "model": "m"}), spaced)
    assert one == same
    assert one.digest == same.digest
    more = asking_of("chat", raw({"model": "m", "x": field}), [raw(m) for m in [*messages, {"role": "user"}]])
    assert one.digest != more.digest
    assert list(difference(one, more))
    assert not list(difference(one, same))
    assert nearest(one, [more, same]) == same


def test_the_longest_common_beginning_is_nearest() -> None:
    def of(*said: str, model: str = "m", dialect: str = "chat") -> Asking:
        return asking_of(dialect, b'{"model":"%s"}' % model.encode(), [b'"%s"' % one.encode() for one in said])

    short, long, other = of("a"), of("a", "b", "c", "d"), of("x", "b", "e")
    assert nearest(of("a", "b", "e"), [short, long, other]) == long
    assert nearest(of("a", "z"), [short, long, of("a", model="n")]) == short
    assert nearest(of("a", "b", "e"), [of("a", "b", "e", dialect="messages"), short]) == short
    assert "+  " in "\n".join(difference(long, of("a", "b", "e")))


def test_nothing_is_nearest_to_nothing() -> None:
    assert nearest(asking_of("chat", b"{}", []), []) is None
    assert Recordings([]).num_recorded == 0
