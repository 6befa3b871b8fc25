"""What only a real Redis can show: killed, paused, filled or made to forget, it loses nothing it acknowledged."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from bench.agent_turns import SHAPES, new_tokens, turns
from tests.tracker.call_strategies import call_of, intent
from tracker.errors import SettingsError, Unavailable
from tracker.redis_server import EmbeddedRedis
from tracker.redis_store import Patience, RedisStore
from tracker.types import Call, CallState, Choice, EpisodeHead, EpisodeStatus, Event, Reason

HEAD = EpisodeHead(episode_id="ep-1")
LONG = tuple(range(1000))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """A server of this test's own, to be harmed."""
    server = EmbeddedRedis(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def hurried(server: EmbeddedRedis) -> AsyncIterator[RedisStore]:
    """A store with the times that a gateway has."""
    store = await RedisStore.connect(server.url)
    await store.open(HEAD)
    yield store
    await store.close()


@pytest.fixture
async def store(server: EmbeddedRedis) -> AsyncIterator[RedisStore]:
    store = await RedisStore.connect(server.url, patience=Patience(begin_s=3, stall_s=0.3))
    await store.open(HEAD)
    yield store
    await store.close()


async def begun_call(store: RedisStore, call_id: str = "c0", prompt: tuple[int, ...] = LONG) -> Call:
    wanted = intent(call_id)
    begun = await store.begin_call(wanted, "episode", None)
    return call_of(wanted, begun.index, prompt=prompt)


def signalled(server: EmbeddedRedis, number: signal.Signals) -> None:
    assert server.pid is not None
    os.kill(server.pid, number)


async def test_every_acknowledged_call_survives_a_killed_server(server: EmbeddedRedis, store: RedisStore) -> None:
    recorded: list[Call] = []
    killed = asyncio.Event()

    async def agent(number: int) -> None:
        turn = 0
        while not killed.is_set():
            try:
                call = await begun_call(store, f"a{number}-{turn}")
            except Unavailable:
                return
            if await store.end_call(call):
                recorded.append(call)
            turn += 1

    agents = [asyncio.create_task(agent(number)) for number in range(4)]
    while len(recorded) < 60:
        await asyncio.sleep(0)
    await server.kill()
    killed.set()
    acknowledged = list(recorded)
    await server.start()
    await asyncio.gather(*agents)
    stored = {call.call_id: call for call in (await store.view("ep-1")).calls}
    assert all(stored[call.call_id] == call for call in acknowledged)
    assert all(stored[call.call_id] == call for call in recorded)


async def test_a_paused_server_refuses_new_calls_within_a_tenth_of_a_second(
    server: EmbeddedRedis, hurried: RedisStore
) -> None:
    signalled(server, signal.SIGSTOP)
    try:
        for _ in range(3):
            started = time.perf_counter()
            with pytest.raises(Unavailable):
                await hurried.begin_call(intent(f"c{started}"), "episode", None)
            assert time.perf_counter() - started < 2
        with pytest.raises(Unavailable):
            await hurried.ping()
    finally:
        signalled(server, signal.SIGCONT)


async def test_a_call_refused_while_the_server_hung_leaves_no_intent(
    server: EmbeddedRedis, hurried: RedisStore
) -> None:
    signalled(server, signal.SIGSTOP)
    with pytest.raises(Unavailable):
        await hurried.begin_call(intent("c0"), "episode", None)
    signalled(server, signal.SIGCONT)
    async with asyncio.timeout(30):
        while await hurried.num_in_flight("ep-1"):
            await asyncio.sleep(0.01)
    assert (await hurried.view("ep-1")).calls == ()


async def test_a_call_in_flight_waits_until_the_server_goes_on(server: EmbeddedRedis, store: RedisStore) -> None:
    call = await begun_call(store)
    signalled(server, signal.SIGSTOP)
    ending = asyncio.create_task(store.end_call(call))
    _, waiting = await asyncio.wait({ending}, timeout=0.5)
    assert waiting
    signalled(server, signal.SIGCONT)
    assert await ending
    assert (await store.view("ep-1")).calls == (call,)


async def test_a_call_in_flight_is_recorded_on_the_restarted_server(server: EmbeddedRedis, store: RedisStore) -> None:
    call = await begun_call(store)
    await server.kill()
    ending = asyncio.create_task(store.end_call(call))
    await asyncio.sleep(0)
    await server.start()
    assert await ending
    assert (await store.view("ep-1")).calls == (call,)


async def test_nobody_is_taken_for_dead_before_he_could_say_again_that_he_lives(server: EmbeddedRedis) -> None:
    returned = await RedisStore.connect(server.url, patience=Patience(begin_s=3, settle_s=3600))
    there = await RedisStore.connect(server.url)
    await returned.open(HEAD)
    call = await begun_call(returned)  # of a worker whose heartbeat ran out while Redis was away
    try:
        assert await returned.due_calls(0) == []
        assert await returned.due_calls(2**50) == [(HEAD.episode_id, call.call_id)]
        assert await there.due_calls(0) == [(HEAD.episode_id, call.call_id)]
    finally:
        await returned.close()
        await there.close()


async def test_a_call_that_cannot_be_recorded_in_time_says_so(server: EmbeddedRedis) -> None:
    store = await RedisStore.connect(server.url, patience=Patience(begin_s=3, end_s=0.1))
    await store.open(HEAD)
    call = await begun_call(store)
    await server.kill()
    with pytest.raises(Unavailable):
        await store.end_call(call)
    await store.close()


async def test_a_server_that_is_away_is_unavailable_at_once(tmp_path: Path) -> None:
    started = time.perf_counter()
    with pytest.raises(Unavailable):
        await RedisStore.connect(f"unix://{tmp_path}/none.sock")
    assert time.perf_counter() - started < 4


async def test_cancelled_callers_leave_the_connection_in_step(store: RedisStore) -> None:
    for number in range(50):
        begin = asyncio.create_task(store.begin_call(intent(f"x{number}"), "episode", None))
        await asyncio.sleep(0.0001 * (number % 7))
        begin.cancel()
        await asyncio.wait({begin})
    for number in range(20):
        call = await begun_call(store, f"c{number}")
        assert await store.end_call(call)
    assert {call.call_id for call in (await store.view("ep-1")).calls} >= {f"c{n}" for n in range(20)}


async def test_a_call_is_recorded_though_its_caller_was_cancelled(store: RedisStore) -> None:
    call = await begun_call(store)
    ending = asyncio.create_task(store.end_call(call))
    await asyncio.sleep(0)
    ending.cancel()
    async with asyncio.timeout(30):
        while not (await store.view("ep-1")).calls:
            await asyncio.sleep(0.005)
    assert (await store.view("ep-1")).calls == (call,)


async def test_a_cancelled_begin_takes_its_intent_back(store: RedisStore) -> None:
    begin = asyncio.create_task(store.begin_call(intent("c0"), "episode", None))
    await asyncio.sleep(0)
    begin.cancel()
    await asyncio.wait({begin})
    async with asyncio.timeout(30):
        while await store.num_in_flight("ep-1"):
            await asyncio.sleep(0.005)


async def test_scripts_are_sent_again_where_the_server_forgot_them(server: EmbeddedRedis, store: RedisStore) -> None:
    call = await begun_call(store)
    client = redis.Redis.from_url(server.url)
    client.script_flush()
    client.close()
    assert await store.end_call(call)


async def test_a_full_server_refuses_new_calls_and_records_those_in_flight(
    server: EmbeddedRedis, store: RedisStore
) -> None:
    call = await begun_call(store)
    await begun_call(store, "c1")
    client = redis.Redis.from_url(server.url)
    client.config_set("maxmemory", 1)
    with pytest.raises(Unavailable, match="maxmemory"):
        await store.begin_call(intent("c2"), "episode", None)
    with pytest.raises(Unavailable, match="maxmemory"):
        await store.open(EpisodeHead(episode_id="ep-2"))
    assert await store.end_call(call)
    assert await store.abandon_call("ep-1", "c1", 9)
    await store.heartbeat("worker-1", 1000)
    await store.add_event("ep-1", Event(at_ms=1, kind="x"))
    await store.finish("ep-1", EpisodeStatus.OK)
    assert await store.seal("ep-1")
    await store.delete("ep-1")
    client.config_set("maxmemory", 0)
    client.close()


@pytest.mark.parametrize(
    ("setting", "value"), [("maxmemory-policy", "allkeys-lru"), ("appendfsync", "everysec"), ("appendonly", "no")]
)
async def test_a_strict_store_refuses_a_server_that_could_lose_calls(
    server: EmbeddedRedis, setting: str, value: str
) -> None:
    client = redis.Redis.from_url(server.url)
    client.config_set(setting, value)
    client.close()
    with pytest.raises(SettingsError, match=f"CONFIG SET {setting}"):
        await RedisStore.connect(server.url)
    await (await RedisStore.connect(server.url, strict=False)).close()


async def test_a_wrong_url_is_refused_with_one_that_would_do() -> None:
    with pytest.raises(SettingsError, match="redis://"):
        await RedisStore.connect("http://localhost")


async def test_damaged_records_and_messages_come_back_excluded(server: EmbeddedRedis, store: RedisStore) -> None:
    ids = LONG
    for number in range(4):
        call = await begun_call(store, f"c{number}", ids)
        assert await store.end_call(call)
        ids = (*ids, *call.choices[0].sampled_ids, *range(100 * number, 100 * number + 70))
    client = redis.Redis.from_url(server.url)
    before = (await store.view("ep-1")).calls
    records = [bytes(record) for record in client.lrange("hone:{ep-1}:c", 0, -1)]
    client.lset("hone:{ep-1}:c", 1, records[1][: len(records[1]) // 2])
    after = (await store.view("ep-1")).calls
    assert [call.call_id for call in after] == [call.call_id for call in before]
    assert after[0] == before[0]
    assert (after[1].reason, after[1].index, after[1].prompt_ids) == (Reason.UNRECORDED, 1, ())
    assert all(now == then or now.reason is Reason.UNRECORDED for now, then in zip(after, before, strict=True))
    client.lset("hone:{ep-1}:c", 1, records[1])
    client.hset("hone:{ep-1}:t", "m0", b"\0null")
    assert all(call.reason is Reason.UNRECORDED and call.detail for call in (await store.view("ep-1")).calls)
    client.close()


async def test_an_excluded_call_keeps_the_state_it_ended_in(server: EmbeddedRedis, store: RedisStore) -> None:
    first = await begun_call(store, "c0")
    second = await begun_call(store, "c1", (*LONG, 3, 4, 9))
    await store.end_call(first)
    await store.end_call(second)
    client = redis.Redis.from_url(server.url)
    client.lset("hone:{ep-1}:c", 0, b"")
    client.close()
    broken = (await store.view("ep-1")).calls[1]
    assert (broken.state, broken.reason) == (CallState.COMPLETED, Reason.UNRECORDED)
    assert [choice.reason for choice in broken.choices] == [Reason.UNRECORDED]
    assert isinstance(broken.choices[0], Choice)


@pytest.mark.parametrize("shape", SHAPES)
async def test_stored_bytes_follow_new_tokens_and_not_history(
    server: EmbeddedRedis, store: RedisStore, shape: str
) -> None:
    """Ten late turns take what ten early ones take, also where a header changes or the prompt forks."""
    calls = tuple(turns(shape, 50))
    client = redis.Redis.from_url(server.url)
    sizes = [0]
    for call in calls:
        await store.begin_call(intent(call.call_id), "episode", None)
        assert await store.end_call(call)
        sizes.append(sum(len(record) for record in client.lrange("hone:{ep-1}:c", 0, -1)))
    blocks = client.hlen("hone:{ep-1}:b")
    client.close()
    assert (await store.view("ep-1")).calls == calls
    assert sizes[50] - sizes[40] < 1.2 * (sizes[11] - sizes[1])
    assert blocks < new_tokens(calls) / 20
