"""A real data folder, spoiled as somebody with the database could: refused before the step, found by `hone verify`.

What is trained on is a SQLite file with archived episodes and a trainer's feed; only the model is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from gateway.cli import app
from tests.tracker.building import call, choice
from tests.trainer.settings import settings_for
from tracker.adapters import WEIGHTS_FILE
from tracker.archive import packed
from tracker.clock import SystemClock
from tracker.codec import decode_calls, encode_calls
from tracker.manifests import Manifest, decode_manifest, encode_manifest, manifest_digest
from tracker.receipts import seal
from tracker.sql import upgrade
from tracker.store import EpisodeView
from tracker.types import (
    Batch,
    Call,
    CallCredit,
    EpisodeHead,
    EpisodeState,
    EpisodeStatus,
    Reward,
    RunSettings,
    VersionState,
)
from trainer.feed import Feed
from trainer.steps import Step
from trainer.stopping import Stop

pytestmark = pytest.mark.slow
RUN = RunSettings(run="default", group_size=2, reward_grace_s=0.0)
FOLDER = "solver@1-abcd"


class DataFolder:
    """A ledger with one published version, and the feed of its trainer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.feed = Feed(settings_for(folder, poll_s=0.01), SystemClock(), "test", Stop(), self.said.append)
        self.ledger, self.run = self.feed._ledger, self.feed._run
        assert self.feed.acquire()
        weights = folder / "adapters" / FOLDER / WEIGHTS_FILE
        weights.parent.mkdir(parents=True)
        weights.write_bytes(b"weights")
        self.digest = hashlib.sha256(b"weights").hexdigest()
        self.run(self._publish())

    async def _publish(self) -> None:
        await self.ledger.put_run("default", RUN)
        await self.ledger.ensure_policy("solver")
        version = await self.ledger.reserve_version("solver", 0, 1)
        version = replace(version, folder=FOLDER, digest=self.digest, state=VersionState.ACTIVE)
        await self.ledger.put_version(version)
        await self.ledger.activate("solver", 1, 0)

    def calls(self, episode: str) -> tuple[Call, ...]:
        """Thinking (90, 91) that the agent's template strips from the second turn on."""
        known = {"episode_id": episode, "version": 1, "adapter_digest": self.digest, "policy": "solver"}
        return (
            call(f"{episode}-0", 0, (1, 2), (90, 91, 7, 99), **known),
            call(f"{episode}-1", 1, (1, 2, 7, 99, 98), (8, 99), **known),
        )

    def add_group(self, task: str) -> None:
        self.run(self._add_group(task))

    async def _add_group(self, task: str) -> None:
        now = SystemClock().now_ms()
        for number in range(RUN.group_size):
            episode = f"{task}-{number}"
            head = EpisodeHead(episode_id=episode, task=task, created_ms=now)
            head, _ = await self.ledger.create_episode(head, None, "")
            reward = Reward(reward_id=f"r-{episode}", seq=0, episode_id=episode, value=float(number), created_ms=now)
            await self.ledger.add_reward("default", reward, None, "")
            view = EpisodeView(
                head=head,
                state=EpisodeState.SEALED,
                status=EpisodeStatus.OK,
                calls=self.calls(episode),
                intents=(),
                pins={"solver": 1},
            )
            made = packed(view, RUN, now)
            assert await self.ledger.archive_episode(made.row, made.blob, made.digest, made.receipts)
        await self.ledger.settle_groups(now)

    def step(self) -> Step:
        """Wait for the next step; whatever is refused on the way is skipped."""
        step = self.feed.next_step(lambda: True)
        assert step is not None
        return step

    def train(self) -> Batch:
        """A whole step, but for the model."""
        step = self.step()
        metrics = json.loads(step.batch.metrics) | {
            "trained_tokens": step.num_trained,
            "gap_by_version": {"1": {"mean": 0.01, "maximum": 0.1, "ratio": 1.0, "num_tokens": step.num_trained}},
        }
        batch = replace(step.batch, manifest=step.manifest, metrics=json.dumps(metrics).encode())
        self.feed.mark_trained(batch)
        return batch

    def groups(self) -> dict[str, tuple[str, str | None]]:
        """task -> state and reason."""
        listed, _ = self.run(self.ledger.list_groups("default", run=None, task=None, limit=50, cursor=None))
        return {group.task: (group.state.value, group.reason.value if group.reason else None) for group in listed}

    # What somebody with the database could do.

    def write(self, statement: str, *values: object) -> None:
        with sqlite3.connect(self.folder / "hone.db") as database:
            assert database.execute(statement, values).rowcount >= 1
        database.close()

    def read(self, statement: str) -> Any:
        with sqlite3.connect(self.folder / "hone.db") as database:
            (value,) = database.execute(statement).fetchone()
        database.close()
        return value

    def rewrite(self, change: Callable[[tuple[Call, ...]], Sequence[Call]], episode: str = "one-0") -> None:
        """Write an archive again with other calls, in good form."""
        blob = self.read(f"SELECT blob FROM timelines WHERE episode_id = '{episode}'")
        changed = encode_calls(change(decode_calls(blob)))
        self.write("UPDATE timelines SET blob = ? WHERE episode_id = ?", changed, episode)

    def rewrite_manifest(self, change: Callable[[Manifest], Manifest]) -> None:
        """Edit the manifest and make its own digest fit."""
        edited = change(decode_manifest(self.read("SELECT manifest FROM batches")))
        edited = replace(edited, digest=manifest_digest(edited))
        self.write("UPDATE batches SET manifest = ?", encode_manifest(edited))


