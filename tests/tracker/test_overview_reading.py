"""The ledger in numbers: what waits, which version is served, and the last step that was trained."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.tracker.databases import Clock
from tests.tracker.filling import created, ready_group
from tracker.ledger import SqlLedger
from tracker.overview import LastStep
from tracker.types import Batch, RunSettings


async def trained(ledger: SqlLedger, step: int, group_ids: tuple[str, ...], metrics: bytes) -> None:
    fence = await ledger.take_lease("p", "me", 1_000_000, 60_000)
    assert fence is not None
    batch = Batch(batch_id=f"b{step}", policy="p", step=step, epoch=0, fence=fence, group_ids=group_ids)
    taken = await ledger.take(msgspec.structs.replace(batch, created_ms=1_000_000 + step))
    await ledger.mark_trained(msgspec.structs.replace(taken, state="trained", metrics=metrics))


async def test_an_empty_ledger_has_nothing_to_tell(ledger: SqlLedger) -> None:
    told = await ledger.overview()
    assert (told.episodes, told.groups, told.policies) == ({}, {}, ())


async def test_what_waits_is_counted_by_its_state(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    await created(ledger, "alone", "another task")
    await ready_group(ledger, "t", [0.0, 1.0])
    told = await ledger.overview()
    assert told.episodes == {"open": 1}
    assert told.groups == {"ready": 1, "skipped": 1}


@pytest.mark.slow
async def test_of_a_policy_its_versions_its_batches_and_its_last_step_are_told(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    await ledger.ensure_policy("p")
    await ledger.reserve_version("p", None, 5)
    metrics = {"lag_mean": 0.5, "lag_max": 1, "reward_mean": 0.75, "gap_at_no_lag": {"mean": 0.01}}
    for step, task in ((1, "t"), (2, "u")):
        group = await ready_group(ledger, task, [0.0, 1.0])
        await trained(ledger, step, (group.group_id,), json.dumps(metrics).encode())
    (told,) = (await ledger.overview()).policies
    assert (told.policy, told.active, told.versions, told.batches) == ("p", 0, {"reserved": 1}, {"trained": 2})
    assert told.last == LastStep(step=2, taken_ms=1_000_002, lag_mean=0.5, lag_max=1, reward_mean=0.75, gap_mean=0.01)
    assert told.lease_ms == 1_060_000


@pytest.mark.slow
async def test_metrics_that_hold_no_numbers_are_no_trouble(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    await ledger.ensure_policy("p")
    group = await ready_group(ledger, "t", [0.0, 1.0])
    await trained(ledger, 1, (group.group_id,), b'{"lag_mean": null, "reward_mean": true, "gap_at_no_lag": null}')
    (told,) = (await ledger.overview()).policies
    assert told.last == LastStep(step=1, taken_ms=1_000_001)
