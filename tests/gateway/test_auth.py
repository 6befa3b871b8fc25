"""Keys: who is calling, and what they may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.auth import CACHE_MS, Caller, KeyRing, mint
from tracker.errors import Forbidden, Unauthorized
from tracker.ledger import SqlLedger
from tracker.sql import open_engine, upgrade
from tracker.types import Key, Scope

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
