"""Limits of keys as all workers hold them, in memory and in Redis."""

from __future__ import annotations

import asyncio

import pytest

from tests.tracker.databases import PATIENT
from tracker.quotas import DAY_MS, MINUTE_MS, Limit, Place, Quota, Refusal, day_of
from tracker.redis_store import RedisStore
from tracker.store import EpisodeStore
from tracker.types import KeyLimits

NOW = 20_000 * DAY_MS + 5_000
LATER = NOW + 600_000


def place(name: str, worker: str = "w1", deadline_ms: int = LATER) -> Place:
    return Place(key_id="k1", worker=worker, name=name, deadline_ms=deadline_ms)


def quota(spent: int = 0, spent_today: int = 0, day: int = day_of(NOW), **limits: int) -> Quota:
    return Quota(key_id="k1", limits=KeyLimits(**limits), spent=spent, spent_today=spent_today, day=day)


async def refused(store: EpisodeStore, name: str, asked: Quota, now_ms: int = NOW) -> Limit | None:
    found = await store.take_place(place(name), asked, now_ms)
    return None if found is None else found.limit


@pytest.fixture(autouse=True)
async def living(store: EpisodeStore) -> None:
    await store.heartbeat("w1", 1_000_000_000)


async def test_in_any_minute_there_are_as_many_calls_as_the_rate_allows(store: EpisodeStore) -> None:
    asked = quota(requests_per_minute=2)
    assert await refused(store, "a", asked) is None
    assert await refused(store, "b", asked, NOW + 20_000) is None
    assert await store.take_place(place("c"), asked, NOW + 30_000) == Refusal(limit=Limit.RATE, wait_ms=30_000)
    assert await refused(store, "d", asked, NOW + MINUTE_MS - 1) is Limit.RATE
    assert await refused(store, "e", asked, NOW + MINUTE_MS) is None
    assert await refused(store, "f", asked, NOW + MINUTE_MS) is Limit.RATE
    assert await refused(store, "g", asked, NOW + MINUTE_MS + 20_000) is None


async def test_taking_the_same_place_again_counts_once(store: EpisodeStore) -> None:
    asked = quota(requests_per_minute=2, max_concurrent=2)
    for _ in range(4):
        assert await refused(store, "a", asked) is None
    assert await refused(store, "b", asked) is None


async def test_a_lower_rate_holds_at_once(store: EpisodeStore) -> None:
    for n in range(5):
        assert await refused(store, str(n), quota(requests_per_minute=5), NOW + n) is None
    assert await refused(store, "x", quota(requests_per_minute=2), NOW + 10) is Limit.RATE
    assert await refused(store, "y", quota(requests_per_minute=2), NOW + MINUTE_MS + 3) is None


async def test_a_clock_that_jumped_shuts_nobody_out(store: EpisodeStore) -> None:
    asked = quota(requests_per_minute=1)
    assert await refused(store, "ahead", asked, NOW + 10 * MINUTE_MS) is None
    assert await refused(store, "back", asked, NOW) is None
    assert await refused(store, "next", asked, NOW + 1) is Limit.RATE


async def test_places_are_given_back(store: EpisodeStore) -> None:
    asked = quota(max_concurrent=2)
    assert [await refused(store, name, asked) for name in "abc"] == [None, None, Limit.CONCURRENT]
    assert await store.give_back(place("a"), 0, NOW)
    assert not await store.give_back(place("a"), 0, NOW)
    assert [await refused(store, name, asked) for name in "cd"] == [None, Limit.CONCURRENT]


async def test_workers_together_never_hold_more_places_than_there_are(store: EpisodeStore) -> None:
    asked = quota(max_concurrent=3)
    taken = await asyncio.gather(*(store.take_place(place(f"n{n}"), asked, NOW) for n in range(20)))
    assert sum(refusal is None for refusal in taken) == 3


async def test_a_place_counts_no_longer_than_its_deadline(store: EpisodeStore) -> None:
    asked = quota(max_concurrent=1)
    assert await store.take_place(place("a", deadline_ms=NOW + 50), asked, NOW) is None
    assert await refused(store, "b", asked, NOW + 49) is Limit.CONCURRENT
    assert await refused(store, "b", asked, NOW + 50) is None


