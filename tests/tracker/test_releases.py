"""Trials, arms and what becomes of groups, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, update
from sqlalchemy.exc import DBAPIError

from tests.tracker.databases import Clock
from tests.tracker.filling import batch, created, rewarded
from tests.tracker.test_versions import published
from tracker import tables
from tracker.drift import Alarm, AlarmKind
from tracker.errors import Conflict
from tracker.ledger import SqlLedger
from tracker.measures import Measures
from tracker.sql import open_engine
from tracker.trials import ReleaseEvent, Shadow, Trial, TrialState
from tracker.types import Arm, EpisodeHead, EpisodeStatus, GroupState, Policy, RunSettings, SkipReason, VersionState


def event(version: int = 1, kind: str = "x", policy: str = "p", at_ms: int = 1_000_000) -> ReleaseEvent:
    return ReleaseEvent(policy=policy, version=version, at_ms=at_ms, kind=kind)


async def on_trial(ledger: SqlLedger, version: int = 1, share: float = 0.5) -> Trial:
    await published(ledger, version, state=VersionState.LOADING)
    return await ledger.start_trial("p", version, (await ledger.ensure_policy("p")).epoch, share, event(version))


async def played(ledger: SqlLedger, episode_id: str, version: int, reward: float | None = 1.0) -> None:
    """Score and archive an episode that called this version."""
    if reward is not None:
        await rewarded(ledger, episode_id, reward)
    row = await ledger.get_episode("default", episode_id)
    measures = {"p": (version, Measures(num_calls=1, num_choices=1))}
    row = msgspec.structs.replace(
        row, versions={"p": version}, measures=measures, archived_ms=2_000_000, ended_ms=2_000_000,
        status=row.status or EpisodeStatus.OK, num_calls=1, num_samples=1,
    )  # fmt: skip
    await ledger.archive_episode(row, b"calls", "digest")


@pytest.fixture(autouse=True)
async def policy(ledger: SqlLedger) -> None:
    await ledger.ensure_policy("p")
    await ledger.put_run("default", RunSettings(run="default", group_size=2))


async def test_a_trial_starts_once_and_the_version_is_served_but_not_active(ledger: SqlLedger) -> None:
    trial = await on_trial(ledger)
    assert (trial.state, trial.stable, trial.share) == (TrialState.RUNNING, 0, 0.5)
    assert await ledger.start_trial("p", 1, 0, 0.9, event()) == trial
    assert await ledger.open_trials() == [trial]
    assert await ledger.ensure_policy("p") == Policy(policy="p", epoch=0, active=0)
    version = await ledger.get_version("p", 1)
    assert (version.state, version.activated_ms) == (VersionState.ACTIVE, 1_000_000)
    events, _ = await ledger.list_releases("p", 10, None)
    assert [one.kind for one in events] == ["started", "waiting"]


async def test_the_next_one_waits_and_the_newest_that_waits_is_next(ledger: SqlLedger) -> None:
    await on_trial(ledger, 1)
    assert (await on_trial(ledger, 2)).state is TrialState.WAITING
    assert (await on_trial(ledger, 3)).state is TrialState.WAITING
    assert await ledger.promote("p", 1, event(1, "promoted")) == Policy(policy="p", epoch=0, active=1)
    assert (await ledger.start_trial("p", 3, 0, 0.5, event(3))).stable == 1
    states = {trial.version: trial.state for trial in await ledger.list_trials("p")}
    assert states == {1: TrialState.PROMOTED, 2: TrialState.SUPERSEDED, 3: TrialState.RUNNING}
    assert (await ledger.get_version("p", 2)).state is VersionState.FAILED


async def test_only_a_newer_version_of_the_epoch_goes_on_trial(ledger: SqlLedger) -> None:
    await published(ledger, 1)
    await ledger.activate("p", 1, 0)
    with pytest.raises(Conflict, match="roll back"):
        await ledger.start_trial("p", 1, 0, 0.5, event())
    await published(ledger, 2)
    with pytest.raises(Conflict):
        await ledger.start_trial("p", 2, 1, 0.5, event(2))


async def test_of_those_who_decide_at_once_one_does(ledger: SqlLedger) -> None:
    await on_trial(ledger)
    promotions = [ledger.promote("p", 1, event(1, "promoted")) for _ in range(3)]
    withdrawals = [ledger.withdraw_trial("p", 1, event(1, "rolled_back")) for _ in range(3)]
    done = await asyncio.gather(*promotions, *withdrawals)
    assert sum(one is not None for one in done) == 1
    events, _ = await ledger.list_releases("p", 10, None)
    assert sum(one.kind in ("promoted", "rolled_back") for one in events) == 1


async def test_a_withdrawn_trial_raises_the_epoch_and_takes_what_waits_with_it(ledger: SqlLedger) -> None:
    await on_trial(ledger, 1)
    await on_trial(ledger, 2)
    assert await ledger.withdraw_trial("p", 1, event(1, "rolled_back")) == Policy(policy="p", epoch=1, active=0)
    assert {one.state for one in await ledger.list_versions("p")} == {VersionState.WITHDRAWN}
    assert {one.state for one in await ledger.list_trials("p")} == {TrialState.ROLLED_BACK}
    assert await ledger.open_trials() == []
    with pytest.raises(Conflict):
        await ledger.reserve_version("p", 0, 5)


async def test_groups_of_one_arm_are_drawn_once_and_paused_ones_are_stable(ledger: SqlLedger) -> None:
    await on_trial(ledger, share=0.95)
    heads = [await created(ledger, f"e{number}", f"t{number // 2}") for number in range(12)]
    by_group: dict[str | None, set[tuple[Arm, ...]]] = {}
    for head in heads:
        by_group.setdefault(head.group_id, set()).add(head.arms)
    assert all(len(arms) == 1 for arms in by_group.values())
    assert any(head.arms[0].is_canary for head in heads)
    groups, _ = await ledger.list_groups("default", run=None, task=None, limit=50, cursor=None)
    assert {group.group_id: {group.arms} for group in groups} == by_group
    await ledger.change_trial("p", event(0, "paused"), state=TrialState.PAUSED)
    assert (await created(ledger, "paused", "new")).arms == ()
    assert (await ledger.trial_counts("p", 1))["canary"] == sum(head.arms[0].is_canary for head in heads)


async def test_an_episode_with_a_version_of_its_own_is_in_no_trial(ledger: SqlLedger) -> None:
    await on_trial(ledger)
    fixed = await created(ledger, "fixed", "t", policy="p", version=0)
    other = await created(ledger, "other", "another", policy="q")
    await ledger.put_run("default", RunSettings(run="look", mode="eval"))
    eval_one = await created(ledger, "eval", "t", run="look")
    assert fixed.arms == other.arms == eval_one.arms == ()
    assert await ledger.trial_counts("p", 1) == {"stable": 0, "canary": 0}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), min_size=4, max_size=14),
    st.integers(0, 2**16),
)
async def test_every_member_of_a_group_has_its_arms(
    migrated_file: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool, bool]], seed: int
) -> None:
    """Implicit episodes and others, before, in and after a trial, rewarded in any order."""
    path = tmp_path_factory.mktemp("law") / "hone.db"
    shutil.copy(migrated_file, path)
    ledger = SqlLedger(open_engine(f"sqlite:///{path}"), Clock())
    try:
        await ledger.ensure_policy("p")
        await ledger.put_run("default", RunSettings(run="default", group_size=3))
        rng, waiting = random.Random(seed), list[str]()
        for number, (task, implicit, starts) in enumerate(steps):
            if starts and number == len(steps) // 3:
                await on_trial(ledger)
            if starts and number == 2 * len(steps) // 3 and await ledger.open_trials():
                await rng.choice((ledger.promote, ledger.withdraw_trial))("p", 1, event(1, "ended"))
            await created(ledger, f"e{number}", task, implicit=implicit)
            waiting.append(f"e{number}")
            if rng.random() < 0.6:
                await rewarded(ledger, waiting.pop(rng.randrange(len(waiting))))
        for episode_id in waiting:
            await rewarded(ledger, episode_id)
        for number in range(len(steps)):
            row = await ledger.get_episode("default", f"e{number}")
            groups, _ = await ledger.list_groups("default", run=None, task=None, limit=100, cursor=None)
            arms = {group.group_id: group.arms for group in groups}
            assert row.head.group_id is None or arms[row.head.group_id] == row.head.arms
    finally:
        await ledger.close()


async def test_an_implicit_episode_of_a_withdrawn_version_takes_no_place_any_more(ledger: SqlLedger) -> None:
    await on_trial(ledger, share=0.95)
    heads = [await created(ledger, f"e{number}", "t", implicit=True) for number in range(6)]
    canary = next(head for head in heads if head.arms[0].is_canary)
    await ledger.withdraw_trial("p", 1, event(1, "rolled_back"))
    assert (await rewarded(ledger, canary.episode_id)).late
    assert (await ledger.get_episode("default", canary.episode_id)).head.group_id is None


async def test_what_counts_is_what_got_what_its_arm_says(ledger: SqlLedger) -> None:
    trial = await on_trial(ledger)
    heads = [await created(ledger, f"e{number}", f"t{number}") for number in range(8)]
    for number, head in enumerate(heads):
        got = int(head.arms[0].is_canary)
        await played(ledger, head.episode_id, 1 - got if number == 0 else got, None if number == 1 else number / 8)
    open_one = await created(ledger, "open", "t9")
    seen = await ledger.trial_episodes(trial)
    assert len(seen) == 7
    assert [one.reward for one in seen].count(None) == 1
    assert {one.share for one in seen} == {0.5}
    assert open_one.arms


async def test_what_is_known_of_a_task_from_before_the_trial_comes_with_it(ledger: SqlLedger) -> None:
    await created(ledger, "before", "t0")
    await played(ledger, "before", 0, 0.25)
    await ledger.score_episodes()
    await published(ledger, 1, state=VersionState.LOADING)
    trial = await ledger.start_trial("p", 1, 0, 0.5, event(1, at_ms=3_000_000))
    await created(ledger, "e", "t0")  # the round of before has room still: it is in no trial
    for number in range(2):
        await created(ledger, f"f{number}", "t0")
    row = await ledger.get_episode("default", "f0")
    await played(ledger, "f0", int(row.head.arms[0].is_canary))
    (seen,) = await ledger.trial_episodes(trial)
    assert (seen.task_mean, seen.num_before) == (0.25, 1)


async def test_how_alike_attempts_were_before_the_trial_comes_with_it(ledger: SqlLedger) -> None:
    for number in range(12):
        await created(ledger, f"b{number}", f"t{number // 2}")
        await played(ledger, f"b{number}", 0, float(number // 2 % 2))
    await ledger.score_episodes()
    await published(ledger, 1, state=VersionState.LOADING)
    trial = await ledger.start_trial("p", 1, 0, 0.5, event(1, at_ms=3_000_000))
    for name, task in (("new", "t9"), ("known", "t0")):
        head = await created(ledger, name, task)
        await played(ledger, name, int(head.arms[0].is_canary))
    known, new = sorted(await ledger.trial_episodes(trial), key=lambda one: one.likeness.correlation)
    assert (new.num_attempts, new.task_mean, new.likeness.correlation) == (2, 0.5, 1.0)
    assert (known.task_mean, known.num_before) == (0.0, 2)
    assert new.likeness.num_pairs == known.likeness.num_pairs == 4


async def test_a_rollback_withdraws_the_groups_that_the_version_played_in(ledger: SqlLedger) -> None:
    await on_trial(ledger, share=0.5)
    heads = [await created(ledger, f"e{number}", f"t{number // 2}") for number in range(24)]
    for head in heads[:16]:
        await played(ledger, head.episode_id, int(head.arms[0].is_canary))
    ready = await ledger.settle_groups(1_500_000)
    assert {group.state for group in ready} == {GroupState.READY}
    fence = await ledger.take_lease("p", "me", 0, 10**12)
    assert fence is not None
    taken = next(group for group in ready if group.arms[0].is_canary)
    await ledger.take(batch(taken, fence))
    await ledger.withdraw_trial("p", 1, event(1, "rolled_back"))
    groups, _ = await ledger.list_groups("default", run=None, task=None, limit=50, cursor=None)
    for group in groups:
        expected = (None, GroupState.OPEN if not any(member.reward for member in group.members) else GroupState.READY)
        if group.group_id == taken.group_id:
            expected = (SkipReason.EXPIRED, GroupState.SKIPPED)
        elif group.arms[0].is_canary:
            expected = (SkipReason.WITHDRAWN, GroupState.SKIPPED)
        assert (group.reason, group.state) == expected
    assert {group.arms[0].is_canary for group in await ledger.ready_heads("p")} == {False}


async def test_what_was_decided_stays_as_it_was_written(ledger: SqlLedger) -> None:
    await on_trial(ledger)
    for statement in (update(tables.release_events).values(why=""), delete(tables.release_events)):
        with pytest.raises(DBAPIError, match="only grow"):
            await ledger.write(lambda connection, one=statement: connection.execute(one))
    first, cursor = await ledger.list_releases("p", 1, None)
    rest, end = await ledger.list_releases("p", 1, cursor)
    assert (first[0].kind, rest[0].kind, end) == ("started", "waiting", None)


async def test_a_shadow_is_one_and_goes_with_its_version(ledger: SqlLedger) -> None:
    await published(ledger, 1)
    await ledger.set_shadow("p", Shadow(policy="p", version=1, share=0.1), event())
    await ledger.set_shadow("p", Shadow(policy="p", version=1, share=0.2), event())
    assert await ledger.list_shadows() == [Shadow(policy="p", version=1, share=0.2)]
    await ledger.add_tally("p", 1, 0, {"num_calls": 1.0, "gap": 0.5})
    await ledger.add_tally("p", 1, 0, {"num_calls": 2.0, "tokens": 3.0})
    (tally,) = await ledger.list_tallies("p")
    assert tally.numbers == {"num_calls": 3.0, "gap": 0.5, "tokens": 3.0}
    await ledger.rollback("p", 0)
    assert await ledger.list_shadows() == []


async def test_alarms_keep_the_time_at_which_they_were_raised(ledger: SqlLedger) -> None:
    alarm = Alarm(tenant="default", run="default", policy="p", kind=AlarmKind.LENGTH, detail="longer")
    await ledger.put_alarms([alarm], 5)
    await ledger.put_alarms([msgspec.structs.replace(alarm, detail="still longer")], 9)
    (found,) = await ledger.list_alarms("default")
    assert (found.raised_ms, found.detail) == (5, "still longer")
    assert await ledger.list_alarms("other") == []
    await ledger.put_alarms([], 11)
    assert await ledger.list_alarms() == []


async def test_histories_are_the_newest_episodes_of_trained_runs_with_their_judges(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="judged", group_size=2, reward_weights={"judge": 0.0}))
    for number in range(3):
        await created(ledger, f"e{number}", "t", run="judged")
        await rewarded(ledger, f"e{number}", 0.5, name="judge", final=False)
        await played(ledger, f"e{number}", 0, number / 4)
    (history,) = await ledger.histories(2)
    assert [point.reward for point in history.points] == [0.25, 0.5]
    assert [point.judges for point in history.points] == [{"judge": 0.5}, {"judge": 0.5}]


async def test_a_deleted_episode_leaves_no_measures(ledger: SqlLedger) -> None:
    trial = await on_trial(ledger)
    head = await created(ledger, "e0")
    await played(ledger, "e0", int(head.arms[0].is_canary))
    assert len(await ledger.trial_episodes(trial)) == 1
    await ledger.delete_episode("default", "e0")
    assert await ledger.trial_episodes(trial) == []
    assert await ledger.histories(5) == []


def test_heads_without_arms_are_stored_as_before() -> None:
    assert b"arms" not in msgspec.msgpack.encode(EpisodeHead(episode_id="e"))
