"""New rounds open only while what is in flight can still be trained in time, and only then is anybody refused."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.databases import Clock
from tests.tracker.filling import archived, batch, created, ready_group, rewarded
from tracker.errors import TooManyRequests
from tracker.families import family_of, next_families
from tracker.in_flight import is_enough
from tracker.ledger import SqlLedger
from tracker.types import EpisodeHead, EpisodeStatus, GroupState, RunSettings, SkipReason, VersionState

RUN = RunSettings(run="default", group_size=2, groups_per_step=1, staleness=1)
"""Two groups may be in flight."""


async def trainer(ledger: SqlLedger, policy: str = "p", now_ms: int = 1_000_000) -> int:
    fence = await ledger.take_lease(policy, f"trainer of {policy}", now_ms, 10_000)
    assert fence is not None
    return fence


async def asked(ledger: SqlLedger, episode_id: str, task: str, key: str | None = None, **fields: object) -> EpisodeHead:
    """An episode as the gateway asks for it."""
    head = EpisodeHead(episode_id=episode_id, task=task, **({"created_ms": 1_000_000} | fields))  # type: ignore[arg-type]
    return (await ledger.create_episode(head, key, "digest", bounded=True))[0]


async def activated(ledger: SqlLedger, number: int) -> None:
    await ledger.ensure_policy("p")
    version = await ledger.reserve_version("p", None, 1)
    assert version.version == number
    await ledger.put_version(msgspec.structs.replace(version, state=VersionState.ACTIVE, folder=f"p@{number}"))
    await ledger.activate("p", number, 0)


async def test_a_round_more_than_can_be_trained_in_time_is_refused_and_nothing_of_it_stays(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await trainer(ledger)
    await asked(ledger, "a-0", "a")
    await asked(ledger, "b-0", "b")
    with pytest.raises(TooManyRequests, match="2 groups in flight") as refused:
        await asked(ledger, "c-0", "c", "key")
    assert (refused.value.code, refused.value.retry_after_s > 0) == ("too_stale", True)
    rows, _ = await ledger.list_episodes("default", run=None, task=None, status=None, limit=9, cursor=None)
    assert {row.head.episode_id for row in rows} == {"a-0", "b-0"}
    await ledger.end_episode("a-0", EpisodeStatus.CANCELLED, 1_000_000)
    assert (await asked(ledger, "c-1", "c", "key")).episode_id == "c-1", "the key was not used up"


async def test_the_pace_of_the_trainer_says_how_soon_to_ask_again(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", msgspec.structs.replace(RUN, staleness=0))
    assert await ledger.take_lease("p", "trainer", 1_000_000, 60_000)
    for number, at_ms in ((1, 1_000_001), (2, 1_008_001)):
        clock.at_ms = at_ms
        await activated(ledger, number)
    await asked(ledger, "a-0", "a", created_ms=1_008_002)
    for at_ms, wanted_s in ((1_008_003, 8), (1_013_001, 3), (1_020_000, 2)):
        clock.at_ms = at_ms
        with pytest.raises(TooManyRequests) as refused:
            await asked(ledger, "b-0", "b", created_ms=1_008_003)
        assert refused.value.retry_after_s == wanted_s


async def test_a_free_place_of_an_open_round_is_always_given(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await trainer(ledger)
    for episode_id, task in (("a-0", "a"), ("b-0", "b"), ("a-1", "a"), ("b-1", "b")):
        await asked(ledger, episode_id, task)
    with pytest.raises(TooManyRequests):
        await asked(ledger, "a-2", "a")


async def test_an_episode_that_was_opened_is_given_again_however_full_it_is(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await trainer(ledger)
    first = await asked(ledger, "a-0", "a", "key")
    await asked(ledger, "b-0", "b")
    assert await asked(ledger, "a-9", "a", "key") == first
    assert (await asked(ledger, "b-0", "b")).episode_id == "b-0"


async def test_without_a_trainer_nothing_gets_staler_and_nobody_is_refused(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", RUN)
    for number in range(3):
        await asked(ledger, f"e-{number}", f"task {number}")
    fence = await trainer(ledger)
    with pytest.raises(TooManyRequests):
        await asked(ledger, "e-3", "task 3")
    clock.at_ms += 10_000
    await asked(ledger, "e-3", "task 3")
    await trainer(ledger, now_ms=clock.at_ms)
    with pytest.raises(TooManyRequests):
        await asked(ledger, "e-4", "task 4")
    await ledger.release_lease("p", fence)
    await asked(ledger, "e-4", "task 4")


async def test_a_trainer_of_a_policy_that_the_run_does_not_call_refuses_nobody(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await ready_group(ledger, "before", [0.0, 1.0], ["q"])
    await trainer(ledger)
    for number in range(3):
        await asked(ledger, f"e-{number}", f"task {number}")
    await trainer(ledger, "q")
    with pytest.raises(TooManyRequests, match="'q'"):
        await asked(ledger, "e-3", "task 3")
    await asked(ledger, "e-4", "task 4", policy="p")


async def test_evaluations_are_never_refused(ledger: SqlLedger) -> None:
    await ledger.put_run("default", msgspec.structs.replace(RUN, mode="eval"))
    await trainer(ledger)
    for number in range(4):
        await asked(ledger, f"e-{number}", f"task {number}")


async def test_what_was_trained_or_skipped_is_in_flight_no_more(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    fence = await trainer(ledger)
    one, two = await ready_group(ledger, "a", [0.0, 1.0]), await ready_group(ledger, "b", [0.0, 1.0])
    taken = await ledger.take(batch(one, fence))
    with pytest.raises(TooManyRequests, match="1 ready, 1 trained"):
        await asked(ledger, "c-0", "c")
    await ledger.mark_trained(taken)
    await asked(ledger, "c-0", "c")
    with pytest.raises(TooManyRequests):
        await asked(ledger, "d-0", "d")
    await ledger.skip_group(two.group_id, SkipReason.NO_VARIANCE, "p", fence)
    await asked(ledger, "d-0", "d")


async def test_a_share_that_only_another_policy_owes_is_not_waited_for(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    fence = await trainer(ledger)
    for step, task in enumerate("abc", 1):
        group = await ready_group(ledger, task, [0.0, 1.0], ["p", "q"])
        await ledger.mark_trained(await ledger.take(batch(group, fence, step)))
    await asked(ledger, "d-0", "d")


async def test_rounds_that_nobody_plays_count_only_when_they_are_full(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await trainer(ledger)
    for task in "abc":
        await asked(ledger, f"{task}-0", task)
        await rewarded(ledger, f"{task}-0")
    for task in "ab":
        await asked(ledger, f"{task}-1", task)
        await rewarded(ledger, f"{task}-1")
    with pytest.raises(TooManyRequests):
        await asked(ledger, "d-0", "d")


async def test_a_round_that_is_past_the_bound_already_blocks_nobody(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", RUN)
    await trainer(ledger)
    await asked(ledger, "a-0", "a")
    await asked(ledger, "b-0", "b")
    clock.at_ms += 1
    await activated(ledger, 1)
    with pytest.raises(TooManyRequests):
        await asked(ledger, "c-0", "c")
    await activated(ledger, 2)
    assert [group.lag for group in await ledger.groups_in_flight("p")] == [2, 2]
    await asked(ledger, "c-0", "c", created_ms=clock.at_ms + 1)


async def test_the_age_of_a_group_is_that_of_its_oldest_member(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", RUN)
    await created(ledger, "early", "a", implicit=True, created_ms=1_000_000)
    clock.at_ms = 1_000_010
    await activated(ledger, 1)
    await rewarded(ledger, "early", created_ms=1_000_020)
    await created(ledger, "late", "b", created_ms=1_000_020)
    found = await ledger.groups_in_flight("p")
    assert {group.task: (group.lag, group.num_live, group.num_seated) for group in found} == {
        "a": (1, 0, 1),
        "b": (0, 1, 1),
    }
    assert all(group.state is GroupState.OPEN for group in found)


async def test_parallel_openings_do_not_pass_the_bound(ledger: SqlLedger) -> None:
    await ledger.put_run("default", msgspec.structs.replace(RUN, groups_per_step=2))
    await trainer(ledger)
    openings = [asked(ledger, f"{task}-{number}", str(task)) for task in range(12) for number in range(2)]
    results = await asyncio.gather(*openings, return_exceptions=True)
    admitted = Counter(result.task for result in results if isinstance(result, EpisodeHead))
    assert sorted(admitted.values()) == [2, 2, 2, 2]
    assert all(isinstance(result, EpisodeHead | TooManyRequests) for result in results)


@pytest.mark.slow
async def test_one_agent_after_the_other_is_let_in_until_groups_wait_for_the_trainer(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await trainer(ledger)
    for number, task in enumerate(("a", "b", "c", "a", "b")):
        await asked(ledger, f"e-{number}", task, implicit=True)
        await rewarded(ledger, f"e-{number}")
        await archived(ledger, f"e-{number}")
    await asked(ledger, "next of c", "c", implicit=True)
    with pytest.raises(TooManyRequests):
        await asked(ledger, "one of c too many", "c", implicit=True)
    with pytest.raises(TooManyRequests):
        await asked(ledger, "first of d", "d", implicit=True)
    await ledger.settle_groups(1_000_000)
    with pytest.raises(TooManyRequests, match="2 ready"):
        await asked(ledger, "first of d", "d", implicit=True)
    assert not (await rewarded(ledger, "next of c")).late, "a reward is never refused"


@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9).map(float), min_size=1),
    groups_per_step=st.integers(1, 6),
    staleness=st.integers(0, 2),
    taken=st.integers(0, 20),
)
def test_a_family_that_the_next_step_needs_is_never_kept_out(
    weights: dict[str, float], groups_per_step: int, staleness: int, taken: int
) -> None:
    run = RunSettings(run="r", families=weights, groups_per_step=groups_per_step, staleness=staleness)
    before = next_families(weights, {}, taken * groups_per_step)
    for family, wanted in next_families(weights, before, groups_per_step).items():
        others = [f"{name}/{n}" for name in weights if name != family for n in range(40)]
        waiting = [*others, *(f"{family}/{n}" for n in range(wanted - 1))]
        assert wanted == 0 or not is_enough(waiting, f"{family}/next", run)
        bound = (staleness + 1) * groups_per_step
        share = weights[family] / sum(weights.values())
        assert is_enough([*others, *(f"{family}/{n}" for n in range(math.ceil(bound * share) + 2))], f"{family}/x", run)
        assert family_of(f"{family}/x", weights) == family
