"""What runs came to, as SQL tells it."""

from __future__ import annotations

import msgspec
import pytest

from tests.tracker.databases import Clock
from tests.tracker.filling import created, reward
from tracker.errors import NotFound
from tracker.ledger import SqlLedger
from tracker.types import Key, KeyUsage, RunSettings, Scope, Spent

TOOK = Spent(engine_ms=100, prompt_tokens=30, sampled_tokens=10, upstream_cost=0.5)


async def played(
    ledger: SqlLedger, name: str, value: float | None, version: int = 0, spent: Spent | None = TOOK, **fields: object
) -> None:
    """An episode that was rewarded and archived."""
    head = await created(ledger, name, **fields)  # type: ignore[arg-type]
    if value is not None:
        await ledger.add_reward(head.tenant, reward(name, value), None, "")
    row = await ledger.get_episode(head.tenant, name)
    row = msgspec.structs.replace(row, versions={"p": version}, archived_ms=2_000_000, ended_ms=2_000_000, spent=spent)
    assert await ledger.archive_episode(row, b"calls", "digest")
    await ledger.score_episodes()


async def test_rewards_are_told_by_version_and_family(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="r", families={"add": 1, "times": 1}))
    for number, (task, value, version) in enumerate(
        [("add/1", 0.0, 0), ("add/1", 1.0, 0), ("times/1", 1.0, 1), ("add/2", 1.0, 1)]
    ):
        await played(ledger, f"e{number}", value, version, task=task, run="r", created_ms=1_000_000 + number)
    found = await ledger.progress("default", "r", 0.5)
    means = {(each.version, each.family): each.outcome.reward.mean for each in found.versions if each.outcome.reward}
    assert means == {(0, None): 0.5, (1, None): 1.0, (0, "add"): 0.5, (1, "add"): 1.0, (1, "times"): 1.0}
    assert (found.is_whole, found.total.num_episodes, found.total.num_successes) == (True, 4, 3)
    assert found.total.spent == Spent(engine_ms=400, prompt_tokens=120, sampled_tokens=40, upstream_cost=2.0)


async def test_only_the_newest_are_looked_at_and_that_is_told(ledger: SqlLedger) -> None:
    for number in range(5):
        await played(ledger, f"e{number}", float(number), created_ms=1_000_000 + number)
    found = await ledger.progress("default", "default", 0.5, newest=2)
    assert found.total.reward is not None
    assert (found.is_whole, found.total.reward.mean) == (False, 3.5)
    assert (await ledger.progress("default", "default", 0.5, newest=5)).is_whole


async def test_what_is_open_deleted_or_of_another_tenant_is_left_out(ledger: SqlLedger) -> None:
    await created(ledger, "open")
    await played(ledger, "other", 1.0, tenant="other")
    await played(ledger, "gone", 1.0)
    await ledger.delete_episode("default", "gone")
    assert (await ledger.progress("default", "default", 0.5)).total.num_episodes == 0
    assert await ledger.newest_run("default") is None
    assert await ledger.newest_run("other") == "default"
    with pytest.raises(NotFound):
        await ledger.progress("default", "none", 0.5)


async def test_an_archive_that_noted_no_price_counts_without_one(ledger: SqlLedger) -> None:
    await played(ledger, "a", 1.0, spent=None)
    await played(ledger, "b", 1.0)
    total = (await ledger.progress("default", "default", 0.5)).total
    assert (total.num_episodes, total.num_spent, total.spent.prompt_tokens) == (2, 1, 30)


async def test_episodes_and_groups_are_counted_by_run_and_state(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="r", group_size=2))
    await ledger.put_run("default", RunSettings(run="empty"))
    await created(ledger, "a", run="r", created_ms=5)
    await played(ledger, "b", 1.0, run="r", created_ms=7)
    await created(ledger, "c", tenant="other")
    found = await ledger.run_counts("default")
    assert found.keys() == {"r"}
    assert (found["r"].episodes, found["r"].groups, found["r"].newest_ms) == (
        {"archived": 1, "open": 1},
        {"open": 1},
        7,
    )


async def test_usage_is_summed_by_day_over_the_keys_of_a_tenant(ledger: SqlLedger, clock: Clock) -> None:
    for name, tenant in (("a", "default"), ("b", "default"), ("c", "other")):
        await ledger.add_key(Key(key_id=name, digest=name, tenant=tenant, scopes=(Scope.AGENT,)))
    one = KeyUsage(calls=1, prompt_tokens=10, sampled_tokens=5)
    await ledger.add_usage({("a", 8): one, ("a", 9): one, ("b", 9): one, ("c", 9): one, ("a", 7): one})
    found = await ledger.usage_by_day("default", 8)
    assert found == {8: one, 9: KeyUsage(calls=2, prompt_tokens=20, sampled_tokens=10)}
