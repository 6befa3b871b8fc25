"""Step, checkpoint, publish, mark: killed anywhere, no group is trained twice and none is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.trainer.settings import settings_for
from tests.trainer.world import World, add_group, run_settings
from tracker.errors import LeaseLost
from tracker.types import GroupState
from trainer.loop import Loop

# The libraries' own deprecations are not ours to fix.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(settings_for(tmp_path, max_steps=2, poll_s=0.01))
    made.run(made.ledger.put_run("default", run_settings()))
    yield made
    made.close()


def add_two_groups(world: World) -> None:
    world.run(add_group(world.ledger, "one", [1.0, 0.0]))
    world.run(add_group(world.ledger, "two", [0.0, 1.0]))


def states(world: World) -> list[str]:
    groups, _ = world.run(world.ledger.list_groups("default", run=None, task=None, limit=50, cursor=None))
    return sorted(group.state for group in groups)


def test_each_group_becomes_a_step_and_each_step_a_version(world: World) -> None:
    add_two_groups(world)
    world.train()
    assert [post["folder"].rsplit("-", 1)[0] for post in world.posts] == ["solver@1", "solver@2"]
    assert states(world) == [GroupState.TRAINED, GroupState.TRAINED]
    batches = world.feed.recent_batches()
    assert [(batch.step, batch.state, batch.version) for batch in batches] == [(2, "trained", 2), (1, "trained", 1)]
    spans = json.loads(batches[0].manifest)["spans"]
    assert len(spans) == 4
    assert {"receipt", "start", "end", "call_id"} <= spans[0].keys()
    lines = (world.settings.work_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == [1, 2]
    assert json.loads(lines[1])["lag_max"] == 1
    probe = world.posts[1]["probe"]
    assert probe["points"]
    assert all(point["logprob"] != point["previous"] for point in probe["points"])


def test_groups_without_variance_are_skipped_with_the_reason(world: World) -> None:
    world.run(add_group(world.ledger, "flat", [1.0, 1.0]))
    add_two_groups(world)
    world.train()
    assert states(world) == [GroupState.SKIPPED, GroupState.TRAINED, GroupState.TRAINED]
    assert any("no_variance" in line for line in world.said)


@pytest.mark.parametrize("where", ["before the checkpoint", "after the checkpoint", "after the publication"])
def test_killed_anywhere_every_group_is_trained_once(world: World, tmp_path: Path, where: str) -> None:
    add_two_groups(world)

    def kill(loop: Loop) -> None:
        def killed(*_: object) -> bool:
            raise Killed

        match where:
            case "before the checkpoint":
                loop.commit = killed  # type: ignore[method-assign]
            case "after the checkpoint":
                loop._publish_and_mark = killed  # type: ignore[method-assign]
            case _:
                loop._mark = killed  # type: ignore[method-assign]

    with pytest.raises(Killed):
        world.train(kill)
    assert sorted(states(world)) == [GroupState.READY, GroupState.TAKEN]
    taken = world.feed.recent_batches()[0]
    world.train()
    assert states(world) == [GroupState.TRAINED, GroupState.TRAINED]
    batches = world.feed.recent_batches()
    assert [batch.step for batch in batches] == [2, 1]
    assert batches[1].batch_id == taken.batch_id
    assert batches[1].credit == taken.credit
    assert len({post["folder"] for post in world.posts}) == 2
    assert any("trained again" in line for line in world.said) == (where == "before the checkpoint")


def test_a_gateway_that_restarts_is_waited_for_and_a_failed_swap_changes_nothing(world: World) -> None:
    add_two_groups(world)
    stale = {"error": {"message": "Policy solver was rolled back", "code": "old", "type": "x", "param": None}}
    world.answers = [httpx.Response(503), httpx.Response(409, json=stale)]
    world.train()
    assert any("not published yet" in line for line in world.said)
    batches = world.feed.recent_batches()
    assert [(batch.step, batch.version) for batch in batches] == [(2, 2), (1, None)]


def test_after_a_rollback_training_goes_on_from_the_version_rolled_back_to(world: World) -> None:
    add_two_groups(world)
    world.train()
    world.run(world.ledger.rollback("solver", 1))
    world.run(add_group(world.ledger, "three", [1.0, 0.0], version=1))
    world.train()
    assert any("going on from step 1" in line for line in world.said)
    batches = world.feed.recent_batches()
    assert (batches[0].step, batches[0].epoch, batches[0].version) == (3, 1, 3)


def test_a_rollback_while_training_is_noticed_before_anything_is_taken(world: World) -> None:
    add_two_groups(world)
    rolled: list[int] = []

    def roll_back(loop: Loop) -> None:
        mark = loop._mark

        def marked(*given: object) -> None:
            mark(*given)  # type: ignore[arg-type]
            if not rolled:
                rolled.append(1)
                world.run(world.ledger.rollback("solver", 0))
                world.run(add_group(world.ledger, "three", [1.0, 0.0]))

        loop._mark = marked  # type: ignore[method-assign]

    world.train(roll_back)
    batches = world.feed.recent_batches()
    assert [(batch.epoch, batch.step, batch.version) for batch in batches] == [(1, 3, 3), (1, 2, 2), (0, 1, 1)]
    assert any("rolled back to version 0" in line for line in world.said)


def test_a_lost_lease_ends_the_training(world: World) -> None:
    add_two_groups(world)
    world.run(world.ledger.release_lease("solver", 1))
    world.run(world.ledger.take_lease("solver", "another", world.feed._clock.now_ms(), 10**6))
    with pytest.raises(LeaseLost):
        world.train()
    assert states(world) == [GroupState.READY, GroupState.READY]
