"""No call past its run's bound is ever trained, and where the run says so a step waits for what would pass it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import call
from tests.trainer.settings import settings_for
from tests.trainer.world import World, add_group, run_settings
from tracker.credit import EpisodeOutcome
from tracker.types import EpisodeHead, EpisodeStatus, Group, RunSettings, SkipReason, VersionState
from trainer.steps import Step
from trainer.taking import Course, LoadedGroup, verdicts

ages = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@given(
    episodes=st.lists(ages, min_size=2, max_size=5),
    served=st.frozensets(st.integers(1, 6)),
    staleness=st.integers(0, 4),
    on_stale=st.sampled_from(["expire", "wait", "train"]),
)
def test_no_call_past_the_bound_is_trained_unless_the_run_says_train(
    episodes: list[list[int]], served: frozenset[int], staleness: int, on_stale: str
) -> None:
    """`episodes` are the versions of their calls; some of the numbers were never served."""
    course = Course(active=max(served, default=0), served=tuple(sorted(served)))
    run = RunSettings(run="r", staleness=staleness, on_stale=on_stale, pin="call")
    lags: dict[str, int] = {}
    outcomes: list[EpisodeOutcome] = []
    for place, versions in enumerate(episodes):
        calls = tuple(
            call(f"{place}-{number}", number, (place, number), (7, 99), episode_id=f"e{place}", version=version)
            for number, version in enumerate(versions)
        )
        lags |= {made.call_id: course.lag(made.version) for made in calls}
        outcomes.append(EpisodeOutcome(f"e{place}", EpisodeStatus.OK, float(place), calls, {}))
    group = Group(group_id="g", tenant="default", run="r", task="t", round=0, size=len(episodes))
    (found,) = verdicts([LoadedGroup(group, tuple(outcomes), 0)], run, "p", course)
    trained = {item.call_id for item in found.credit}
    fresh = {name for name, lag in lags.items() if lag <= staleness}
    if on_stale == "train":
        assert trained == lags.keys()
    elif all(any(f"{place}-{n}" in fresh for n in range(len(calls))) for place, calls in enumerate(episodes)):
        assert (found.skip, trained) == (None, fresh)
    else:
        assert (found.skip, trained) == (SkipReason.EXPIRED, set())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(settings_for(tmp_path, poll_s=0.01))
    yield made
    made.close()


def begin(world: World, task: str) -> None:
    """One of two attempts at a task is played from now on."""
    head = EpisodeHead(episode_id=f"ep-{task}-0", task=task, created_ms=world.feed._clock.now_ms())
    world.run(world.ledger.create_episode(head, None, ""))


def publish(world: World) -> None:
    version = world.feed.reserve_version(0)
    fields = {"state": VersionState.ACTIVE, "folder": f"v{version.version}", "digest": f"{version.version:064x}"}
    world.feed.put_version(msgspec.structs.replace(version, **fields))
    world.run(world.ledger.activate("solver", version.version, 0))


def next_step(world: World) -> Step | None:
    """The next step; without one, nothing after some looks."""
    looks = iter([True, True])
    return world.feed.next_step(lambda: next(looks, False))


@pytest.mark.slow
@pytest.mark.parametrize("on_stale", ["wait", "expire"])
def test_a_step_waits_for_the_group_that_its_version_would_make_too_stale(world: World, on_stale: str) -> None:
    world.run(world.ledger.put_run("default", run_settings(staleness=1, on_stale=on_stale)))
    begin(world, "slow")
    publish(world)
    world.run(add_group(world.ledger, "quick", [1.0, 0.0], version=1))
    step = next_step(world)
    if on_stale == "expire":
        assert step is not None
        return
    assert step is None
    (said,) = {line for line in world.said if "too stale" in line}
    assert "task 'slow' (round 0)" in said
    assert "1 of 2 attempts" in said
    world.run(world.ledger.end_episode("ep-slow-0", EpisodeStatus.CANCELLED, world.feed._clock.now_ms()))
    assert next_step(world) is not None, "nobody plays it any more"


@pytest.mark.slow
def test_a_group_at_its_bound_goes_before_those_that_were_ready_earlier(world: World) -> None:
    world.run(world.ledger.put_run("default", run_settings(staleness=1)))
    begin(world, "old")
    publish(world)
    world.run(add_group(world.ledger, "new", [1.0, 0.0], version=1))
    world.run(add_group(world.ledger, "old", [1.0, 0.0], version=0))
    steps = [next_step(world), next_step(world)]
    assert [step and set(step.lags) for step in steps] == [{1}, {0}]
