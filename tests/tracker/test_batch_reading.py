"""What SQL holds to check a batch by: the manifest is written once and under the fence, the rest is only read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.tracker.building import chain_of
from tests.tracker.filling import archived, batch, created, ready_group, rewarded
from tracker.codec import encode_calls
from tracker.errors import CorruptRecord, LeaseLost, NotFound
from tracker.ledger import SqlLedger
from tracker.manifests import NO_MANIFEST
from tracker.receipts import seal
from tracker.types import Batch, Group, RunSettings, SkipReason


@pytest.fixture
async def fence(ledger: SqlLedger) -> int:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    taken = await ledger.take_lease("p", "me", 0, 10**9)
    assert taken is not None
    return taken


async def taken(ledger: SqlLedger, fence: int, task: str = "t", step: int = 1) -> tuple[Group, Batch]:
    group = await ready_group(ledger, task, [1.0, 0.0])
    return group, await ledger.take(batch(group, fence, step))


async def manifest_of(ledger: SqlLedger, one: Batch) -> bytes:
    (stored,) = await ledger.list_batches(batch_ids=[one.batch_id])
    return stored.manifest


async def test_a_manifest_is_stored_before_the_step_once_and_under_the_fence(ledger: SqlLedger, fence: int) -> None:
    _, one = await taken(ledger, fence)
    assert await manifest_of(ledger, one) == NO_MANIFEST
    await ledger.put_manifest(one, b"{}")
    await ledger.put_manifest(one, b"[]")
    assert await manifest_of(ledger, one) == b"{}"
    with pytest.raises(LeaseLost):
        await ledger.put_manifest(replace(one, fence=fence + 1), b"{}")


async def test_batches_are_listed_oldest_first_by_policy_run_and_id(ledger: SqlLedger, fence: int) -> None:
    _, one = await taken(ledger, fence, "t", 1)
    _, two = await taken(ledger, fence, "u", 2)
    listed = {
        "all": await ledger.list_batches(),
        "policy": await ledger.list_batches(policy="p"),
        "run": await ledger.list_batches(run=("default", "default")),
        "id": await ledger.list_batches(batch_ids=[two.batch_id]),
        "other policy": await ledger.list_batches(policy="q"),
        "other run": await ledger.list_batches(run=("default", "other")),
        "other tenant": await ledger.list_batches(run=("other", "default")),
    }
    both = [one.batch_id, two.batch_id]
    assert {name: [found.batch_id for found in batches] for name, batches in listed.items()} == {
        "all": both,
        "policy": both,
        "run": both,
        "id": both[1:],
        "other policy": [],
        "other run": [],
        "other tenant": [],
    }
    with pytest.raises(NotFound, match="no batch 'nothing'"):
        await ledger.list_batches(batch_ids=[one.batch_id, "nothing"])
    with pytest.raises(NotFound):
        await ledger.list_batches(policy="q", batch_ids=[one.batch_id])


async def test_a_batch_is_read_with_the_archives_of_its_groups_and_what_is_amiss_with_them(
    ledger: SqlLedger, fence: int
) -> None:
    calls = chain_of(2, "good")
    await created(ledger, "good", "t")
    await rewarded(ledger, "good", 1.0)
    row = await ledger.get_episode("default", "good")
    assert await ledger.archive_episode(
        replace(row, versions={"p": 0}, archived_ms=1), encode_calls(calls), *seal(calls)
    )
    await created(ledger, "bad", "t")
    await rewarded(ledger, "bad", 0.0)
    await archived(ledger, "bad")
    (group,) = await ledger.settle_groups(10**8)
    one = await ledger.take(batch(group, fence))
    stored = await ledger.stored_batch(one.batch_id)
    assert stored.batch.batch_id == one.batch_id
    opened, run = stored.episodes["good"]
    assert (opened.calls, run.group_size) == (calls, 2)
    assert [fault.episode_id for fault in stored.troubles] == ["bad"]
    assert stored.deleted == frozenset()
    assert (await ledger.archived("good")) == opened
    with pytest.raises(CorruptRecord, match=r"^episode bad: "):
        await ledger.archived("bad")
    assert await ledger.archived("nothing") is None
    await ledger.delete_episode("default", "bad")
    assert (await ledger.stored_batch(one.batch_id)).deleted == frozenset({"bad"})


async def test_why_a_batch_was_refused_stays_with_it_and_its_groups_say_so(ledger: SqlLedger, fence: int) -> None:
    group, one = await taken(ledger, fence)
    await ledger.drop_batch(one.batch_id, SkipReason.REFUSED, fence, "call c: it differs")
    (stored,) = await ledger.list_batches(batch_ids=[one.batch_id])
    assert (stored.state, stored.metrics) == ("dropped", b'{"problem":"call c: it differs"}')
    assert stored.group_ids == (group.group_id,)
    assert await ledger.skipped_groups(("default", "default")) == {"refused": 1}
    assert await ledger.skipped_groups(("other", "default")) == {}
