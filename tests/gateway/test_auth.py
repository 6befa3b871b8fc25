"""Keys: who is calling, and what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.auth import CACHE_MS, STALE_MS, Caller, KeyRing, mint
from gateway.guesses import MAX_OF_ADDRESS, UNKNOWN_MS
from tracker.errors import Forbidden, TooManyRequests, Unauthorized, Unavailable
from tracker.ledger import SqlLedger
from tracker.quotas import DAY_MS, Quota
from tracker.sql import open_engine, upgrade
from tracker.types import Key, KeyLimits, KeyUsage, Scope

EPISODE = "ep-" + "a" * 32


@dataclass(slots=True)
class HandClock:
    """A clock that stands still until it is turned."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqlLedger]:
    url = f"sqlite:///{tmp_path}/hone.db"
    await upgrade(url)
    opened = SqlLedger(open_engine(url), HandClock())
    yield opened
    await opened.close()


async def add_key(ledger: SqlLedger, **more: int) -> str:
    key, digest = mint()
    await ledger.add_key(Key(key_id="k1", digest=digest, tenant="acme", scopes=(Scope.AGENT,), **more))
    return key


async def test_a_key_is_accepted_in_either_header_and_refused_if_they_differ(ledger: SqlLedger) -> None:
    ring, key = KeyRing(ledger, b"s" * 32, HandClock()), await add_key(ledger)
    expected = Caller(tenant="acme", key_id="k1", scopes=(Scope.AGENT,))
    assert await ring.authenticate(f"Bearer {key}", None) == expected
    assert await ring.authenticate(f"bearer  {key} ", None) == expected
    assert await ring.authenticate(None, key) == expected
    assert await ring.authenticate(f"Bearer {key}", key) == expected
    with pytest.raises(Unauthorized, match="different keys"):
        await ring.authenticate(f"Bearer {key}", key + "x")


@pytest.mark.parametrize("header", [None, "", "Basic abc", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + "x" * 9999])
async def test_what_is_no_key_is_refused(ledger: SqlLedger, header: str | None) -> None:
    with pytest.raises(Unauthorized):
        await KeyRing(ledger, b"s" * 32, HandClock()).authenticate(header, None)


async def test_a_revoked_key_is_refused_within_seconds(ledger: SqlLedger) -> None:
    clock = HandClock()
    ring, key = KeyRing(ledger, b"s" * 32, clock), await add_key(ledger)
    await ring.authenticate(None, key)
    await ledger.revoke_key("acme", "k1", clock.ms)
    clock.ms += CACHE_MS
    with pytest.raises(Unauthorized):
        await ring.authenticate(None, key)


async def test_what_was_looked_up_is_believed_for_seconds_and_not_by_a_clock_that_was_set_back(
    ledger: SqlLedger,
) -> None:
    clock = HandClock()
    ring, key = KeyRing(ledger, b"s" * 32, clock), await add_key(ledger)
    await ring.authenticate(None, key)
    await ledger.revoke_key("acme", "k1", clock.ms)
    clock.ms += CACHE_MS - 1
    await ring.authenticate(None, key)
    clock.ms -= 3_600_000
    with pytest.raises(Unauthorized):
        await ring.authenticate(None, key)


async def test_after_a_change_nothing_is_believed_of_before(ledger: SqlLedger) -> None:
    ring, key = KeyRing(ledger, b"s" * 32, HandClock()), await add_key(ledger)
    await ring.authenticate(None, key)
    await ledger.revoke_key("acme", "k1", 1)
    ring.forget()
    with pytest.raises(Unauthorized):
        await ring.authenticate(None, key)


async def test_a_key_that_was_tried_before_it_was_made_works_a_moment_later(ledger: SqlLedger) -> None:
    clock = HandClock()
    ring = KeyRing(ledger, b"s" * 32, clock)
    key, key_digest = mint()
    with pytest.raises(Unauthorized):
        await ring.authenticate(None, key)
    await ledger.add_key(Key(key_id="k1", digest=key_digest))
    clock.ms += UNKNOWN_MS
    assert (await ring.authenticate(None, key)).key_id == "k1"


async def test_keys_that_nobody_has_hardly_reach_the_database_and_lock_nobody_out(
    ledger: SqlLedger, tmp_path: Path
) -> None:
    class Counting(SqlLedger):
        num_asked = 0

        async def find_key(self, digest: str) -> Key | None:
            self.num_asked += 1
            return await super().find_key(digest)

    key, clock = await add_key(ledger), HandClock()
    counting = Counting(open_engine(f"sqlite:///{tmp_path}/hone.db"), clock)
    ring = KeyRing(counting, b"s" * 32, clock)
    assert (await ring.authenticate(None, key, "192.0.2.1")).key_id == "k1"
    for _ in range(50):  # the same wrong key: one look-up
        with pytest.raises(Unauthorized):
            await ring.authenticate(None, "wrong", "192.0.2.1")
    assert counting.num_asked == 2
    for number in range(50):  # others: as many as the bound
        with pytest.raises((Unauthorized, TooManyRequests)):
            await ring.authenticate(None, f"{key[:-2]}{number:02}", "192.0.2.1")
    assert counting.num_asked == 1 + MAX_OF_ADDRESS
    with pytest.raises(TooManyRequests, match="from this address"):
        await ring.authenticate(None, "one more", "192.0.2.1")
    ring.forget()
    clock.ms += CACHE_MS  # the good one goes on from there, and is asked for as ever
    assert (await ring.authenticate(None, key, "192.0.2.1")).key_id == "k1"
    with pytest.raises(Unauthorized):
        await ring.authenticate(None, "one more", "192.0.2.2")
    await counting.close()