@pytest.fixture(scope="module")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "hone.db"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture
def data(tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataFolder]:
    shutil.copy(migrated_file, tmp_path)
    monkeypatch.setenv("HONE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HONE_POLICIES", "solver=base")
    made = DataFolder(tmp_path)
    yield made
    made.feed.close()


def verify(*arguments: str) -> tuple[int, str]:
    """`hone verify`: its exit status and what it prints."""
    done = CliRunner().invoke(app, ["verify", *arguments])
    return done.exit_code, done.output


def changed(number: int, **fields: object) -> Callable[[DataFolder], None]:
    """Change one call of an archive."""

    def spoil(data: DataFolder) -> None:
        data.rewrite(lambda calls: [*calls[:number], replace(calls[number], **fields), *calls[number + 1 :]])

    return spoil


def forge(data: DataFolder) -> None:
    """Flip a token and write receipts and chain that fit."""
    changed(1, choices=(choice([8, 96]),))(data)
    chain, receipts = seal(decode_calls(data.read("SELECT blob FROM timelines WHERE episode_id = 'one-0'")))
    data.write("UPDATE timelines SET receipts = ?, digest = ? WHERE episode_id = 'one-0'", receipts, chain)


def swap_weights(data: DataFolder) -> None:
    (data.folder / "adapters" / FOLDER / WEIGHTS_FILE).write_bytes(b"other weights")


def move_span(manifest: Manifest) -> Manifest:
    first, *rest = manifest.spans
    return replace(manifest, spans=(replace(first, start=first.start + 1, end=first.end + 1), *rest))


def raise_credit(data: DataFolder) -> None:
    credit = msgspec.msgpack.decode(data.read("SELECT credit FROM batches"), type=list[CallCredit])
    credit[0] = replace(credit[0], advantage=9.0)
    data.write("UPDATE batches SET credit = ?", msgspec.msgpack.encode(credit))


ARCHIVE_CONTROLS: dict[str, tuple[Callable[[DataFolder], None], str]] = {
    "a flipped token": (changed(1, choices=(choice([8, 96]),)), "call one-0-1, choice 0, offset 5: the 2 sampled ids"),
    "thinking stripped and merged anyway": (
        changed(1, prompt_ids=(1, 2, 90, 91, 7, 99, 98)),
        "call one-0-1, offset 0: the prompt ids are not those of its receipt",
    ),
    "the same text as other ids": (
        changed(1, choices=(choice([4, 4, 99]),)),
        "call one-0-1, choice 0, offset 5: the 3 sampled ids",
    ),
    "a changed log-probability": (
        changed(1, choices=(choice([8, 99], [-0.125, -0.26]),)),
        "call one-0-1, choice 0, offset 5: the log-probabilities",
    ),
    "calls re-ordered": (lambda data: data.rewrite(lambda calls: calls[::-1]), "call one-0-1: calls are re-ordered"),
    "a dropped call": (lambda data: data.rewrite(lambda calls: calls[1:]), "call one-0-0: it was sealed with"),
    "another archive": (
        lambda data: data.rewrite(lambda _: data.calls("one-1")),
        "call one-1-0: it is a call of episode one-1",
    ),
    "bytes that do not decode": (
        lambda data: data.write("UPDATE timelines SET blob = x'00' WHERE episode_id = 'one-0'"),
        "An archived timeline does not begin as one",
    ),
}
ADAPTER_CONTROLS: dict[str, tuple[Callable[[DataFolder], None], str]] = {
    "a swapped adapter, as it is registered": (
        lambda data: data.write("UPDATE versions SET digest = ?", "b" * 64),
        "it was sampled with .*, version 1 is registered as bbbb",
    ),
    "a swapped adapter, as it lies in the data folder": (swap_weights, f"adapters/{FOLDER} holds .*, version 1 is"),
}
BATCH_CONTROLS: dict[str, tuple[Callable[[DataFolder], None], str]] = {
    "a flipped token with receipts and chain that fit": (forge, "it was trained on with the chain|episodes differ"),
    "an edited manifest": (
        lambda data: data.write("UPDATE batches SET manifest = replace(manifest, '\"end\":7', '\"end\":6')"),
        "the manifest was edited: it breaks its own digest",
    ),
    "a moved span": (
        lambda data: data.rewrite_manifest(move_span),
        "episode one-0, call one-0-0, choice 0(, offset 2: trained at offsets 3 to 7| is trained as something else)",
    ),
    "other credit": (raise_credit, "its credit is not the one that was frozen|credit differs"),
}
CONTROLS = ARCHIVE_CONTROLS | ADAPTER_CONTROLS | BATCH_CONTROLS


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def test_batches_that_are_as_they_were_trained_are_found_so(data: DataFolder) -> None:
    for task in ("one", "two"):
        data.add_group(task)
        data.train()
    status, told = verify("--run", "default", "--json")
    answer = json.loads(told)
    assert (status, answer["ok"], len(answer["batches"])) == (0, True, 2)
    assert answer["summary"] == {
        "batches": 2,
        "trained_tokens": 24,
        "context_faithful": 1.0,
        "sampled_faithful": 1.0,
        "sampled_tokens": 24,
        "coverage": 1.0,
        "excluded_tokens": {},
        "gap_by_version": {"1": {"mean": 0.01, "maximum": 0.1, "ratio": 1.0, "num_tokens": 24}},
        "skipped_groups": {},
    }
    status, told = verify(answer["batches"][1]["batch_id"])
    assert status == 0
    assert told.startswith("ok ")
    assert len(told.splitlines()) == 1
    assert verify("--policy", "solver")[0] == 0


