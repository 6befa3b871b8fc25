"""Secrets and runs, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from tests.tracker.filling import created, rewarded
from tracker.errors import Conflict, NotFound
from tracker.ledger import SqlLedger
from tracker.types import Credit, EpisodeFilter, RunSettings


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


async def test_a_name_gets_a_weight_in_a_frozen_run_as_long_as_it_counts_nothing(ledger: SqlLedger) -> None:
    run = RunSettings(run="r", reward_weights={"style": 0.5})
    await ledger.put_run("default", run)
    await created(ledger, "e", run="r")
    await rewarded(ledger, "e", 2.0, final=False)
    await rewarded(ledger, "e", 4.0, name="style", final=False)
    assert (await ledger.weigh_reward("default", "r", "new", 0.0)).reward_weights == {"style": 0.5, "new": 0.0}
    await rewarded(ledger, "e", 7.0, name="new", final=False)
    assert (await ledger.get_episode("default", "e")).reward == 4.0
    assert await ledger.score_episodes() == 1
    await ledger.weigh_reward("default", "r", "new", 10.0)
    assert (await ledger.get_episode("default", "e")).reward == 74.0
    (found,) = (await ledger.find_episodes("default", EpisodeFilter(min_reward=70.0), 5)).rows
    assert found.head.episode_id == "e"
    for name, weight in (("new", 0.0), ("style", 1.0), ("reward", 2.0)):
        with pytest.raises(Conflict, match="count already"):
            await ledger.weigh_reward("default", "r", name, weight)
    assert (await ledger.put_run("default", run)).reward_weights == {"style": 0.5, "new": 10.0}  # as hone.toml has it
    with pytest.raises(Conflict, match="reward_weights"):
        await ledger.put_run("default", RunSettings(run="r", reward_weights={"style": 0.5, "new": 1.0}))
