"""Messages before a real engine, with Anthropic's own client: streamed, counted, stopped, with ids on the record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.engines.stand import Gateway, Stand

Json = dict[str, Any]
QUESTION: Json = {"role": "user", "content": "What is the capital of France?"}
TOOL: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
async def episode(gateway: Gateway) -> Json:
    return await gateway.episode()


@pytest.fixture
async def client(gateway: Gateway, episode: Json) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.running.url, api_key=episode["api_key"]) as sdk:
        yield sdk


async def test_a_conversation_of_messages_is_counted_and_recorded_token_by_token(
    gateway: Gateway, client: anthropic.AsyncAnthropic, episode: Json
) -> None:
    asked: Json = {"model": "solver", "system": [{"type": "text", "text": "Be brief."}], "tools": [TOOL]}
    counted = await client.messages.count_tokens(messages=[QUESTION], **asked)
    async with client.messages.stream(
        messages=[QUESTION], max_tokens=24, extra_body={"temperature": 0}, **asked
    ) as stream:
        pieces = [piece async for piece in stream.text_stream]
        first = await stream.get_final_message()
    assert counted.input_tokens == first.usage.input_tokens
    assert len(pieces) > 1
    history: Any = [
        QUESTION,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "And Spain?"},
    ]
    second = await client.messages.create(messages=history, max_tokens=8, **asked)
    timeline = (await gateway.running.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
    assert [call["call_id"] for call in timeline["calls"]] == [first.id, second.id]
    assert [call["dialect"] for call in timeline["calls"]] == ["messages"] * 2
    sampled = [call["choices"][0]["num_sampled_ids"] for call in timeline["calls"]]
    assert sampled == [first.usage.output_tokens, second.usage.output_tokens]


async def test_a_stop_sequence_ends_an_answer_and_is_named(client: anthropic.AsyncAnthropic) -> None:
    asked: Json = {"model": "solver", "messages": [QUESTION], "max_tokens": 24, "stop_sequences": ["nowhere", " is"]}
    whole = await client.messages.create(extra_body={"temperature": 0}, **asked)
    async with client.messages.stream(extra_body={"temperature": 0}, **asked) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " is")
        assert [block.text for block in message.content if block.type == "text"] == ["The capital of France"]


async def test_an_answer_that_was_begun_goes_on_where_the_engine_can(
    client: anthropic.AsyncAnthropic, stand: Stand
) -> None:
    begun: Any = [QUESTION, {"role": "assistant", "content": "The capital of France"}]
    asked: Json = {"model": "solver", "messages": begun, "max_tokens": 12, "extra_body": {"temperature": 0}}
    if stand.kind == "embedded":
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**asked)
        return
    counted = await client.messages.count_tokens(model="solver", messages=begun)
    message = await client.messages.create(**asked)
    assert message.usage.input_tokens == counted.input_tokens
    assert message.content[0].type == "text"
    assert "Paris" in message.content[0].text


async def test_what_does_not_fit_is_told_in_the_words_agents_know(client: anthropic.AsyncAnthropic) -> None:
    long: Any = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(model="solver", messages=long, max_tokens=8)
    assert "prompt is too long" in str(raised.value.api_message) or "exceed context limit" in str(
        raised.value.api_message
    )
