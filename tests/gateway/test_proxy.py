"""The life of a call, over real sockets: what is passed on, held, released, recorded, and what a failure looks like."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.running import BODY, STREAM, RunningDoor, running_door, until
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.claims import Note
from tracker.clock import SystemClock
from tracker.errors import Unavailable
from tracker.memory_store import MemoryStore
from tracker.store import Begun
from tracker.types import Call, CallState, Event, Intent, Reason, RunSettings

pytestmark = pytest.mark.slow


class TroubledStore(MemoryStore):
    """A store that can be away, or slow, when a test says so."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.begin_fails = False
        self.repins = False
        """It finds an episode on an old version, and is away when it is to say so."""
        self.end_fails = 0
        """How many tries to record fail."""
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.num_ended = 0

    async def begin_call(self, intent: Intent, pin: str, engine: str | None, mark: bytes = b"") -> Begun:
        if self.begin_fails:
            raise Unavailable("The store is away.")
        begun = await super().begin_call(intent, pin, engine, mark)
        return replace(begun, repinned_from=1) if self.repins else begun

    async def add_event(self, episode_id: str, event: Event) -> None:
        if self.repins:
            raise Unavailable("The store is away.")
        await super().add_event(episode_id, event)

    async def end_call(self, call: Call, note: Note | None = None) -> bool:
        self.num_ended += 1
        await self.may_end.wait()
        if self.end_fails:
            self.end_fails -= 1
            raise Unavailable("The store is away.")
        return await super().end_call(call, note)


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore()


@pytest.fixture
async def door(tmp_path: Path, store: TroubledStore) -> AsyncIterator[RunningDoor]:
    env = {"HONE_RECORD_TIMEOUT_S": "2"}
    async with ScriptedEngine() as engine, running_door(engine, tmp_path, store=store, env=env) as running:
        yield running


async def answers_the_next_call(door: RunningDoor) -> bool:
    episode = await door.open_episode()
    answered = await door.chat(episode, BODY)
    return answered.status == 200 and (await door.calls(episode))[0].state is CallState.COMPLETED


async def settled(door: RunningDoor, episode: str) -> Call:
    """The episode's only call, once it is recorded."""
    while (await door.view(episode)).intents or not await door.calls(episode):
        await asyncio.sleep(0.005)
    (call,) = await door.calls(episode)
    return call


async def test_a_whole_answer_is_recorded_before_it_is_released(door: RunningDoor, store: TroubledStore) -> None:
    episode = await door.open_episode()
    store.may_end.clear()
    asking = asyncio.create_task(door.chat(episode, BODY))
    await until(lambda: store.num_ended)
    assert not asking.done()
    store.may_end.set()
    assert (await asking).status == 200


async def test_the_last_events_of_a_stream_are_held_until_it_is_recorded(
    door: RunningDoor, store: TroubledStore
) -> None:
    episode = await door.open_episode()
    store.may_end.clear()
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99)),)))
    async with door.stream(episode) as response:
        early = await response.content.readany()
        while early.count(b"\n\n") < 3:
            early += await response.content.readany()
        await until(lambda: store.num_ended)
        assert b'"finish_reason":"stop"' not in early
        assert b"[DONE]" not in early
        store.may_end.set()
        late = await response.content.read()
    assert b'"finish_reason":"stop"' in late
    assert late.endswith(b"data: [DONE]\n\n")


async def test_a_call_that_fails_after_its_intent_is_lost_at_once(door: RunningDoor, store: TroubledStore) -> None:
    episode = await door.open_episode()
    store.repins = True
    assert (await door.chat(episode, BODY)).status == 503
    assert (await settled(door, episode)).state is CallState.LOST
    store.repins = False
    assert await answers_the_next_call(door)


async def test_the_agent_gets_the_gateways_id_and_the_name_it_asked_for(door: RunningDoor) -> None:
    episode = await door.open_episode()
    whole = await door.chat(episode, {**BODY, "model": "gpt-4o"})
    streamed = await door.chat(episode, {**STREAM, "model": "gpt-4o"})
    said = [json.loads(whole.raw), *(json.loads(event) for event in streamed.events[:-1])]
    assert {value["model"] for value in said} == {"gpt-4o"}
    ids = [call.call_id for call in await door.calls(episode)]
    assert [whole.headers["x-hone-call"], streamed.headers["x-hone-call"]] == ids
    assert {value["id"] for value in said} == set(ids)
    assert (whole.headers["x-hone-episode"], whole.headers["x-hone-version"]) == (episode, "0")
    assert whole.headers["x-hone-policy"] == "solver"


