"""What calls take of their keys: places are given back in time, usage reaches SQL once, refusals say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from gateway.meters import GIVE_BACK_S, SETTLED, Meters, Payer, refused, tokens_of
from tests.tracker.databases import Clock
from tracker.errors import BudgetExceeded, TooManyRequests, Unavailable
from tracker.ledger import SqlLedger
from tracker.memory_quotas import MemoryQuotas
from tracker.quotas import DAY_MS, Limit, Place, Quota, Refusal, day_of
from tracker.sql import open_engine, upgrade
from tracker.types import Call, Choice, Key, KeyLimits, KeyUsage, Usage

LIMITS = KeyLimits(requests_per_minute=9, max_concurrent=1, token_budget=100, token_budget_per_day=50)
QUOTA = Quota(key_id="k1", limits=LIMITS)
PAYER = Payer(key_id="k1", quota=QUOTA)
CALL = Call(
    call_id="c",
    episode_id="e",
    index=0,
    prompt_ids=(1, 2, 3),
    choices=(Choice(index=0, sampled_ids=(4, 5)), Choice(index=1, sampled_ids=(6,))),
)


class Flaky(MemoryQuotas):
    """A store that may be away."""

    is_away = False

    def __init__(self) -> None:
        super().__init__(lambda worker, now_ms: False)

    async def take_place(self, place: Place, quota: Quota, now_ms: int) -> Refusal | None:
        refusal = await super().take_place(place, quota, now_ms)
        self._check()
        return refusal

    async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
        self._check()
        return await super().give_back(place, num_tokens, now_ms)

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("away")


@pytest.fixture
def clock() -> Clock:
    return Clock(20_000 * DAY_MS)


@pytest.fixture
async def ledger(tmp_path: Path, clock: Clock) -> AsyncIterator[SqlLedger]:
    url = f"sqlite:///{tmp_path}/hone.db"
    await upgrade(url)
    opened = SqlLedger(open_engine(url), clock)
    await opened.add_key(Key(key_id="k1", digest="d1", limits=LIMITS))
    yield opened
    await opened.close()


async def usage(ledger: SqlLedger, clock: Clock) -> tuple[KeyUsage, KeyUsage]:
    return (await ledger.key_usage(["k1"], day_of(clock.at_ms)))["k1"]


async def test_a_call_is_counted_once_and_its_place_is_free_before_its_context_ends(
    ledger: SqlLedger, clock: Clock
) -> None:
    meters = Meters(Flaky(), ledger, clock, "w1", 60)
    async with meters.meter(PAYER) as first:
        with pytest.raises(TooManyRequests, match="max_concurrent"):
            await meters.meter(PAYER).__aenter__()
        await first.end(CALL)
        async with meters.meter(PAYER):
            pass
    await meters.flush()
    await meters.flush()
    expected = KeyUsage(calls=1, prompt_tokens=3, sampled_tokens=3)
    assert await usage(ledger, clock) == (expected, expected)
    clock.at_ms += DAY_MS
    assert await usage(ledger, clock) == (expected, KeyUsage())


async def test_a_call_that_fails_gives_its_place_back(ledger: SqlLedger, clock: Clock) -> None:
    meters = Meters(Flaky(), ledger, clock, "w1", 60)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with meters.meter(PAYER):
                raise ZeroDivisionError
    async with meters.meter(PAYER):
        pass


async def test_without_the_store_a_limited_key_is_refused_and_another_is_served(
    ledger: SqlLedger, clock: Clock
) -> None:
    quotas = Flaky()
    meters = Meters(quotas, ledger, clock, "w1", 60)
    quotas.is_away = True
    with pytest.raises(Unavailable):
        await meters.meter(PAYER).__aenter__()
    async with meters.meter(Payer(key_id="k1")):
        pass
    quotas.is_away = False
    await meters.flush()  # the place that may have been taken while nobody heard of it
    async with meters.meter(PAYER):
        pass


async def test_what_a_call_took_while_the_store_was_away_is_told_it_later(ledger: SqlLedger, clock: Clock) -> None:
    quotas = Flaky()
    meters = Meters(quotas, ledger, clock, "w1", 60)
    async with meters.meter(PAYER) as meter:
        meter.take(100)
        quotas.is_away = True
    await meters.flush()
    quotas.is_away = False
    await meters.flush()
    with pytest.raises(BudgetExceeded):
        await meters.meter(PAYER).__aenter__()


async def test_usage_that_sql_did_not_take_is_kept_for_the_next_time(
    ledger: SqlLedger, clock: Clock, tmp_path: Path
) -> None:
    class Away(SqlLedger):
        is_away = True

        async def add_usage(self, taken: Mapping[tuple[str, int], KeyUsage]) -> None:
            if self.is_away:
                raise Unavailable("away")
            await ledger.add_usage(taken)

    away = Away(open_engine(f"sqlite:///{tmp_path}/hone.db"), clock)
    meters = Meters(Flaky(), away, clock, "w1", 60)
    meters.count("k1", 3, 4)
    with pytest.raises(Unavailable):
        await meters.flush()
    meters.count("k1", 1, 1)
    meters.count("nobody", 1, 1)
    away.is_away = False
    await meters.close()
    assert (await usage(ledger, clock))[0] == KeyUsage(calls=2, prompt_tokens=4, sampled_tokens=5)
    await away.close()


async def test_a_commit_goes_on_though_the_flush_was_cancelled_and_is_not_repeated(
    ledger: SqlLedger, clock: Clock, tmp_path: Path
) -> None:
    class Committing(SqlLedger):
        has_begun, goes_on = asyncio.Event(), asyncio.Event()

        async def add_usage(self, taken: Mapping[tuple[str, int], KeyUsage]) -> None:
            commit = asyncio.create_task(ledger.add_usage(taken))  # nobody can take a commit back
            self.has_begun.set()
            await self.goes_on.wait()
            await commit

    slow = Committing(open_engine(f"sqlite:///{tmp_path}/hone.db"), clock)
    meters = Meters(Flaky(), slow, clock, "w1", 60)
    meters.count("k1", 3, 4)
    flush = asyncio.create_task(meters.flush())
    await slow.has_begun.wait()
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    slow.goes_on.set()
    await meters.close()
    assert (await usage(ledger, clock))[0] == KeyUsage(calls=1, prompt_tokens=3, sampled_tokens=4)
    await slow.close()


async def test_what_an_outage_left_is_given_back_many_at_once_until_the_store_is_away_again(
    ledger: SqlLedger, clock: Clock
) -> None:
    class Counting(Flaky):
        num_asked = num_at_once = most_at_once = 0

        async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
            self.num_asked += 1
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
            await asyncio.sleep(0)
            self.num_at_once -= 1
            return await super().give_back(place, num_tokens, now_ms)

    quotas = Counting()
    meters = Meters(quotas, ledger, clock, "w1", 60)
    many = Payer(key_id="k1", quota=Quota(key_id="k1", limits=KeyLimits(max_concurrent=1_000)))
    quotas.is_away = True
    for _ in range(3 * SETTLED):
        with pytest.raises(Unavailable):
            await meters.meter(many).__aenter__()
    await meters.flush()
    assert quotas.num_asked == SETTLED
    quotas.is_away = False
    await meters.flush()
    assert quotas.num_asked == 4 * SETTLED
    assert quotas.most_at_once == SETTLED
    async with meters.meter(PAYER):
        pass


@pytest.mark.slow
async def test_the_end_of_an_answer_does_not_wait_long_for_a_store_that_hangs(ledger: SqlLedger, clock: Clock) -> None:
    class Hanging(Flaky):
        async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
            if self.is_away:
                await asyncio.Event().wait()
            return await super().give_back(place, num_tokens, now_ms)

    quotas = Hanging()
    meters = Meters(quotas, ledger, clock, "w1", 60)
    async with asyncio.timeout(GIVE_BACK_S + 30), meters.meter(PAYER):
        quotas.is_away = True
    quotas.is_away = False
    await meters.flush()
    async with meters.meter(PAYER):
        pass


def test_tokens_are_ids_or_what_was_counted_of_words() -> None:
    assert tokens_of(CALL) == (3, 3)
    told = Call(call_id="c", episode_id="e", index=0, usage=Usage(prompt_tokens=7, completion_tokens=2))
    assert tokens_of(told) == (7, 2)


@pytest.mark.parametrize("limit", list(Limit))
def test_a_refusal_names_the_limit_and_what_raises_it(limit: Limit) -> None:
    error = refused(Refusal(limit=limit, wait_ms=1_001), QUOTA)
    assert error.status == 429
    assert limit in error.message
    assert f"hone keys limit k1 --{limit.replace('_', '-')} NUMBER" in error.message
    assert error.retry_after_s == 2


def test_a_budget_that_is_used_up_promises_nothing() -> None:
    error = refused(Refusal(limit=Limit.BUDGET), QUOTA)
    assert isinstance(error, BudgetExceeded)
    assert (error.code, error.kind, error.retry_after_s) == ("budget_exceeded", "insufficient_quota", None)