@pytest.mark.parametrize(("spoil", "line"), CONTROLS.values(), ids=CONTROLS)
def test_what_was_spoiled_after_the_step_is_found_with_its_place(
    data: DataFolder, spoil: Callable[[DataFolder], None], line: str
) -> None:
    data.add_group("one")
    data.train()
    spoil(data)
    status, told = verify()
    assert status == 1
    assert told.startswith("FAILED ")
    assert matches(line, told), told


@pytest.mark.parametrize(("spoil", "line"), CONTROLS.values(), ids=CONTROLS)
def test_what_was_spoiled_before_a_step_is_taken_again_is_refused_and_the_trainer_goes_on(
    data: DataFolder, spoil: Callable[[DataFolder], None], line: str
) -> None:
    data.add_group("one")
    taken = data.step().batch
    spoil(data)
    (stored,) = data.feed.recent_batches()
    assert data.feed.again(stored) is None
    assert matches(line, data.said[0]), data.said
    assert data.groups() == {"one": ("skipped", "refused")}
    (dropped,) = data.feed.recent_batches()
    assert (dropped.batch_id, dropped.state) == (taken.batch_id, "dropped")
    assert matches(line, json.loads(dropped.metrics)["problem"])


@pytest.mark.parametrize(("spoil", "line"), ARCHIVE_CONTROLS.values(), ids=ARCHIVE_CONTROLS)
def test_a_group_that_is_spoiled_is_refused_alone_and_the_next_one_is_trained(
    data: DataFolder, spoil: Callable[[DataFolder], None], line: str
) -> None:
    data.add_group("one")
    spoil(data)
    data.add_group("two")
    assert data.train().step == 1
    assert data.groups() == {"one": ("skipped", "refused"), "two": ("trained", None)}
    assert matches(f"group of task 'one' .* is refused: episode one-0.*{line}", data.said[0]), data.said
    status, told = verify("--run", "default")
    assert status == 0
    assert "1 groups refused" in told


def test_a_batch_that_was_stepped_on_and_cannot_be_shown_any_more_is_trained_not_dropped(data: DataFolder) -> None:
    data.add_group("one")
    data.step()
    changed(1, choices=(choice([8, 96]),))(data)
    (stored,) = data.feed.recent_batches()
    assert data.feed.again(stored, is_stepped=True) is None
    (marked,) = data.feed.recent_batches()
    assert (marked.state, marked.version) == ("trained", None)
    assert "trained and not published" in json.loads(marked.metrics)["problem"]
    assert verify()[0] == 1


def test_a_batch_killed_before_its_mark_is_checked_already(data: DataFolder) -> None:
    data.add_group("one")
    data.step()
    status, told = verify()
    assert (status, told[:2]) == (0, "ok")
    changed(1, choices=(choice([8, 96]),))(data)
    assert verify()[0] == 1


def test_an_episode_that_was_deleted_is_told_and_no_fault(data: DataFolder) -> None:
    data.add_group("one")
    data.train()
    data.run(data.ledger.delete_episode("default", "one-0"))
    status, told = verify()
    assert status == 0
    assert "6 tokens of deleted episodes cannot be checked" in told


@pytest.mark.parametrize("arguments", [["nothing"], ["--run", "nothing"], ["--policy", "nothing"]])
def test_what_is_not_there_is_an_error(data: DataFolder, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["verify", *arguments])
    assert "nothing" in str(done.exception)
    assert verify() == (0, "There is no batch yet.\n")
