"""The contract of `EpisodeStore`, run on memory and on a real Redis."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings

from tests.tracker.call_strategies import call_of, episodes, intent
from tests.tracker.databases import PATIENT
from tracker.errors import Conflict, Gone, NotFound
from tracker.redis_store import RedisStore
from tracker.store import EpisodeStore, Routing
from tracker.types import Call, CallState, EpisodeHead, EpisodeState, EpisodeStatus, Event, Reason

HEAD = EpisodeHead(episode_id="ep-1", task="t", policy="solver", metadata=b'{"a":1}')
FAR_MS = 2**50


async def until(predicate: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await predicate():
            await asyncio.sleep(0.005)


async def begun_call(store: EpisodeStore, call_id: str = "c0", **fields: object) -> Call:
    """Begin a call and make the record that would end it."""
    wanted = intent(call_id, **fields)
    begun = await store.begin_call(wanted, "episode", None)
    return call_of(wanted, begun.index)


async def test_an_answering_store_is_fit(store: EpisodeStore) -> None:
    await store.ping()


async def test_an_opened_episode_has_its_head_and_nothing_else(store: EpisodeStore) -> None:
    await store.open(HEAD)
    assert await store.head("ep-1") == HEAD
    view = await store.view("ep-1")
    assert (view.state, view.status, view.calls, view.intents, view.pins) == (EpisodeState.OPEN, None, (), (), {})


async def test_opening_again_changes_nothing(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    await store.open(HEAD)
    assert await store.end_call(call)


async def test_an_unknown_episode_is_not_found(store: EpisodeStore) -> None:
    for attempt in (
        store.head("ep-9"),
        store.view("ep-9"),
        store.num_in_flight("ep-9"),
        store.finish("ep-9", EpisodeStatus.OK),
        store.seal("ep-9"),
        store.begin_call(intent(episode_id="ep-9"), "episode", None),
        store.add_event("ep-9", Event(at_ms=1, kind="x")),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert not await store.end_call(call_of(intent(episode_id="ep-9"), 0))
    assert not await store.abandon_call("ep-9", "c0", 1)
    await store.expire("ep-9", 1)


async def test_calls_are_numbered_in_the_order_in_which_they_begin(store: EpisodeStore) -> None:
    await store.open(HEAD)
    begun = await asyncio.gather(*(store.begin_call(intent(f"c{n}"), "episode", None) for n in range(30)))
    assert sorted(one.index for one in begun) == list(range(30))
    assert await store.num_in_flight("ep-1") == 30


async def test_beginning_a_call_again_gives_what_it_got(store: EpisodeStore) -> None:
    await store.open(HEAD)
    first = await store.begin_call(intent(), "episode", None)
    assert await store.begin_call(intent(), "episode", None) == first
    assert await store.num_in_flight("ep-1") == 1
    assert await store.pins("solver") == {0: 1}


async def test_an_ended_call_cannot_begin_again(store: EpisodeStore) -> None:
    await store.open(HEAD)
    await store.end_call(await begun_call(store))
    with pytest.raises(Conflict):
        await store.begin_call(intent(), "episode", None)


async def test_the_first_call_pins_the_active_version_for_the_episode(store: EpisodeStore) -> None:
    await store.set_routing("solver", Routing(active=3))
    await store.open(HEAD)
    assert (await store.begin_call(intent("c0"), "episode", None)).version == 3
    await store.set_routing("solver", Routing(active=4, oldest=2))
    begun = await store.begin_call(intent("c1"), "episode", None)
    assert (begun.version, begun.repinned_from) == (3, None)
    assert (await store.view("ep-1")).pins == {"solver": 3}


async def test_with_pins_by_call_each_call_gets_the_active_version(store: EpisodeStore) -> None:
    await store.open(HEAD)
    await store.begin_call(intent("c0"), "call", None)
    await store.set_routing("solver", Routing(active=4))
    begun = await store.begin_call(intent("c1"), "call", None)
    assert (begun.version, begun.repinned_from) == (4, None)


@pytest.mark.parametrize("routing", [Routing(active=5, oldest=4), Routing(active=5, withdrawn=(1, 3))])
async def test_a_pin_too_old_or_withdrawn_moves_to_the_active_version(store: EpisodeStore, routing: Routing) -> None:
    await store.set_routing("solver", Routing(active=3))
    await store.open(HEAD)
    await store.end_call(await begun_call(store))
    await store.set_routing("solver", routing)
    begun = await store.begin_call(intent("c1"), "episode", None)
    assert (begun.version, begun.repinned_from) == (5, 3)
    assert await store.pins("solver") == {5: 1}
    assert (await store.view("ep-1")).intents[0].version == 5


async def test_a_version_asked_for_at_creation_is_never_moved(store: EpisodeStore) -> None:
    await store.set_routing("solver", Routing(active=5, oldest=4, withdrawn=(2,)))
    await store.open(EpisodeHead(episode_id="ep-1", policy="solver", version=2))
    assert (await store.begin_call(intent("c0"), "call", None)).version == 2
    assert (await store.begin_call(intent("c1", policy="checker"), "episode", None)).version == 0


async def test_a_model_that_is_no_policy_has_no_version_and_no_pin(store: EpisodeStore) -> None:
    await store.open(HEAD)
    assert (await store.begin_call(intent(policy=None), "episode", None)).version == 0
    assert (await store.view("ep-1")).pins == {}


async def test_routing_is_what_was_set_and_nothing_before(store: EpisodeStore) -> None:
    assert await store.get_routing("solver") == Routing()
    routing = Routing(active=7, oldest=5, withdrawn=(6, 3))
    await store.set_routing("solver", routing)
    assert await store.get_routing("solver") == routing


async def test_pins_count_the_unsealed_episodes_on_a_version(store: EpisodeStore) -> None:
    for name in ("ep-1", "ep-2"):
        await store.open(EpisodeHead(episode_id=name))
        await begun_call(store, episode_id=name)
    assert await store.pins("solver") == {0: 2}
    await store.delete("ep-2")
    assert await store.pins("solver") == {0: 1}
    await store.abandon_call("ep-1", "c0", 1)
    await store.finish("ep-1", EpisodeStatus.OK)
    assert await store.pins("solver") == {0: 1}
    assert await store.seal("ep-1")
    assert await store.pins("solver") == {}


async def test_a_call_in_flight_holds_its_version_after_the_pin_moved(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    await store.set_routing("solver", Routing(active=1, oldest=1))
    await store.begin_call(intent("c1"), "episode", None)
    assert await store.pins("solver") == {0: 1, 1: 1}
    await store.end_call(call)
    assert await store.pins("solver") == {1: 1}


async def test_an_episode_stays_on_its_engine_while_calls_may_go_there(store: EpisodeStore) -> None:
    await store.open(HEAD)
    wanted = [("one", "two"), ("two", "one"), None, ("two",), ("one", "two"), ("three",)]
    begun = [await store.begin_call(intent(f"c{number}"), "episode", engines) for number, engines in enumerate(wanted)]
    assert [call.engine for call in begun] == ["one", "one", "one", "two", "two", "three"]
    assert (await store.begin_call(intent("c0"), "episode", ("one",))).engine == "three", "the same call, not one more"
    assert (await store.begin_call(intent("d0", policy="checker"), "episode", ("four",))).engine == "four"
    assert (await store.begin_call(intent("c9"), "episode", ("four", "three"))).engine == "three", "each policy its own"


async def test_calls_that_begin_an_episode_at_once_agree_on_its_engine(store: EpisodeStore) -> None:
    await store.open(HEAD)
    orders = [("one", "two"), ("two", "one")] * 5
    begun = await asyncio.gather(
        *(store.begin_call(intent(f"c{number}"), "episode", order) for number, order in enumerate(orders))
    )
    assert len({call.engine for call in begun}) == 1


async def test_an_ended_call_is_recorded_once_however_often_it_is_told(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    assert [await store.end_call(call), await store.end_call(call)] == [True, True]
    view = await store.view("ep-1")
    assert (view.calls, view.intents) == ((call,), ())


async def test_a_call_without_an_intent_is_refused(store: EpisodeStore) -> None:
    await store.open(HEAD)
    assert not await store.end_call(call_of(intent(), 0))
    assert (await store.view("ep-1")).calls == ()


async def test_an_abandoned_call_is_lost_with_all_its_intent_knew(store: EpisodeStore) -> None:
    await store.set_routing("solver", Routing(active=2))
    await store.open(HEAD)
    wanted = intent(role="judge", model="m", key_id="k", body_digest="d", retry=1)
    await store.begin_call(wanted, "episode", None)
    assert await store.abandon_call("ep-1", "c0", 9)
    assert not await store.abandon_call("ep-1", "c0", 9)
    [lost] = (await store.view("ep-1")).calls
    assert (lost.state, lost.reason, lost.version, lost.index) == (CallState.LOST, Reason.LOST, 2, 0)
    assert (lost.role, lost.model, lost.key_id, lost.body_digest, lost.retry) == ("judge", "m", "k", "d", 1)
    assert (lost.started_ms, lost.ended_ms, lost.policy) == (5, 9, "solver")


async def test_the_worker_of_a_call_given_up_as_lost_may_not_release_its_answer(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    await store.abandon_call("ep-1", "c0", 9)
    assert not await store.end_call(call)
    assert [one.state for one in (await store.view("ep-1")).calls] == [CallState.LOST]


async def test_a_recorded_call_cannot_be_abandoned(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    await store.end_call(call)
    assert not await store.abandon_call("ep-1", "c0", 9)
    assert (await store.view("ep-1")).calls == (call,)


async def test_a_finishing_episode_takes_no_new_call_and_lets_those_in_flight_end(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    assert await store.finish("ep-1", EpisodeStatus.OK) is EpisodeState.FINISHING
    with pytest.raises(Gone):
        await store.begin_call(intent("c1"), "episode", None)
    assert not await store.seal("ep-1")
    assert await store.end_call(call)
    assert await store.seal("ep-1")
    assert await store.seal("ep-1")
    view = await store.view("ep-1")
    assert (view.state, view.status, view.calls) == (EpisodeState.SEALED, EpisodeStatus.OK, (call,))


async def test_an_open_episode_is_not_sealed(store: EpisodeStore) -> None:
    await store.open(HEAD)
    assert not await store.seal("ep-1")


async def test_finishing_again_is_no_change_unless_the_status_differs(store: EpisodeStore) -> None:
    await store.open(HEAD)
    await store.finish("ep-1", EpisodeStatus.FAILED)
    assert await store.finish("ep-1", EpisodeStatus.FAILED) is EpisodeState.FINISHING
    with pytest.raises(Conflict):
        await store.finish("ep-1", EpisodeStatus.OK)
    await store.seal("ep-1")
    assert await store.finish("ep-1", EpisodeStatus.FAILED) is EpisodeState.SEALED


async def test_episodes_wait_as_finishing_until_they_may_expire(store: EpisodeStore) -> None:
    await store.open(HEAD)
    assert await store.finishing() == []
    with pytest.raises(Conflict):
        await store.expire("ep-1", 10)
    await store.finish("ep-1", EpisodeStatus.OK)
    assert await store.finishing() == ["ep-1"]
    await store.seal("ep-1")
    assert await store.finishing() == ["ep-1"]
    await store.expire("ep-1", 20)
    await store.expire("ep-1", 20)
    assert await store.finishing() == []

    async def is_gone() -> bool:
        try:
            await store.head("ep-1")
        except NotFound:
            return True
        return False

    await until(is_gone)


async def test_an_archived_episode_can_be_read_until_it_expires(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    await store.end_call(call)
    await store.finish("ep-1", EpisodeStatus.OK)
    await store.seal("ep-1")
    await store.expire("ep-1", 60_000)
    await store.add_event("ep-1", Event(at_ms=1, kind="late_reward"))
    view = await store.view("ep-1")
    assert (view.state, view.calls, len(view.events)) == (EpisodeState.ARCHIVED, (call,), 1)
    with pytest.raises(Gone):
        await store.begin_call(intent("c1"), "episode", None)


async def test_a_call_in_flight_cannot_bring_a_deleted_episode_back(store: EpisodeStore) -> None:
    await store.open(HEAD)
    call = await begun_call(store)
    await store.delete("ep-1")
    await store.delete("ep-1")
    assert not await store.end_call(call)
    assert await store.due_calls(FAR_MS * 2) == []
    for attempt in (store.open(HEAD), store.head("ep-1"), store.begin_call(intent("c1"), "episode", None)):
        with pytest.raises(Gone):
            await attempt


async def test_a_deleted_episode_leaves_nothing_of_its_calls(store: EpisodeStore) -> None:
    await store.open(HEAD)
    await store.end_call(await begun_call(store))
    await store.finish("ep-1", EpisodeStatus.OK)
    await store.delete("ep-1")
    assert await store.finishing() == []
    assert await store.pins("solver") == {}
    with pytest.raises(Gone):
        await store.view("ep-1")


async def test_events_are_kept_in_order(store: EpisodeStore) -> None:
    await store.open(HEAD)
    events = tuple(Event(at_ms=n, kind="repinned", detail=str(n)) for n in range(3))
    for event in events:
        await store.add_event("ep-1", event)
    assert (await store.view("ep-1")).events == events


async def test_a_call_past_its_deadline_is_due(store: EpisodeStore) -> None:
    await store.heartbeat("worker-1", 60_000)
    await store.open(HEAD)
    call = await begun_call(store, deadline_ms=1000)
    assert await store.due_calls(999) == []
    assert await store.due_calls(1000) == [("ep-1", "c0")]
    await store.end_call(call)
    assert await store.due_calls(1000) == []


async def test_a_call_of_a_worker_that_fell_silent_is_due(store: EpisodeStore) -> None:
    await store.open(HEAD)
    await store.heartbeat("worker 1", 40)
    await begun_call(store, worker="worker 1")

    async def is_due() -> bool:
        return await store.due_calls(0) == [("ep-1", "c0")]

    await until(is_due)
    await store.heartbeat("worker 1", 60_000)
    assert await store.due_calls(0) == []


async def test_calls_are_read_in_the_order_in_which_they_began(store: EpisodeStore) -> None:
    await store.open(HEAD)
    made = [await begun_call(store, f"c{n}") for n in range(5)]
    for call in reversed(made):
        await store.end_call(call)
    assert (await store.view("ep-1")).calls == tuple(made)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=episodes())
def test_what_was_recorded_is_read_back_in_every_field(redis_url: str, made: tuple[Call, ...]) -> None:
    async def record_and_read() -> None:
        store = await RedisStore.connect(redis_url, f"law{uuid.uuid4().hex}", patience=PATIENT)
        await store.open(HEAD)
        for call in made:
            await store.begin_call(intent(call.call_id, policy=call.policy), "episode", None)
            assert await store.end_call(call)
        assert (await store.view("ep-1")).calls == made
        await store.close()

    asyncio.run(record_and_read())