async def test_the_call_is_recorded_with_all_it_was(door: RunningDoor) -> None:
    episode = await door.open_episode()
    door.engine.script(Script(prompt_ids=(1, 2), choices=(Answer(ids=(5, 99), logprobs=(-0.5, -0.125)),)))
    await door.chat(episode, {**BODY, "max_tokens": 9, "temperature": 0}, **{"x-stainless-retry-count": "2"})
    (call,) = await door.calls(episode)
    assert (call.state, call.reason, call.policy, call.index) == (CallState.COMPLETED, None, "solver", 0)
    assert (call.prompt_ids, call.choices[0].sampled_ids, call.choices[0].logprobs) == ((1, 2), (5, 99), (-0.5, -0.125))
    assert (call.sampling.temperature, call.sampling.max_tokens, call.retry) == (1.0, 9, 2)
    assert json.loads(call.request) == {"model": "solver", "max_tokens": 9, "temperature": 0}
    assert [json.loads(message) for message in call.messages] == BODY["messages"]
    assert json.loads(call.choices[0].message)["content"] == "t5 "
    assert len(call.body_digest) == 64


async def test_several_choices_are_one_call(door: RunningDoor) -> None:
    episode = await door.open_episode()
    door.engine.script(Script(choices=(Answer(ids=(5, 99)), Answer(ids=(6, 7, 99)))))
    answered = await door.chat(episode, {**STREAM, "n": 2})
    assert answered.events[-1] == b"[DONE]"
    (call,) = await door.calls(episode)
    assert [choice.sampled_ids for choice in call.choices] == [(5, 99), (6, 7, 99)]


async def test_comments_and_the_end_mark_keep_their_bytes(door: RunningDoor) -> None:
    episode = await door.open_episode()
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\r\n\r\n'
    door.engine.script(Script(raw_events=(b": ping\r\n\r\n", event, b"data:[DONE]\r\n\r\n")))
    answered = await door.chat(episode, STREAM)
    assert answered.raw.startswith(b": ping\r\n\r\n")
    assert answered.raw.endswith(b"data:[DONE]\r\n\r\n")


async def test_events_cut_anywhere_on_the_way_come_out_whole(door: RunningDoor) -> None:
    episode = await door.open_episode()
    stream = (
        '\ufeff: hello\n\ndata: {"choices":[{"index":0,"delta":{"content":"\u2028é"},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    ).encode()
    door.engine.script(Script(raw_events=[stream[k : k + 1] for k in range(len(stream))]))
    answered = await door.chat(episode, STREAM)
    deltas = [json.loads(event)["choices"][0]["delta"] for event in answered.events[1:-1]]
    assert deltas == [{"content": "\u2028é"}, {}]


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_the_engines_4xx_and_503_pass_with_their_message(door: RunningDoor, status: int, body: Any) -> None:
    episode = await door.open_episode()
    error = {"message": "no, because", "type": "BadRequestError", "param": None, "code": status}
    door.engine.script(Script(status=status, error=error, headers={"Retry-After": "7"}))
    answered = await door.chat(episode, body)
    assert (answered.status, json.loads(answered.raw)["error"]["message"]) == (status, "no, because")
    assert answered.headers["retry-after"] == "7"
    assert answered.headers["x-hone-episode"] == episode
    call = await settled(door, episode)
    assert (call.state, call.reason) == (CallState.FAILED, Reason.UPSTREAM_FAILED)
    assert await answers_the_next_call(door)


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_the_engines_other_5xx_are_502(door: RunningDoor, status: int) -> None:
    episode = await door.open_episode()
    door.engine.script(Script(status=status))
    answered = await door.chat(episode, STREAM)
    assert answered.status == 502
    assert "error" in json.loads(answered.raw)


async def test_a_context_overflow_has_its_own_reason(door: RunningDoor) -> None:
    episode = await door.open_episode()
    error = {"message": "This model's maximum context length is 10 tokens.", "type": "BadRequestError", "code": 400}
    door.engine.script(Script(status=400, error=error))
    answered = await door.chat(episode, BODY)
    assert (answered.status, json.loads(answered.raw)["error"]["code"]) == (400, "context_length_exceeded")
    assert (await settled(door, episode)).reason is Reason.CONTEXT_LIMIT


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_an_engine_that_is_gone_is_502(door: RunningDoor, body: Any) -> None:
    episode = await door.open_episode()
    await door.engine.stop()
    assert (await door.chat(episode, body)).status == 502
    assert (await settled(door, episode)).reason is Reason.UPSTREAM_FAILED
    await door.engine.start()
    assert await answers_the_next_call(door)


@pytest.mark.parametrize(
    "script",
    [
        Script(reset_after=0),
        Script(close_after=0),
        Script(error_after=0),
        Script(raw_events=(b"data: {\n\n",)),
        Script(raw_events=(b"data: 5\n\n",)),
        Script(raw_events=(b"data: [DONE]\n\n",)),
        Script(raw_events=(b'data: {"object":"error","message":"old form","code":500}\n\n',)),
    ],
)
async def test_a_stream_that_fails_before_its_first_event_is_a_real_status(door: RunningDoor, script: Script) -> None:
    episode = await door.open_episode()
    door.engine.script(script)
    answered = await door.chat(episode, STREAM)
    assert answered.status == 502
    assert (await settled(door, episode)).state is CallState.FAILED
    assert await answers_the_next_call(door)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"5", b'{"error": {"message": "x"}}', b'{"choices": 3}', b"\xff", b'{"choices": []}'),
        b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": null}]}',
        b'{"choices": [{"index": 1%s, "message": {}, "finish_reason": "stop"}]}' % (b"0" * 30),
    ],
)
async def test_a_whole_answer_that_is_none_is_502(door: RunningDoor, body: bytes) -> None:
    episode = await door.open_episode()
    door.engine.script(Script(raw_body=body))
    answered = await door.chat(episode, BODY)
    assert (answered.status, answered.headers["content-type"]) == (502, "application/json")
    assert json.loads(answered.raw)["error"]["type"] == "upstream_error"
    assert (await settled(door, episode)).state is CallState.FAILED


