"""Keys, secrets and runs, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from tests.tracker.filling import created
from tracker.errors import Conflict, NotFound
from tracker.ledger import SqlLedger
from tracker.types import Credit, Key, RunSettings, Scope


async def test_a_key_is_found_by_its_digest_and_listed_for_its_tenant_only(ledger: SqlLedger) -> None:
    key = Key(key_id="k1", digest="d1", tenant="a", scopes=(Scope.AGENT, Scope.REWARD), label="né\x00", created_ms=5)
    await ledger.add_key(key)
    await ledger.add_key(key)
    assert await ledger.find_key("d1") == key
    assert await ledger.find_key("d2") is None
    assert await ledger.list_keys("a") == [key]
    assert await ledger.list_keys("b") == []


async def test_another_key_under_a_known_id_is_refused(ledger: SqlLedger) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1"))
    with pytest.raises(Conflict):
        await ledger.add_key(Key(key_id="k1", digest="d2"))


async def test_the_first_revocation_of_a_key_stays(ledger: SqlLedger) -> None:
    await ledger.add_key(Key(key_id="k1", digest="d1", expires_ms=99))
    await ledger.revoke_key("k1", 7)
    await ledger.revoke_key("k1", 8)
    found = await ledger.find_key("d1")
    assert found is not None
    assert found.revoked_ms == 7
    with pytest.raises(NotFound):
        await ledger.revoke_key("k2", 7)


async def test_gateways_that_ask_together_for_a_secret_get_the_same(ledger: SqlLedger) -> None:
    asked = await asyncio.gather(*(ledger.secret("sessions") for _ in range(8)))
    assert len(set(asked)) == 1
    assert len(asked[0]) == 32
    assert await ledger.secret("other") != asked[0]


async def test_the_default_run_exists_in_every_tenant_and_an_unknown_one_does_not(ledger: SqlLedger) -> None:
    assert await ledger.get_run("anyone", "default") == RunSettings(run="default")
    assert await ledger.list_runs("anyone") == [RunSettings(run="default")]
    with pytest.raises(NotFound):
        await ledger.get_run("anyone", "other")


async def test_a_run_may_change_until_its_first_episode_and_the_conflict_names_the_field(ledger: SqlLedger) -> None:
    run = RunSettings(run="r", group_size=4, reward_weights={"style": 0.5}, credit=Credit(kind="rloo"))
    await ledger.put_run("default", run)
    await ledger.put_run("default", RunSettings(run="r", group_size=2))
    await ledger.put_run("default", run)
    assert await ledger.get_run("default", "r") == run
    await created(ledger, "e", run="r")
    assert await ledger.put_run("default", run) == run
    with pytest.raises(Conflict) as refused:
        await ledger.put_run("default", RunSettings(run="r", group_size=5))
    assert refused.value.param == "group_size"
    assert await ledger.get_run("default", "r") == run


async def test_the_default_run_freezes_too(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    with pytest.raises(Conflict, match="staleness"):
        await ledger.put_run("default", RunSettings(run="default", staleness=3))


async def test_the_runs_of_one_tenant_are_not_another_s(ledger: SqlLedger) -> None:
    await ledger.put_run("a", RunSettings(run="r"))
    assert [run.run for run in await ledger.list_runs("a")] == ["default", "r"]
    with pytest.raises(NotFound):
        await ledger.get_run("b", "r")
