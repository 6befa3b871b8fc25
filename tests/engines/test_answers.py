"""What the gateway needs of an engine's answers: the same of the embedded engine and of a real vLLM."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from gateway.dialects.base import Limits
from gateway.dialects.chat import Chat
from gateway.pieces import read_piece, read_whole
from gateway.upstream import EngineRefused
from tests.engines.reference import Reference
from tests.engines.stand import FRANCE, Answered, Json, Stand, until

pytestmark = pytest.mark.slow

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
"""What a model says that wants to call a tool, in the form that both engines read."""


def check_sound(answered: Answered) -> None:
    """Ids, log-probabilities and usage are all there and agree."""
    capture = answered.capture
    assert [choice.reason for choice in answered.choices] == [None] * len(answered.choices)
    assert capture.usage_prompt_tokens == len(capture.prompt_ids) > 0
    assert capture.usage_completion_tokens == sum(len(choice.sampled_ids) for choice in answered.choices)
    for choice in answered.choices:
        assert len(choice.sampled_ids) == len(choice.logprobs) > 0
        assert all(math.isfinite(value) and value <= 0 for value in choice.logprobs)


async def test_streamed_and_whole_answers_are_the_same(stand: Stand) -> None:
    asked = {"messages": FRANCE, "max_tokens": 20, "temperature": 0}
    whole, streamed = [await stand.ask({**asked, "stream": streams}) for streams in (False, True)]
    for answered in (whole, streamed):
        check_sound(answered)
    assert len(whole.events) == 1
    assert len(streamed.events) > 5
    assert whole.capture.prompt_ids == streamed.capture.prompt_ids
    assert whole.first.sampled_ids == streamed.first.sampled_ids
    assert whole.first.logprobs == pytest.approx(streamed.first.logprobs, abs=0.1)
    assert whole.message["content"] == streamed.message["content"] == "The capital of France is Paris."
    assert whole.first.finish_reason == streamed.first.finish_reason == "stop"
    assert whole.first.sampled_ids[-1] == 2, "the end token was sampled, so it is there"


async def test_nearly_all_of_an_answer_is_read_the_quick_way(stand: Stand) -> None:
    """Fields that are new to it would cost speed alone, so nothing else would tell."""
    asked, dialect = {"model": "solver", "messages": FRANCE, "max_tokens": 20, "temperature": 0}, Chat()
    read: list[Any] = []
    for streams in (False, True):
        parsed = dialect.parse(json.dumps({**asked, "stream": streams}).encode(), Limits())
        async with stand.raw(parsed, dialect) as answer:
            events = [event async for batch in answer.batches() for event in batch if event.data is not None]
        read.append([(read_piece if streams else read_whole)(event.data) for event in events if event.data])
    whole, pieces = read
    assert None not in whole
    assert sum(piece is not None for piece in pieces) >= len(pieces) - 4, "its opening, its end, usage and the end mark"


async def test_log_probabilities_are_those_of_the_distribution_sampled_from(stand: Stand) -> None:
    reference = Reference(stand.model, {})
    for temperature in (1.0, 0.5):
        answered = await stand.ask(
            {"messages": FRANCE, "max_tokens": 24, "temperature": temperature, "seed": 3, "stream": True}
        )
        check_sound(answered)
        ids = [*answered.capture.prompt_ids, *answered.first.sampled_ids]
        rows = reference.all_logits(None, ids)[len(answered.capture.prompt_ids) - 1 : -1] / temperature
        own = rows.log_softmax(-1)
        expected = [float(row[token]) for row, token in zip(own, answered.first.sampled_ids, strict=True)]
        gaps = [abs(a - b) for a, b in zip(expected, answered.first.logprobs, strict=True)]
        assert sum(gaps) / len(gaps) < 0.15, gaps


async def test_choices_differ_and_each_has_its_own_ids(stand: Stand) -> None:
    asked = {"messages": FRANCE, "max_tokens": 12, "n": 3, "seed": 1, "temperature": 1.5}
    for streams in (False, True):
        answered = await stand.ask({**asked, "stream": streams})
        check_sound(answered)
        assert [choice.index for choice in answered.choices] == [0, 1, 2]
        assert len({choice.sampled_ids for choice in answered.choices}) > 1


async def test_a_stop_string_ends_the_text_and_the_ids_stay_whole(stand: Stand) -> None:
    for streams in (False, True):
        asked = {"messages": FRANCE, "max_tokens": 20, "temperature": 0, "stop": [" France"], "stream": streams}
        answered = await stand.ask(asked)
        check_sound(answered)
        assert answered.message["content"] == "The capital of"
        assert answered.first.finish_reason == "stop"
        assert len(answered.first.sampled_ids) >= 4, "what was sampled of the stop string is counted"


async def test_the_limit_ends_an_answer_without_an_end_token(stand: Stand) -> None:
    answered = await stand.ask({"messages": FRANCE, "max_tokens": 3, "temperature": 0, "stream": True})
    check_sound(answered)
    assert answered.first.finish_reason == "length"
    assert answered.first.truncated
    assert len(answered.first.sampled_ids) == 3


async def test_alternatives_are_told_where_they_are_asked_for(stand: Stand) -> None:
    asked = {"messages": FRANCE, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 5}
    answered = await stand.ask(asked)
    entries = answered.events[0]["choices"][0]["logprobs"]["content"]
    for entry, told in zip(entries, answered.first.logprobs, strict=True):
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(values) == 5
        assert max(values) == told == entry["logprob"], "greedy takes the likeliest"
    top = await stand.score(answered.capture.prompt_ids)
    assert max(top, key=lambda token: top[token]) == answered.first.sampled_ids[0]
    assert len(top) >= 20


async def test_a_continuation_of_token_ids_begins_with_them(stand: Stand) -> None:
    prompt = (504, 3575, 282, 4649, 314)  # The capital of France is
    answered = await stand.ask({"prompt": list(prompt), "max_tokens": 3, "temperature": 0, "stream": True})
    check_sound(answered)
    assert answered.capture.prompt_ids == prompt
    assert answered.message.startswith(" Paris")


async def test_a_tool_call_is_read_from_what_the_model_says(stand: Stand) -> None:
    said: Json = {"role": "user", "content": f"Repeat this exactly, and nothing else:\n{CALL}"}
    shown = [said, {"role": "assistant", "content": CALL}] * 3 + [said]
    for streams in (False, True):
        answered = await stand.ask(
            {"messages": shown, "tools": TOOLS, "max_tokens": 60, "temperature": 0, "stream": streams}
        )
        check_sound(answered)
        calls = answered.message["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["weather"], answered.message
        assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}
        assert calls[0]["id"]
        assert answered.first.finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_forced_tool_call_is_honoured_or_refused(stand: Stand, choice: Any) -> None:
    city = {"type": "string", "enum": ["Paris", "Rome"]}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "description": "w", "parameters": parameters}}
    asked = {"messages": FRANCE, "tools": [tool], "tool_choice": choice, "max_tokens": 60, "temperature": 0}
    for streams in (False, True):
        if stand.kind == "embedded":
            with pytest.raises(EngineRefused) as refused:
                await stand.ask({**asked, "stream": streams})
            assert refused.value.status == 400
            continue
        answered = await stand.ask({**asked, "stream": streams})
        check_sound(answered)
        assert [call["function"]["name"] for call in answered.message["tool_calls"]] == ["weather"]


async def test_a_conversation_with_tool_results_is_rendered(stand: Stand) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    turns: list[Any] = [
        *FRANCE,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    answered = await stand.ask({"messages": turns, "tools": TOOLS, "max_tokens": 4, "temperature": 0})
    check_sound(answered)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_engine_stops_when_its_client_leaves(stand: Stand, streams: bool) -> None:
    at_length = [{"role": "user", "content": "Tell the whole story of a lighthouse keeper, in two thousand words."}]
    body = {"model": "solver", "messages": at_length, "max_tokens": 1500, "stream": streams}
    asked = Chat().parse(json.dumps(body).encode(), Limits())

    async def is_busy() -> bool:
        return await stand.num_running() > 0

    async def is_idle() -> bool:
        return await stand.num_running() == 0

    if streams:
        async with stand.asking(asked, Chat()) as events:
            async for _ in events:
                if await is_busy():
                    break
    else:
        await leave_while(stand, asked, is_busy)
    await until(is_idle)


async def leave_while(stand: Stand, asked: Any, is_busy: Any) -> None:
    """Ask for a whole answer and leave as soon as the engine is at it."""

    async def ask() -> None:
        async with stand.asking(asked, Chat()) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(ask())
    await until(is_busy)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_prompt_that_does_not_fit_is_refused_in_words_that_are_understood(stand: Stand) -> None:
    for streams in (False, True):
        with pytest.raises(EngineRefused) as refused:
            await stand.ask({"messages": [{"role": "user", "content": "word " * 9000}], "stream": streams})
        assert refused.value.status == 400
        assert refused.value.is_context_overflow, refused.value.message


async def test_an_unknown_model_is_not_found(stand: Stand) -> None:
    with pytest.raises(EngineRefused) as refused:
        await stand.ask({"messages": FRANCE}, model="nobody")
    assert refused.value.status == 404
