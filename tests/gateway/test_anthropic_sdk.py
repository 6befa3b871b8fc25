"""Anthropic's own client, unchanged, against the agent's door: what it sends is taken, what it gets it understands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from tests.fakes.running import RunningDoor, running_door
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.types import EpisodeStatus, Reason

pytestmark = pytest.mark.slow

Json = dict[str, Any]
HI: Any = [{"role": "user", "content": "hi"}]
LOOK: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


def called(index: int, arguments: str) -> list[Json]:
    """The deltas of one tool call, as engines stream it."""
    begun = {"name": f"look{index}", "arguments": ""}
    pieces = [arguments[at : at + 3] for at in range(0, len(arguments), 3)]
    return [
        {"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": begun}]},
        *({"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces),
    ]


DELTAS = ({"reasoning": "hm, "}, {"reasoning": "so"}, {"content": "let me "}, {"content": "see"})
TWO_CALLS = Script(
    choices=(
        Answer(
            ids=tuple(range(5, 30)),
            deltas=(*DELTAS, *called(0, '{"a": "Zürich"}'), *called(1, "{}")),
            message={
                "role": "assistant",
                "content": "let me see",
                "reasoning": "hm, so",
                "tool_calls": [
                    {"id": "c0", "type": "function", "function": {"name": "look0", "arguments": '{"a": "Zürich"}'}},
                    {"id": "c1", "type": "function", "function": {"name": "look1", "arguments": "{}"}},
                ],
            },
            finish_reason="tool_calls",
        ),
    )
)


@pytest.fixture
async def client(door: RunningDoor, episode: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    key = door.services.keys.session_key("default", episode)
    async with anthropic.AsyncAnthropic(base_url=door.url, api_key=key, max_retries=0) as sdk:
        yield sdk


async def test_a_whole_answer(door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str) -> None:
    message = await client.messages.create(model="claude", max_tokens=9, messages=HI, system="be brief")
    assert message.id.startswith("msg_")
    assert (message.model, message.role, message.stop_reason) == ("claude", "assistant", "max_tokens")
    assert message.content[0].type == "text"
    (call,) = await door.calls(episode)
    assert (call.call_id, call.dialect, call.model) == (message.id, "messages", "claude")
    (choice,) = call.choices
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(call.prompt_ids), len(choice.sampled_ids))
    assert choice.reason is None
    assert json.loads(choice.message)["content"] == message.content[0].text
    assert door.engine.calls[0].body["messages"] == [{"role": "system", "content": "be brief"}, *HI]


async def test_the_sync_client(door: RunningDoor, episode: str) -> None:
    def ask() -> anthropic.types.Message:
        key = door.services.keys.session_key("default", episode)
        with anthropic.Anthropic(base_url=f"{door.url}/e/{episode}", auth_token=key, api_key=None) as sdk:
            return sdk.messages.create(model="claude", max_tokens=99, messages=HI)

    assert (await asyncio.to_thread(ask)).stop_reason == "end_turn"


@pytest.mark.parametrize("streams", [False, True])
async def test_thinking_words_and_parallel_tools(
    door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str, streams: bool
) -> None:
    door.engine.script(TWO_CALLS)
    asked: Json = {
        "model": "claude",
        "max_tokens": 2048,
        "messages": HI,
        "tools": [LOOK],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    if streams:
        async with client.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
        assert kinds.count("content_block_stop") == 4
    else:
        message = await client.messages.create(**asked)
    thinking, text, first, second = message.content
    assert (thinking.type, text.type, first.type, second.type) == ("thinking", "text", "tool_use", "tool_use")
    assert (thinking.thinking, text.text, message.stop_reason) == ("hm, so", "let me see", "tool_use")  # type: ignore[union-attr]
    assert [(c.id, c.name, c.input) for c in (first, second)] == [  # type: ignore[union-attr]
        ("c0", "look0", {"a": "Zürich"}),
        ("c1", "look1", {}),
    ]
    (call,) = await door.calls(episode)
    recorded = json.loads(call.choices[0].message)
    assert len(call.choices[0].sampled_ids) == 25

    results = [{"type": "tool_result", "tool_use_id": c, "content": "seen"} for c in ("c0", "c1")]
    history: Any = [*HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    await client.messages.create(model="claude", max_tokens=9, messages=history, tools=[LOOK])
    _, answer, *tools = door.engine.calls[1].body["messages"]
    assert {name: answer[name] for name in recorded} == recorded
    assert [tool["tool_call_id"] for tool in tools] == ["c0", "c1"]


async def test_words_arrive_while_the_engine_still_speaks(door: RunningDoor, client: anthropic.AsyncAnthropic) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99)),), hang_after=2))
    async with client.messages.stream(model="claude", max_tokens=9, messages=HI) as stream:
        async with asyncio.timeout(30):
            assert await anext(aiter(stream.text_stream)) == "t5 "
        assert stream.current_message_snapshot.usage.input_tokens == 2
    async with asyncio.timeout(30):
        await door.engine.calls[0].disconnected.wait()


async def test_a_conversation_extends_its_own_prefix(
    door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str
) -> None:
    history = [*HI]
    for _ in range(3):
        async with client.messages.stream(model="claude", max_tokens=99, messages=history) as stream:
            message = await stream.get_final_message()
        history += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "go on"}]
    first, second, third = await door.calls(episode)
    for before, after in ((first, second), (second, third)):
        grown = before.prompt_ids + before.choices[0].sampled_ids
        assert after.prompt_ids[: len(grown)] == grown


@pytest.mark.parametrize("streams", [False, True])
async def test_a_stop_sequence_is_named(door: RunningDoor, client: anthropic.AsyncAnthropic, streams: bool) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6), stop_reason="END"),)))
    asked: Json = {"model": "claude", "max_tokens": 9, "messages": HI, "stop_sequences": ["END"]}
    if streams:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert door.engine.calls[0].body["stop"] == ["END"]


async def test_structured_output(door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str) -> None:
    class City(BaseModel):
        name: str

    door.engine.script(Script(choices=(Answer(ids=(5, 99), texts=('{"name":"Zürich"}', "")),)))
    message = await client.messages.parse(model="claude", max_tokens=9, messages=HI, output_format=City)
    assert message.parsed_output == City(name="Zürich")
    assert door.engine.calls[0].body["response_format"]["type"] == "json_schema"
    (call,) = await door.calls(episode)
    assert call.sampling.constrained


async def test_the_beta_client(door: RunningDoor, client: anthropic.AsyncAnthropic) -> None:
    message = await client.beta.messages.create(
        model="claude",
        max_tokens=9,
        messages=HI,
        betas=["context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
    )
    assert message.content[0].type == "text"


async def test_tokens_are_counted_as_the_engine_renders_them(
    door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str
) -> None:
    asked: Json = {"model": "claude", "messages": HI, "system": "be very brief", "tools": [LOOK]}
    counted = await client.messages.count_tokens(**asked)
    assert await door.calls(episode) == ()
    message = await client.messages.create(max_tokens=9, **asked)
    assert counted.input_tokens == message.usage.input_tokens == 6


# errors


async def test_errors_are_the_clients_own_classes(door: RunningDoor, client: anthropic.AsyncAnthropic) -> None:
    for change, kind, named in (
        ({"container": "c"}, anthropic.BadRequestError, "invalid_request_error"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "invalid_request_error"),
        ({"api_base": "http://127.0.0.1:9"}, anthropic.BadRequestError, "invalid_request_error"),
    ):
        with pytest.raises(kind) as raised:
            await client.messages.create(model="claude", max_tokens=9, messages=HI, extra_body=change)
        assert raised.value.type == named
        assert raised.value.api_message
    stranger = client.with_options(api_key="sk-nobody")
    with pytest.raises(anthropic.AuthenticationError):
        await stranger.messages.create(model="claude", max_tokens=9, messages=HI)
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        await stranger.messages.count_tokens(model="claude", messages=HI)
    assert unknown.value.type == "authentication_error"
    door.engine.script(Script(status=503), Script(status=500), Script(status=429))
    for wanted in (anthropic.ServiceUnavailableError, anthropic.InternalServerError, anthropic.RateLimitError):
        with pytest.raises(wanted):
            await client.messages.create(model="claude", max_tokens=9, messages=HI)
    assert (await client.messages.create(model="claude", max_tokens=9, messages=HI)).id


async def test_a_wrong_method_is_told_in_the_dialects_form(door: RunningDoor) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        async with door.client.get(door.url + path, headers={"x-api-key": door.key}) as response:
            assert (response.status, response.headers["allow"]) == (405, "POST")
            said = await response.json()
            assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")


async def test_a_stream_that_breaks_raises(door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99)),), reset_after=2))
    words: list[str] = []

    async def listen() -> None:
        async with client.messages.stream(model="claude", max_tokens=9, messages=HI) as stream:
            async for text in stream.text_stream:
                words.append(text)

    with pytest.raises(anthropic.APIStatusError) as raised:
        await listen()
    assert (words, raised.value.type) == (["t5 "], "api_error")
    (call,) = await door.calls(episode)
    assert call.reason is Reason.UPSTREAM_FAILED


async def test_a_context_that_does_not_fit(door: RunningDoor, client: anthropic.AsyncAnthropic) -> None:
    said = (
        "This model's maximum context length is 512 tokens. However, your prompt contains 600 input tokens, which "
        "exceeds this limit even without any output tokens."
    )
    door.engine.script(Script(status=400, error={"message": said, "type": "BadRequestError", "code": 400}))
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(model="claude", max_tokens=9, messages=HI)
    assert raised.value.api_message is not None
    assert raised.value.api_message.startswith("prompt is too long: 600 tokens > 512 maximum")


async def test_its_retries_are_told_apart_from_equal_calls(
    door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str
) -> None:
    door.engine.script(Script(status=503, headers={"retry-after": "0"}), Script())
    patient = client.with_options(max_retries=2)
    await patient.messages.create(model="claude", max_tokens=9, messages=HI)
    first, second = await door.calls(episode)
    assert (first.retry, second.retry) == (0, 1)
    assert first.body_digest == second.body_digest


async def test_an_ended_episode_is_not_tried_again(
    door: RunningDoor, client: anthropic.AsyncAnthropic, episode: str
) -> None:
    await door.store.finish(episode, EpisodeStatus.OK)
    await door.services.ledger.end_episode(episode, EpisodeStatus.OK, 1)
    with pytest.raises(anthropic.APIStatusError) as raised:
        await client.with_options(max_retries=2).messages.create(model="claude", max_tokens=9, messages=HI)
    assert raised.value.status_code == 410
    assert raised.value.response.headers["x-should-retry"] == "false"


async def test_models_that_are_no_policy_are_counted_too(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        env = {"HONE_UPSTREAMS": f"judge={engine.url}/v1"}
        async with running_door(engine, tmp_path, env=env) as door:
            sdk = anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0)
            async with sdk:
                short = await sdk.messages.count_tokens(model="gpt-4o", messages=HI)
                system = await sdk.messages.count_tokens(model="gpt-4o", messages=HI, system="be very brief")
                names = [model.id async for model in sdk.models.list()]
    assert 0 < short.input_tokens < system.input_tokens
    assert names == ["solver"]
