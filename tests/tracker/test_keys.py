"""Keys in the ledger, on SQLite and PostgreSQL: found, rotated, limited, revoked, and what calls with them took."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.tracker.databases import Clock
from tests.tracker.filling import created
from tracker.errors import BadRequest, Conflict, NotFound
from tracker.ledger import SqlLedger
from tracker.types import Act, Key, KeyLimits, KeyUsage, Scope

LIMITS = KeyLimits(requests_per_minute=3, token_budget=2**40)
ACT = Act(at_ms=5, tenant="default", key_id="root", act="key.change", target="k1")


async def test_a_key_is_found_by_its_digest_and_listed_for_its_tenant_only(ledger: SqlLedger) -> None:
    scopes = (Scope.AGENT, Scope.REWARD)
    key = Key(key_id="k1", digest="d1", tenant="a", scopes=scopes, label="né\x00", created_ms=5, limits=LIMITS)
    await ledger.add_key(key)
    await ledger.add_key(key)
    assert await ledger.find_key("d1") == key
    assert await ledger.find_key("d2") is None
    assert await ledger.find_key("d1' OR '1'='1") is None
    assert await ledger.get_key("a", "k1") == key
    with pytest.raises(NotFound):
        await ledger.get_key("b", "k1")
    assert await ledger.list_keys("a") == [key]
    assert await ledger.list_keys("b") == []


async def test_another_key_under_a_known_id_is_refused(ledger: SqlLedger) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1"))
    with pytest.raises(Conflict):
        await ledger.add_key(Key(key_id="k1", digest="d2"))


async def test_the_first_revocation_of_a_key_stays(ledger: SqlLedger) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1", expires_ms=99))
    await ledger.revoke_key("default", "k1", 7)
    await ledger.revoke_key("default", "k1", 8)
    found = await ledger.find_key("d1")
    assert found is not None
    assert found.revoked_ms == 7
    for tenant, key_id in (("default", "k2"), ("other", "k1")):
        with pytest.raises(NotFound):
            await ledger.revoke_key(tenant, key_id, 7)


async def test_after_a_rotation_the_old_secret_finds_the_key_until_its_grace_is_over(
    ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1", limits=LIMITS))
    until_ms = clock.at_ms + 50
    rotated = await ledger.rotate_key("default", "k1", "d2", until_ms)
    assert rotated == Key(key_id="k1", digest="d2", limits=LIMITS)
    assert await ledger.find_key("d2") == rotated
    assert await ledger.find_key("d1") == msgspec.structs.replace(rotated, expires_ms=until_ms)


async def test_no_earlier_secret_outlives_the_grace_of_the_newest_rotation(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1"))
    await ledger.rotate_key("default", "k1", "d2", clock.at_ms + 100)
    await ledger.rotate_key("default", "k1", "d3", clock.at_ms + 10)
    found = [await ledger.find_key(digest) for digest in ("d1", "d2", "d3")]
    assert [key and key.expires_ms for key in found] == [clock.at_ms + 10, clock.at_ms + 10, None]


async def test_a_key_that_is_good_for_nothing_is_not_rotated(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1", expires_ms=clock.at_ms))
    await ledger.add_key(Key(key_id="k2", digest="d2", revoked_ms=1))
    for key_id in ("k1", "k2"):
        with pytest.raises(Conflict):
            await ledger.rotate_key("default", key_id, "new", clock.at_ms)
    with pytest.raises(NotFound):
        await ledger.rotate_key("other", "k1", "new", clock.at_ms)


async def test_limits_change_one_by_one(ledger: SqlLedger) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1", limits=LIMITS))
    changes = {"max_concurrent": 2, "token_budget": None}
    limits = KeyLimits(requests_per_minute=3, max_concurrent=2)
    assert (await ledger.limit_key("default", "k1", changes)).limits == limits
    found = await ledger.find_key("d1")
    assert found is not None
    assert found.limits == limits
    with pytest.raises(NotFound):
        await ledger.limit_key("other", "k1", changes)


async def test_pages_of_keys_come_newest_first(ledger: SqlLedger) -> None:
    for n in range(5):
        await ledger.add_key(Key(key_id=f"k{n}", digest=f"d{n}", created_ms=n // 2))
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = await ledger.key_page("default", 2, cursor)
        seen += [key.key_id for key in page]
        if cursor is None:
            break
    assert seen == ["k4", "k3", "k2", "k1", "k0"]
    with pytest.raises(BadRequest):
        await ledger.key_page("default", 2, "nonsense")


async def test_usage_adds_up_over_gateways_and_days(ledger: SqlLedger) -> None:
    for key_id in ("k1", "k2"):
        await ledger.add_key(Key(key_id=key_id, digest=key_id))
    taken = {
        (key_id, day): KeyUsage(calls=1, prompt_tokens=10, sampled_tokens=2)
        for day in (1, 2)
        for key_id in ("k1", "k2")
    }
    await asyncio.gather(*(ledger.add_usage(taken) for _ in range(4)))
    usage = await ledger.key_usage(["k1", "nobody"], 2)
    assert usage == {
        "k1": (
            KeyUsage(calls=8, prompt_tokens=80, sampled_tokens=16),
            KeyUsage(calls=4, prompt_tokens=40, sampled_tokens=8),
        ),
        "nobody": (KeyUsage(), KeyUsage()),
    }
    assert usage["k1"][0].tokens == 96


async def test_an_act_is_written_with_what_it_does_or_not_at_all(ledger: SqlLedger) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1"), ACT)
    await ledger.limit_key("default", "k1", {"max_concurrent": 1}, ACT)
    await ledger.rotate_key("default", "k1", "d2", 0, ACT)
    await ledger.revoke_key("default", "k1", 9, ACT)
    for change in (ledger.limit_key("other", "k1", {}, ACT), ledger.rotate_key("default", "k1", "d3", 0, ACT)):
        with pytest.raises((NotFound, Conflict)):
            await change
    acts, _ = await ledger.list_acts("default", 50, None)
    assert len(acts) == 4


async def test_an_episode_says_which_key_opened_it_until_it_is_deleted(ledger: SqlLedger) -> None:
    head = await created(ledger, "e", key_id="k1")
    assert head.key_id == "k1"
    assert (await ledger.get_episode("default", "e")).head.key_id == "k1"