async def test_a_key_is_known_by_all_of_it(ledger: SqlLedger) -> None:
    ring, key = KeyRing(ledger, b"s" * 32, HandClock()), await add_key(ledger)
    await ring.authenticate(None, key)
    for n in (1, 8, len(key) - 1):
        for forged in (key[:n], key[:n] + "x" + key[n + 1 :] + "y", key + key[:n], key.swapcase()):
            with pytest.raises(Unauthorized):
                await ring.authenticate(None, forged)
    for injected in ("' OR '1'='1", f"{key}' --", '" OR ""="'):
        with pytest.raises(Unauthorized):
            await ring.authenticate(None, injected)


async def test_many_who_ask_at_once_cost_one_look_up(ledger: SqlLedger, tmp_path: Path) -> None:
    class Counting(SqlLedger):
        num_asked = 0

        async def find_key(self, digest: str) -> Key | None:
            self.num_asked += 1
            return await super().find_key(digest)

    key = await add_key(ledger)
    counting = Counting(open_engine(f"sqlite:///{tmp_path}/hone.db"), HandClock())
    ring = KeyRing(counting, b"s" * 32, HandClock())
    callers = await asyncio.gather(*(ring.authenticate(None, key) for _ in range(50)))
    assert {caller.key_id for caller in callers} == {"k1"}
    assert counting.num_asked == 1
    await counting.close()


async def test_calls_of_open_episodes_go_on_while_sql_is_away_but_not_for_ever(
    ledger: SqlLedger, tmp_path: Path
) -> None:
    class Away(SqlLedger):
        is_away = False

        async def get_key(self, tenant: str, key_id: str) -> Key:
            if self.is_away:
                raise Unavailable("away")
            return await super().get_key(tenant, key_id)

    clock = HandClock()
    await add_key(ledger)
    away = Away(open_engine(f"sqlite:///{tmp_path}/hone.db"), clock)
    ring = KeyRing(away, b"s" * 32, clock)
    assert await ring.opener("acme", "k1") is None
    away.is_away = True
    clock.ms += STALE_MS - 1
    assert await ring.opener("acme", "k1") is None
    clock.ms += 1
    with pytest.raises(Unavailable):
        await ring.opener("acme", "k1")
    away.is_away = False
    await ledger.revoke_key("acme", "k1", clock.ms)
    with pytest.raises(Unauthorized):
        await ring.opener("acme", "k1")
    assert await ring.opener("acme", "") is None
    assert await ring.opener("acme", "nobody") is None
    await away.close()


async def test_a_key_with_limits_says_what_it_may_take_and_what_it_has_spent(ledger: SqlLedger) -> None:
    clock = HandClock(3 * DAY_MS)
    key, key_digest = mint()
    limits = KeyLimits(token_budget=9)
    await ledger.add_key(Key(key_id="k1", digest=key_digest, limits=limits))
    spent = {("k1", 2): KeyUsage(calls=1, prompt_tokens=4), ("k1", 3): KeyUsage(calls=1, sampled_tokens=2)}
    await ledger.add_usage(spent)
    caller = await KeyRing(ledger, b"s" * 32, clock).authenticate(None, key)
    assert caller.quota == Quota(key_id="k1", limits=limits, spent=6, spent_today=2, day=3)


async def test_an_expired_key_is_refused_at_once(ledger: SqlLedger) -> None:
    clock = HandClock()
    ring, key = KeyRing(ledger, b"s" * 32, clock), await add_key(ledger, expires_ms=clock.ms + 10)
    await ring.authenticate(None, key)
    clock.ms += 10
    with pytest.raises(Unauthorized, match="expired"):
        await ring.authenticate(None, key)


async def test_a_session_key_is_good_for_its_episode_and_tenant_only(ledger: SqlLedger) -> None:
    ring = KeyRing(ledger, b"s" * 32, HandClock())
    key = ring.session_key("acme", EPISODE)
    caller = await ring.authenticate(None, key)
    assert (caller.tenant, caller.episode_id, caller.scopes) == ("acme", EPISODE, ())
    assert ring.session_key("acme", EPISODE) == key
    for forged in (key.replace("aaaa", "aaab", 1), key.replace("-acme", "-other"), key[:-1]):
        with pytest.raises(Unauthorized):
            await ring.authenticate(None, forged)
    with pytest.raises(Unauthorized):
        await KeyRing(ledger, b"t" * 32, HandClock()).authenticate(None, key)


@pytest.mark.parametrize("scope", list(Scope))
def test_a_session_key_reaches_no_scope(scope: Scope) -> None:
    with pytest.raises(Forbidden):
        Caller(tenant="t", key_id="s", episode_id=EPISODE).require(scope)


@pytest.mark.parametrize("scope", list(Scope))
def test_admin_implies_every_scope(scope: Scope) -> None:
    Caller(tenant="t", key_id="k", scopes=(Scope.ADMIN,)).require(scope)


def test_a_scope_does_not_reach_another() -> None:
    with pytest.raises(Forbidden, match="reward or admin"):
        Caller(tenant="t", key_id="k", scopes=(Scope.AGENT, Scope.READ)).require(Scope.REWARD)
