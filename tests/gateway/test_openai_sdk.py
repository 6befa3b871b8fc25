"""OpenAI's own client, unchanged, against the agent's door: what it sends is taken, what it gets it understands."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.fakes.running import RunningDoor
from tests.fakes.scripted_engine import Answer, Script
from tracker.types import EpisodeStatus

pytestmark = pytest.mark.slow

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PIECES = (
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
)


@pytest.fixture
async def client(door: RunningDoor, episode: str) -> AsyncIterator[openai.AsyncOpenAI]:
    key = door.services.keys.session_key("default", episode)
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, max_retries=2) as sdk:
        yield sdk


async def test_a_whole_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "gpt-4o"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None


async def test_a_streamed_tool_call(door: RunningDoor, client: openai.AsyncOpenAI, episode: str) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99), deltas=PIECES, finish_reason="tool_calls"),)))
    stream = await client.chat.completions.create(
        model="solver",
        messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}],
        tools=[TOOL],  # type: ignore[list-item]
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    arguments = [c.choices[0].delta.tool_calls for c in chunks if c.choices and c.choices[0].delta.tool_calls]
    assert "".join(call[0].function.arguments or "" for call in arguments if call[0].function) == '{"a":1}'
    assert chunks[-1].usage is not None
    (call,) = await door.calls(episode)
    assert b'"arguments":"{\\"a\\":1}"' in call.choices[0].message


async def test_a_stream_that_breaks_raises(door: RunningDoor, client: openai.AsyncOpenAI) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99)),), reset_after=2))
    stream = await client.chat.completions.create(
        model="solver", messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(openai.APIError):
        _ = [chunk async for chunk in stream]


async def test_its_retries_are_told_apart_from_equal_calls(
    door: RunningDoor, client: openai.AsyncOpenAI, episode: str
) -> None:
    door.engine.script(Script(status=503, headers={"retry-after-ms": "1"}), Script())
    await client.chat.completions.create(model="solver", messages=[{"role": "user", "content": "x"}])
    first, second = await door.calls(episode)
    assert (first.retry, second.retry) == (0, 1)
    assert first.body_digest == second.body_digest


async def test_an_ended_episode_is_not_tried_again(door: RunningDoor, client: openai.AsyncOpenAI, episode: str) -> None:
    await door.store.finish(episode, EpisodeStatus.OK)
    await door.services.ledger.end_episode(episode, EpisodeStatus.OK, 1)
    with pytest.raises(openai.APIStatusError) as raised:
        await client.chat.completions.create(model="solver", messages=[{"role": "user", "content": "x"}])
    assert raised.value.status_code == 410
    assert raised.value.response.headers["x-should-retry"] == "false"


async def test_the_list_of_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["solver"]
