"""kill -9 at every stage of a step, and SIGTERM: the run that goes on equals one that was never broken."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.lives import LIFE_S, NUM_STEPS, WEIGHTS, Ending, Stage, end_of, life_settings, spawn
from tests.trainer.world import World, add_group, run_settings
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.types import Batch, GroupState, Version
from trainer.checkpoints import Checkpoints

T = TypeVar("T")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOLD = (Stage.TAKEN, Stage.FORWARD, Stage.BACKWARD, Stage.GRADIENTS, Stage.STEPPED, Stage.CHECKPOINT, Stage.SERVED)
"""In the order of a step. In the last of them the gateway never answers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    weights: dict[str, torch.Tensor]
    optimiser: dict[str, Any]
    scheduler: dict[str, Any]
    batches: list[Batch]
    versions: dict[int, Version]
    groups: list[str]

    @property
    def published(self) -> list[tuple[int, str]]:
        """The weights that each step published."""
        return [(batch.step, self.versions[batch.version or 0].digest) for batch in self.batches]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which as many groups as steps are ready."""
    folder = tmp_path_factory.mktemp("lives") / "groups"
    folder.mkdir()
    world = World(life_settings(folder))
    world.run(world.ledger.put_run("default", run_settings(staleness=64)))
    for number in range(NUM_STEPS):
        world.run(add_group(world.ledger, f"task-{number}", [1.0, 0.0]))
    world.close()
    return folder


@pytest.fixture(scope="module")
def unbroken(groups: Path) -> Outcome:
    return outcome(run(groups, groups.with_name("unbroken")))


@pytest.fixture
def folder(groups: Path, tmp_path: Path) -> Iterator[Path]:
    """The same groups, for a run that is broken; what was said is shown where the test fails."""
    copied = tmp_path / "data"
    shutil.copytree(groups, copied)
    yield copied
    print((copied / "said.log").read_text())


def run(groups: Path, folder: Path) -> Path:
    """One life without an ending."""
    shutil.copytree(groups, folder)
    assert end_of(spawn(folder)) == 0
    return folder


def outcome(folder: Path) -> Outcome:
    settings = life_settings(folder)
    (checkpoint,) = Checkpoints(settings.checkpoints_dir, 1).all()

    async def read(ledger: SqlLedger) -> tuple[list[Batch], list[Version], list[str]]:
        found, _ = await ledger.list_groups("default", run=None, task=None, limit=50, cursor=None)
        batches = await ledger.last_batches("solver", 100)
        return batches, await ledger.list_versions("solver"), [str(group.state) for group in found]

    batches, versions, states = in_ledger(folder, read)
    return Outcome(
        weights=load_file(checkpoint.folder / WEIGHTS),
        optimiser=torch.load(checkpoint.folder / "optimizer.pt", weights_only=True),
        scheduler=torch.load(checkpoint.folder / "scheduler.pt", weights_only=True),
        batches=batches,
        versions={version.version: version for version in versions},
        groups=states,
    )


def in_ledger(folder: Path, work: Callable[[SqlLedger], Awaitable[T]]) -> T:
    """Do something in the database of a run while no trainer of it lives."""

    async def done() -> T:
        ledger = await SqlLedger.connect(life_settings(folder).stores.database_url, SystemClock())
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    return asyncio.run(done())


def take_lease(folder: Path, holder: str) -> None:
    now = SystemClock().now_ms()
    assert in_ledger(folder, lambda ledger: ledger.take_lease("solver", holder, now, 1_000_000)) is not None


def lease_of(folder: Path) -> str:
    """Who holds the lease; empty where it was given back."""
    with contextlib.closing(sqlite3.connect(folder / "hone.db")) as database:
        return database.execute("select cast(holder as text) from trainer_leases").fetchone()[0]


def check(folder: Path, unbroken: Outcome) -> None:
    """Everything that must hold of a run that was broken and has come to its end."""
    found = outcome(folder)
    torch.testing.assert_close(found.weights, unbroken.weights)
    torch.testing.assert_close(found.optimiser["state"], unbroken.optimiser["state"])
    assert found.scheduler == unbroken.scheduler
    assert lease_of(folder) == ""
    check_batches(found, unbroken)
    check_versions(folder, found)
    check_folders(folder, found)


def check_batches(found: Outcome, unbroken: Outcome) -> None:
    """Every group is trained once, in the order and with the rows and credit of the unbroken run."""
    assert found.groups == [GroupState.TRAINED] * NUM_STEPS
    assert [what_was_trained(batch) for batch in found.batches] == [
        what_was_trained(batch) for batch in unbroken.batches
    ]
    assert found.published == unbroken.published


def what_was_trained(batch: Batch) -> tuple[object, ...]:
    """All of a batch but its random name, and the digest over it."""
    manifest = {name: value for name, value in json.loads(batch.manifest).items() if name not in ("batch_id", "digest")}
    return batch.step, batch.state, batch.group_ids, batch.credit, manifest


def check_versions(folder: Path, found: Outcome) -> None:
    """No number stands for two weights, and each has the file that it says."""
    digests = defaultdict[str, set[str]](set)
    for line in (folder / "posts.jsonl").read_text().splitlines():
        name, digest = json.loads(line)
        digests[name.rpartition("-")[0]].add(digest)
    assert {len(different) for different in digests.values()} == {1}
    named = [version for version in found.versions.values() if version.folder]
    assert len({version.digest for version in named}) == len(named) == NUM_STEPS
    for version in named:
        path = life_settings(folder).stores.adapters_dir / version.folder / WEIGHTS
        assert hashlib.sha256(path.read_bytes()).hexdigest() == version.digest


def check_folders(folder: Path, found: Outcome) -> None:
    """Nothing half written stays, and nothing that nobody knows."""
    settings = life_settings(folder)
    adapters = {path.name for path in settings.stores.adapters_dir.iterdir()}
    assert adapters == {version.folder for version in found.versions.values() if version.folder}
    assert len(list(settings.checkpoints_dir.iterdir())) == 1
    lines = (settings.work_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, NUM_STEPS + 1))


@pytest.mark.parametrize("stage", Stage)
def test_killed_in_any_stage_a_run_goes_on_as_if_it_was_never_broken(
    folder: Path, unbroken: Outcome, stage: Stage
) -> None:
    assert end_of(spawn(folder, Ending(stage, 2))) == -SIGKILL
    assert end_of(spawn(folder)) == 0
    check(folder, unbroken)


def test_killed_in_every_stage_one_after_the_other_each_life_gets_one_stage_further(
    folder: Path, unbroken: Outcome
) -> None:
    for step, missing in ((1, Stage.HALF_AN_OLD_CHECKPOINT), (NUM_STEPS, Stage.CHECKPOINT)):
        for stage in Stage:
            if stage is not missing:
                assert end_of(spawn(folder, Ending(stage, step))) == -SIGKILL, stage
    assert end_of(spawn(folder)) == 0
    check(folder, unbroken)


def test_told_to_stop_a_life_ends_by_itself_wherever_it_is_and_gives_the_lease_back(
    folder: Path, unbroken: Outcome
) -> None:
    for stage in TOLD:
        assert end_of(spawn(folder, Ending(stage, 2, SIGTERM))) == 0, stage
        assert lease_of(folder) == "", stage
        assert (folder / "said.log").read_text().splitlines()[-1].startswith("told to stop"), stage
    assert end_of(spawn(folder)) == 0
    check(folder, unbroken)


@pytest.mark.parametrize("sent", [SIGTERM, SIGINT])
def test_told_to_stop_while_it_waits_for_groups_a_life_ends_at_once(folder: Path, sent: Signals) -> None:
    process = spawn(folder, max_steps=None, poll_s=LIFE_S)
    wait_for(folder, "waiting: no group is ready")
    os.kill(process.pid or 0, sent)
    assert end_of(process) == 0
    assert lease_of(folder) == ""


def test_told_to_stop_while_it_waits_for_the_lease_a_life_ends_at_once(folder: Path) -> None:
    take_lease(folder, "another")
    process = spawn(folder, poll_s=LIFE_S)
    wait_for(folder, "waiting: another trainer")
    os.kill(process.pid or 0, SIGTERM)
    assert end_of(process) == 0
    assert lease_of(folder) == "another"


def wait_for(folder: Path, line: str) -> None:
    """Until a life has said so."""
    until = time.monotonic() + LIFE_S
    log = folder / "said.log"
    while not (log.exists() and line in log.read_text()):
        assert time.monotonic() < until, "not said: " + line
        time.sleep(0.02)
