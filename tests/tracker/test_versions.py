"""Policies and versions, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.tracker.filling import batch, ready_group
from tracker.errors import Conflict, NotFound
from tracker.ledger import SqlLedger
from tracker.types import GroupState, Policy, RunSettings, SkipReason, Version, VersionState


async def published(ledger: SqlLedger, number: int, **fields: object) -> Version:
    version = await ledger.reserve_version("p", None, 5)
    assert version.version == number
    known: dict[str, object] = {"folder": f"p@{number}", "digest": "d", "state": VersionState.ACTIVE}
    version = msgspec.structs.replace(version, **(known | fields))  # type: ignore[arg-type]
    await ledger.put_version(version)
    return version


@pytest.fixture(autouse=True)
async def policy(ledger: SqlLedger) -> None:
    await ledger.ensure_policy("p")


async def test_a_policy_begins_with_the_bare_base_model(ledger: SqlLedger) -> None:
    assert await ledger.ensure_policy("p") == Policy(policy="p", epoch=0, active=0)
    await ledger.ensure_policy("a")
    assert [policy.policy for policy in await ledger.list_policies()] == ["a", "p"]
    assert await ledger.list_versions("p") == []


async def test_numbers_are_reserved_once_each_also_when_asked_together(ledger: SqlLedger) -> None:
    reserved = await asyncio.gather(*(ledger.reserve_version("p", 0, 5) for _ in range(8)))
    assert sorted(version.version for version in reserved) == list(range(1, 9))
    with pytest.raises(Conflict):
        await ledger.reserve_version("p", 1, 5)
    with pytest.raises(NotFound):
        await ledger.reserve_version("nobody", None, 5)


async def test_a_version_is_read_back_as_it_was_put(ledger: SqlLedger) -> None:
    version = await published(ledger, 1, metrics=b'{"loss":1}', probe=b"[]", detail="weak\x00")
    assert await ledger.get_version("p", 1) == version
    assert await ledger.find_version("p", "p@1") == version
    assert await ledger.find_version("p", "") is None
    assert await ledger.list_versions("p") == [version]
    with pytest.raises(NotFound):
        await ledger.put_version(msgspec.structs.replace(version, version=2, folder="p@2"))
    await ledger.reserve_version("p", None, 5)
    with pytest.raises(Conflict):
        await ledger.put_version(msgspec.structs.replace(version, version=2))


async def test_new_pins_get_the_active_version_and_never_an_earlier_one(ledger: SqlLedger) -> None:
    await published(ledger, 1)
    await published(ledger, 2, state=VersionState.LOADING)
    await published(ledger, 3, state=VersionState.FAILED)
    await ledger.activate("p", 2, 0)
    await ledger.activate("p", 2, 0)
    assert (await ledger.get_version("p", 2)).state is VersionState.ACTIVE
    for version, epoch in ((1, 0), (3, 0), (2, 1)):
        with pytest.raises(Conflict):
            await ledger.activate("p", version, epoch)
    with pytest.raises(NotFound):
        await ledger.activate("p", 9, 0)
    assert (await ledger.ensure_policy("p")).active == 2


async def test_a_rollback_withdraws_what_came_later_and_drops_what_was_not_trained(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    for number in (1, 2, 3):
        await published(ledger, number)
    await ledger.activate("p", 3, 0)
    fence = await ledger.take_lease("p", "trainer", 0, 1000)
    assert fence is not None
    done = await ledger.take(batch(await ready_group(ledger, "t", [0.0, 1.0]), fence, step=1))
    await ledger.mark_trained(done)
    begun = await ledger.take(batch(await ready_group(ledger, "u", [0.0, 1.0]), fence, step=2))

    assert await ledger.rollback("p", 1) == Policy(policy="p", epoch=1, active=1)

    states = [version.state for version in await ledger.list_versions("p")]
    assert states == [VersionState.ACTIVE, VersionState.WITHDRAWN, VersionState.WITHDRAWN]
    groups, _ = await ledger.list_groups("default", run=None, task=None, limit=5, cursor=None)
    found = {group.task: (group.state, group.reason) for group in groups}
    assert found == {"t": (GroupState.TRAINED, None), "u": (GroupState.SKIPPED, SkipReason.EXPIRED)}
    assert [one.state for one in await ledger.last_batches("p", 5)] == ["dropped", "trained"]
    with pytest.raises(Conflict):
        await ledger.mark_trained(begun)
    with pytest.raises(Conflict):
        await ledger.reserve_version("p", 0, 5)
    with pytest.raises(Conflict):
        await ledger.activate("p", 2, 1)
    assert (await ledger.reserve_version("p", 1, 5)).version == 4


async def test_a_rollback_reaches_the_base_model_and_no_version_that_never_was(ledger: SqlLedger) -> None:
    await published(ledger, 1)
    assert await ledger.rollback("p", 0) == Policy(policy="p", epoch=1, active=0)
    with pytest.raises(NotFound):
        await ledger.rollback("p", 7)