@pytest.mark.parametrize(
    "script",
    [
        Script(choices=(Answer(ids=(5, 6, 99)),), reset_after=2),
        Script(choices=(Answer(ids=(5, 6, 99)),), error_after=2),
        Script(choices=(Answer(ids=(5, 6, 99)),), close_after=2),
        Script(choices=(Answer(ids=(5,), finish_reason=None),)),
    ],
)
async def test_a_stream_that_breaks_ends_in_one_error_event(door: RunningDoor, script: Script) -> None:
    episode = await door.open_episode()
    door.engine.script(script)
    started_s = time.monotonic()
    answered = await door.chat(episode, STREAM)
    assert time.monotonic() - started_s < 10
    assert answered.status == 200
    *passed, last = answered.events
    assert len(passed) == 2
    assert set(json.loads(last)) == {"error"}
    assert all(json.loads(event)["choices"][0]["finish_reason"] is None for event in passed)
    call = await settled(door, episode)
    assert (call.state, call.reason) == (CallState.FAILED, Reason.UPSTREAM_FAILED)
    assert await answers_the_next_call(door)


async def test_what_came_with_a_failure_in_one_piece_is_passed_on_first(door: RunningDoor) -> None:
    episode = await door.open_episode()
    good = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    door.engine.script(Script(raw_events=(good + good + b'data: {"error":{"message":"gone"}}\n\n',)))
    answered = await door.chat(episode, STREAM)
    assert len(answered.events) == 3
    assert json.loads(answered.events[-1])["error"]["message"] == "gone"


@pytest.mark.parametrize(
    ("script", "num_events"),
    [
        (Script(delay_s=20), 0),
        (Script(delay_s=20, headers_first=True), 0),
        (Script(choices=(Answer(ids=(5, 6, 7, 99)),), hang_after=3), 3),
    ],
)
async def test_a_client_that_leaves_a_stream_stops_the_engine(
    door: RunningDoor, script: Script, num_events: int
) -> None:
    episode = await door.open_episode()
    door.engine.script(script)
    asking = asyncio.create_task(read_events(door, episode, num_events))
    await until(lambda: door.engine.calls and (not num_events or asking.done()))
    asking.cancel()
    await asyncio.wait_for(door.engine.calls[0].disconnected.wait(), 15)
    call = await settled(door, episode)
    assert (call.state, call.reason) == (CallState.ABORTED, Reason.CLIENT_GONE)
    assert await answers_the_next_call(door)


async def read_events(door: RunningDoor, episode: str, num_events: int) -> None:
    async with door.stream(episode) as response:
        seen = b""
        while seen.count(b"\n\n") < num_events:
            seen += await response.content.readany()


