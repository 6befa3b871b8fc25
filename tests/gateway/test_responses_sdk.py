"""OpenAI's own client, unchanged, on `/v1/responses`: whole, streamed, with tools, going on from earlier answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.fakes.running import RunningDoor, until
from tests.fakes.scripted_engine import Answer, Script
from tracker.types import CallState

pytestmark = pytest.mark.slow

TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALLS = (
    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
    {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
)
PIECES = (
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
    {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
)


@pytest.fixture
async def client(door: RunningDoor, episode: str) -> AsyncIterator[openai.AsyncOpenAI]:
    key = door.services.keys.session_key("default", episode)
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, max_retries=0) as sdk:
        yield sdk


def sent(door: RunningDoor, number: int = -1) -> Any:
    """The conversation that the engine was asked with."""
    return door.engine.calls[number].body["messages"]


async def test_a_whole_answer(door: RunningDoor, client: openai.AsyncOpenAI, episode: str) -> None:
    answer = await client.responses.create(model="gpt-4o", instructions="be brief", input="hi", metadata={"a": "b"})
    assert answer.id.startswith("resp_")
    assert (answer.model, answer.status, answer.metadata, answer.object) == (
        "gpt-4o",
        "completed",
        {"a": "b"},
        "response",
    )
    assert answer.usage is not None
    assert answer.usage.output_tokens == 17
    assert sent(door) == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    (call,) = await door.calls(episode)
    assert (call.call_id, call.dialect) == (answer.id, "responses")
    assert len(call.choices[0].sampled_ids) == 17
    assert json.loads(call.choices[0].message)["content"] == answer.output_text
    assert [json.loads(m) for m in call.messages] == [{"type": "message", "role": "user", "content": "hi"}]


async def test_a_streamed_answer_comes_word_by_word(door: RunningDoor, client: openai.AsyncOpenAI) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 7, 99)),)))
    async with client.responses.stream(model="solver", input="hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [e.delta for e in events if e.type == "response.output_text.delta"] == ["t5 ", "t6 ", "t7 "]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert final.output_text == "t5 t6 t7 "
    assert final.usage is not None
    assert final.usage.total_tokens == 6
    assert events[-1].type == "response.completed"


async def test_words_arrive_before_the_engine_goes_on(door: RunningDoor, client: openai.AsyncOpenAI) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 7, 99)),), hang_after=3))
    stream = await client.responses.create(model="solver", input="hi", stream=True)
    async with asyncio.timeout(30):
        async for event in stream:
            if event.type == "response.output_text.delta" and event.delta == "t6 ":
                break
    await stream.close()
    received = door.engine.calls[0]
    await until(received.disconnected.is_set)


async def test_parallel_tool_calls_and_their_answers(door: RunningDoor, client: openai.AsyncOpenAI) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 7, 99), deltas=PIECES, finish_reason="tool_calls"),)))
    async with client.responses.stream(model="solver", input="hi", tools=[TOOL]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [(i.type, i.call_id, i.name, i.arguments) for i in final.output if i.type == "function_call"] == [
        ("function_call", "c1", "look", '{"a":1}'),
        ("function_call", "c2", "look", "{}"),
    ]
    assert "response.function_call_arguments.done" in [event.type for event in events]
    outputs: Any = [{"type": "function_call_output", "call_id": c["id"], "output": f"seen {c['id']}"} for c in CALLS]
    history: Any = [{"role": "user", "content": "hi"}, *final.output, *outputs]
    await client.responses.create(model="solver", input=history, tools=[TOOL])
    told = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": list(CALLS)},
        {"role": "tool", "tool_call_id": "c1", "content": "seen c1"},
        {"role": "tool", "tool_call_id": "c2", "content": "seen c2"},
    ]
    assert sent(door) == told
    await client.responses.create(model="solver", input=outputs, tools=[TOOL], previous_response_id=final.id)
    assert sent(door) == told


class City(BaseModel):
    name: str


async def test_structured_output_is_parsed(door: RunningDoor, client: openai.AsyncOpenAI, episode: str) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 99), texts=('{"name":"Rome"}', "")),)))
    answer = await client.responses.parse(model="solver", input="where?", text_format=City)
    assert answer.output_parsed == City(name="Rome")
    form = door.engine.calls[0].body["response_format"]
    assert form["json_schema"]["schema"]["properties"]["name"]["type"] == "string"
    (call,) = await door.calls(episode)
    assert call.sampling.constrained


async def test_a_chain_of_answers(door: RunningDoor, client: openai.AsyncOpenAI, episode: str) -> None:
    first = await client.responses.create(model="solver", input="one", instructions="only now")
    second = await client.responses.create(model="solver", input="two", previous_response_id=first.id)
    third = await client.responses.create(
        model="solver", input=[{"role": "user", "content": "three"}], previous_response_id=second.id, stream=False
    )
    assert sent(door) == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "three"},
    ]
    assert third.previous_response_id == second.id
    last = (await door.calls(episode))[-1]
    assert [json.loads(m)["role"] for m in last.messages] == ["user", "assistant"] * 2 + ["user"]
    assert last.prompt_ids[: len(last.prompt_ids) - 2] != ()


async def test_an_answer_can_be_read_again(door: RunningDoor, client: openai.AsyncOpenAI) -> None:
    given = await client.responses.create(model="solver", input="hi", metadata={"a": "b"}, tools=[TOOL])
    answer = given.to_dict()
    again = (await client.responses.retrieve(str(answer["id"]))).to_dict()
    assert again.pop("created_at") != 0
    assert again == {name: value for name, value in answer.items() if name != "created_at"}
    other = door.services.keys.session_key("default", await door.open_episode())
    for key in (other, door.services.keys.session_key("other", await door.open_episode(tenant="other"))):
        async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, max_retries=0) as stranger:
            with pytest.raises(openai.NotFoundError):
                await stranger.responses.retrieve(str(answer["id"]))
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0) as agent:
        assert (await agent.responses.retrieve(str(answer["id"]))).metadata == {"a": "b"}
        with pytest.raises(openai.APIStatusError) as refused:
            await agent.responses.delete(str(answer["id"]))
        assert refused.value.status_code == 405


async def test_what_is_no_answer_of_ours_cannot_be_continued(
    door: RunningDoor, client: openai.AsyncOpenAI, episode: str
) -> None:
    door.engine.script(Script(status=500))
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model="solver", input="hi")
    (failed,) = await door.calls(episode)
    assert failed.state is CallState.FAILED
    for unknown in ("resp_x", failed.call_id, f"resp_{'0' * 32}-{'f' * 32}"):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="solver", input="hi", previous_response_id=unknown)
        assert refused.value.code == "previous_response_not_found"
        assert refused.value.param == "previous_response_id"


async def test_a_foreign_tenants_answer_is_unknown(door: RunningDoor, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="solver", input="hi")
    foreign = await door.open_episode(tenant="other")
    key = door.services.keys.session_key("other", foreign)
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, max_retries=0) as other:
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(model="solver", input="hi", previous_response_id=answer.id)


async def test_a_limit_makes_an_incomplete_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="solver", input="hi", max_output_tokens=3)
    assert (answer.status, answer.incomplete_details and answer.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    stream = await client.responses.create(model="solver", input="hi", max_output_tokens=3, stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == answer.output_text


@pytest.mark.parametrize("fault", [{"reset_after": 3}, {"error_after": 3}, {"close_after": 3}])
async def test_a_stream_that_breaks_raises(
    door: RunningDoor, client: openai.AsyncOpenAI, episode: str, fault: dict[str, int]
) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 7, 99)),), **fault))  # type: ignore[arg-type]
    stream = await client.responses.create(model="solver", input="x", stream=True)
    seen: list[Any] = []

    async def read() -> None:
        async for event in stream:
            seen.append(event)

    with pytest.raises(openai.APIError):
        await read()
    assert [e.delta for e in seen if e.type == "response.output_text.delta"] == ["t5 ", "t6 "]
    assert seen[-1].type == "response.output_text.delta"
    (call,) = await door.calls(episode)
    assert call.state is CallState.FAILED


async def test_a_failure_after_the_last_word_takes_the_place_of_what_was_held(
    door: RunningDoor, client: openai.AsyncOpenAI, episode: str
) -> None:
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99)),), error_after=4))  # behind the finish reason
    answered = await client.responses.with_raw_response.create(model="solver", input="x", stream=True)
    events = [json.loads(line[6:]) async for line in answered.http_response.aiter_lines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events][-3:] == ["response.output_text.delta", "error", "response.failed"]
    (call,) = await door.calls(episode)
    assert call.state is CallState.FAILED


async def test_an_engine_that_leaves_its_end_mark_out_has_answered_all_the_same(
    door: RunningDoor, client: openai.AsyncOpenAI
) -> None:
    said: Any = {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}
    door.engine.script(Script(raw_events=[b"data: " + json.dumps(said).encode() + b"\n\n"]))
    async with client.responses.stream(model="solver", input="x") as stream:
        assert (await stream.get_final_response()).output_text == "yes"


async def test_log_probabilities_stand_on_the_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="solver", input="hi", include=["message.output_text.logprobs"], max_output_tokens=2
    )
    (item,) = answer.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert len(part.logprobs) == 2


async def test_a_hosted_tool_is_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="runs at OpenAI"):
        await client.responses.create(model="solver", input="hi", tools=[{"type": "web_search"}])


async def test_the_client_without_a_loop(door: RunningDoor, episode: str) -> None:
    key = door.services.keys.session_key("default", episode)

    def talk() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{door.url}/v1", api_key=key) as sdk:
            answer = sdk.responses.create(model="solver", input="hi")
            with sdk.responses.stream(model="solver", input="so?", previous_response_id=answer.id) as stream:
                pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
                return "".join(pieces), stream.get_final_response().output_text

    joined, told = await asyncio.to_thread(talk)
    assert joined == told != ""
