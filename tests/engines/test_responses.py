"""Responses before a real engine, with OpenAI's own client: streamed, with ids on the record, and gone on from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.engines.stand import Gateway

QUESTION = "What is the capital of France?"
TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture
async def episode(gateway: Gateway) -> Any:
    return await gateway.running.open()


@pytest.fixture
async def client(gateway: Gateway, episode: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.running.url}/v1", api_key=episode["api_key"]) as sdk:
        yield sdk


async def test_a_conversation_of_responses_is_recorded_token_by_token(
    gateway: Gateway, client: openai.AsyncOpenAI, episode: Any
) -> None:
    async with client.responses.stream(model="solver", input=QUESTION, max_output_tokens=24) as stream:
        events = [event async for event in stream]
    told = events[-1]
    assert told.type in ("response.completed", "response.incomplete")
    first = told.response
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 1
    assert first.output_text == "".join(pieces) != ""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    second = await client.responses.create(
        model="solver",
        input="And of Spain?",
        instructions="Answer briefly.",
        previous_response_id=first.id,
        max_output_tokens=8,
        tools=[TOOL],
    )
    timeline = (await gateway.running.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
    one, two = timeline["calls"]
    assert [one["call_id"], two["call_id"]] == [first.id, second.id]
    assert [call["reason"] for call in (one, two)] == [None, None]
    samples = (await gateway.running.admin.get(f"/v1/episodes/{episode['episode_id']}/samples")).json()
    assert first.usage is not None
    assert second.usage is not None
    num_trained = sum(sum(sample["loss_mask"]) for sample in samples["samples"])
    assert num_trained == first.usage.output_tokens + second.usage.output_tokens
    assert samples["excluded"] == []


async def test_log_probabilities_are_the_engines(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="solver",
        input=QUESTION,
        max_output_tokens=4,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    (item,) = answer.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(score.logprob <= 0 and len(score.top_logprobs) == 2 for score in part.logprobs)


async def test_a_context_that_does_not_fit_is_refused_before_a_stream_begins(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="solver", input="word " * 9000, stream=True)
    assert refused.value.code == "context_length_exceeded"