async def test_a_client_that_leaves_a_whole_answer_stops_the_engine(door: RunningDoor) -> None:
    episode = await door.open_episode()
    door.engine.script(Script(delay_s=20))
    asking = asyncio.create_task(door.chat(episode, BODY))
    await until(lambda: door.engine.calls)
    asking.cancel()
    await asyncio.wait_for(door.engine.calls[0].disconnected.wait(), 15)
    assert (await settled(door, episode)).state is CallState.ABORTED


async def test_a_client_that_leaves_before_the_release_has_an_aborted_call(
    door: RunningDoor, store: TroubledStore
) -> None:
    episode = await door.open_episode()
    store.end_fails = 20
    asking = asyncio.create_task(door.chat(episode, BODY))
    await until(lambda: store.num_ended)
    asking.cancel()
    assert (await settled(door, episode)).state is CallState.ABORTED


async def test_a_store_that_comes_back_in_time_releases_the_answer(door: RunningDoor, store: TroubledStore) -> None:
    episode = await door.open_episode()
    store.end_fails = 3
    assert (await door.chat(episode, BODY)).status == 200
    assert (await settled(door, episode)).state is CallState.COMPLETED


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_an_answer_that_cannot_be_recorded_is_not_released(
    door: RunningDoor, store: TroubledStore, body: Any
) -> None:
    episode = await door.open_episode()
    store.end_fails = 1000
    door.engine.script(Script(choices=(Answer(ids=(5, 6, 99)),)))
    answered = await door.chat(episode, body)
    if "stream" in body:
        assert set(json.loads(answered.events[-1])) == {"error"}
        assert b'"finish_reason":"stop"' not in answered.raw
    else:
        assert answered.status == 503
        assert answered.headers["retry-after"]
    store.end_fails = 0
    assert await answers_the_next_call(door)


async def test_a_call_that_was_given_up_meanwhile_is_not_released(door: RunningDoor, store: TroubledStore) -> None:
    episode = await door.open_episode()
    store.may_end.clear()
    asking = asyncio.create_task(door.chat(episode, STREAM))
    await until(lambda: store.num_ended)
    (intent,) = (await door.view(episode)).intents
    assert await store.abandon_call(episode, intent.call_id, 1)
    store.may_end.set()
    answered = await asking
    assert set(json.loads(answered.events[-1])) == {"error"}
    assert b'"finish_reason":"stop"' not in answered.raw


async def test_without_its_store_a_call_is_refused_at_once_and_never_sent(
    door: RunningDoor, store: TroubledStore
) -> None:
    episode = await door.open_episode()
    store.begin_fails = True
    answered = await door.chat(episode, BODY)
    assert (answered.status, answered.headers["retry-after"]) == (503, "1")
    assert door.engine.calls == []
    store.begin_fails = False
    assert await answers_the_next_call(door)


async def test_a_best_effort_run_is_served_unrecorded_and_says_so(door: RunningDoor, store: TroubledStore) -> None:
    await door.services.ledger.put_run("default", RunSettings(run="loose", record="best_effort"))
    episode = await door.open_episode(run="loose")
    store.begin_fails = True
    assert (await door.chat(episode, BODY)).status == 200
    events = (await door.services.ledger.get_episode("default", episode)).events
    assert [event.kind for event in events if isinstance(event, Event)] == ["unrecorded"]


async def test_images_are_served_and_excluded(door: RunningDoor) -> None:
    episode = await door.open_episode()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"model": "solver", "messages": [{"role": "user", "content": [part]}]}
    assert (await door.chat(episode, body)).status == 200
    assert (await settled(door, episode)).reason is Reason.IMAGES


async def test_a_call_over_its_time_is_failed_and_its_engine_stopped(tmp_path: Path) -> None:
    async with (
        ScriptedEngine() as engine,
        running_door(engine, tmp_path, env={"HONE_CALL_TIMEOUT_S": "0.2"}) as door,
    ):
        episode = await door.open_episode()
        engine.script(Script(delay_s=20))
        assert (await door.chat(episode, BODY)).status == 502
        assert (await settled(door, episode)).state is CallState.FAILED
        await asyncio.wait_for(engine.calls[0].disconnected.wait(), 15)


async def test_connections_to_the_engine_are_used_again(door: RunningDoor) -> None:
    episode = await door.open_episode()
    for body in (BODY, STREAM) * 4:
        assert (await door.chat(episode, body)).status == 200
    assert len({received.peer for received in door.engine.calls}) == 1