async def test_the_places_of_a_dead_worker_are_taken_over(store: EpisodeStore) -> None:
    asked = quota(max_concurrent=2)
    await store.take_place(place("alive"), asked, NOW)
    await store.take_place(place("dead", worker="gone"), asked, NOW)
    assert [await refused(store, name, asked) for name in "ab"] == [None, Limit.CONCURRENT]


async def test_a_budget_is_used_up_by_what_calls_took(store: EpisodeStore) -> None:
    asked = quota(token_budget=100)
    assert await refused(store, "a", asked) is None
    assert await store.give_back(place("a"), 99, NOW)
    assert await refused(store, "b", asked) is None
    assert await store.give_back(place("b"), 5, NOW)
    assert await store.take_place(place("c"), asked, NOW) == Refusal(limit=Limit.BUDGET, wait_ms=None)
    assert await refused(store, "c", quota(token_budget=105)) is None


async def test_what_sql_has_counted_is_spent_whatever_the_store_remembers(store: EpisodeStore) -> None:
    assert await refused(store, "a", quota(spent=99, token_budget=99)) is Limit.BUDGET
    assert await refused(store, "b", quota(spent=99, token_budget=100)) is None
    assert await store.give_back(place("b"), 10, NOW)
    assert await refused(store, "c", quota(spent=50, token_budget=109)) is Limit.BUDGET
    assert await refused(store, "d", quota(spent=50, token_budget=110)) is None


async def test_a_day_s_budget_is_whole_again_at_midnight(store: EpisodeStore) -> None:
    asked = quota(token_budget_per_day=10)
    assert await refused(store, "a", asked) is None
    assert await store.give_back(place("a"), 10, NOW)
    found = await store.take_place(place("b"), asked, NOW)
    assert found == Refusal(limit=Limit.DAILY, wait_ms=DAY_MS - 5_000)
    assert await refused(store, "c", asked, NOW + DAY_MS) is None
    assert await refused(store, "d", quota(spent_today=10, token_budget_per_day=10), NOW + DAY_MS) is None
    today = quota(spent_today=10, day=day_of(NOW) + 1, token_budget_per_day=10)
    assert await refused(store, "e", today, NOW + DAY_MS) is Limit.DAILY


async def test_a_worker_whose_clock_is_behind_at_midnight_opens_no_second_day(store: EpisodeStore) -> None:
    asked = quota(token_budget_per_day=10)
    midnight = NOW + DAY_MS - 5_000
    assert await refused(store, "a", asked, midnight) is None
    assert await store.give_back(place("a"), 10, midnight)
    assert await refused(store, "b", asked, midnight - 1) is Limit.DAILY
    assert await refused(store, "c", asked, midnight) is Limit.DAILY


async def test_a_call_that_spans_midnight_counts_in_the_day_it_ends(store: EpisodeStore) -> None:
    asked = quota(token_budget_per_day=10)
    assert await refused(store, "a", asked) is None
    assert await store.give_back(place("a"), 10, NOW + DAY_MS)
    assert await refused(store, "b", asked, NOW + DAY_MS) is Limit.DAILY


async def test_a_refused_call_takes_nothing(store: EpisodeStore) -> None:
    asked = quota(requests_per_minute=2, max_concurrent=1)
    assert [await refused(store, name, asked) for name in "abc"] == [None, Limit.CONCURRENT, Limit.CONCURRENT]
    assert await store.give_back(place("a"), 0, NOW)
    assert await refused(store, "d", asked) is None


async def test_stores_of_two_workers_hold_the_limits_together(redis_url: str) -> None:
    stores = [await RedisStore.connect(redis_url, patience=PATIENT) for _ in range(2)]
    for n in (1, 2):
        await stores[0].heartbeat(f"w{n}", 60_000)
    asked = quota(max_concurrent=1, requests_per_minute=3)
    assert await stores[0].take_place(place("a"), asked, NOW) is None
    refusal = await stores[1].take_place(place("b", worker="w2"), asked, NOW)
    assert refusal is not None
    assert refusal.limit is Limit.CONCURRENT
    assert await stores[1].give_back(place("a"), 0, NOW)
    assert await stores[1].take_place(place("c", worker="w2"), asked, NOW) is None
    for store in stores:
        await store.close()
