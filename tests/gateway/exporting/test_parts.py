"""Parts of an export: whoever is killed goes on, and the same rows come out; and the lossless line of an episode."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.exporting.carried import is_same, line_of, whole_of
from gateway.exporting.jsonl import JsonLines
from gateway.exporting.parts import Parts, State, Unwritten
from tests.fakes.archived import episode, fill
from tests.tracker.call_strategies import episodes
from tracker.clock import SystemClock
from tracker.codec import encode_calls
from tracker.errors import BadRequest, Conflict, CorruptRecord
from tracker.ledger import SqlLedger
from tracker.receipts import seal
from tracker.types import Call
from tracker.wholes import StoredTimeline

ROOT = Path(__file__).parents[3]


def parts(folder: Path) -> Parts:
    return Parts(folder / "out.jsonl", JsonLines(), is_folder=False)


@given(st.lists(st.lists(st.integers(), max_size=3), min_size=1, max_size=5), st.data())
@settings(max_examples=30)
def test_whoever_is_stopped_between_any_two_parts_goes_on_without_gap_or_double(
    tmp_path_factory: pytest.TempPathFactory, pages: list[list[int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    done = 0
    while done < len(pages):
        writer = parts(folder)
        with writer.opened("asked") as state:
            done = int(state.cursor or 0)
            for page in pages[done : done + data.draw(st.integers(1, 3))]:
                done += 1
                rows = [{"n": number} for number in page]
                state = writer.state
                writer.add(rows, replace(state, cursor=str(done), num_rows=state.num_rows + len(rows)))
            (folder / "out.jsonl.partial" / "part-000099.jsonl").write_text("torn")  # a part that no state knows of
    last = parts(folder)
    with last.opened("asked"):
        last.add([], replace(last.state, cursor=None, is_through=True))
        last.finish()
    written = [json.loads(line)["n"] for line in (folder / "out.jsonl").read_text().splitlines()]
    assert written == [number for page in pages for number in page]
    assert last.state.num_rows == len(written)
    assert not (folder / "out.jsonl.partial").exists()


class Full(JsonLines):
    """A disk that takes no more."""

    def write(self, path: Path, rows: Sequence[dict[str, Any]], *, is_text: bool) -> None:
        super().write(path, rows[:1], is_text=is_text)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_what_it_took_is_gone_on_from(tmp_path: Path) -> None:
    full = Parts(tmp_path / "out.jsonl", Full(), is_folder=False)
    first, second = State(asked="asked", cursor="1"), State(asked="asked", is_through=True, num_parts=1)
    with pytest.raises(Unwritten, match=r"cannot be written: No space left"), full.opened("asked"):
        full.add([{"n": 1}, {"n": 2}], first)
    assert list(tmp_path.iterdir()) == []
    writer = parts(tmp_path)
    with writer.opened("asked"):
        writer.add([{"n": 1}], first)
    goes_on = r"The same command goes on from what is in .*out\.jsonl\.partial"
    with pytest.raises(Unwritten, match=goes_on), full.opened("asked"):
        full.add([{"n": 2}], second)
    with writer.opened("asked") as state:
        assert state.cursor == "1"
        writer.add([{"n": 2}], second)
        writer.finish()
    assert (tmp_path / "out.jsonl").read_text() == '{"n":1}\n{"n":2}\n'


def test_what_cannot_be_written_or_is_there_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(BadRequest, match="is there already"), parts(tmp_path).opened("asked"):
        pass
    with pytest.raises(Unwritten, match="cannot be written: Not a directory"), parts(tmp_path / "out.jsonl").opened(""):
        pass
    with pytest.raises(BadRequest, match="no name of a file"):
        Parts(Path("/"), JsonLines(), is_folder=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_other_options_and_a_second_writer_are_refused(tmp_path: Path) -> None:
    with (
        parts(tmp_path).opened("asked"),
        pytest.raises(Conflict, match="Another process"),
        parts(tmp_path).opened("asked"),
    ):
        pass
    writer = parts(tmp_path)
    with writer.opened("asked"):
        writer.add([{"n": 1}], State(asked="asked", cursor="c"))
    with pytest.raises(BadRequest, match="other options"), parts(tmp_path).opened("else"):
        pass


@given(episodes())
@settings(max_examples=60)
def test_a_line_holds_all_of_an_episode_whatever_its_calls_are(calls: tuple[Call, ...]) -> None:
    whole = episode(1)
    calls = tuple(replace(call, episode_id="ep-00000001") for call in calls)
    chain, receipts = seal(calls)
    stored = StoredTimeline(
        episode_id="ep-00000001", tenant="default", run="r", blob=encode_calls(calls), digest=chain, receipts=receipts
    )
    whole = replace(whole, timeline=stored)
    line = line_of(whole, whole.timeline.opened())
    assert b"\n" not in line
    back = whole_of(line)
    assert back.timeline.opened().calls == calls
    assert is_same(back, whole)
    changed = line.replace(b'"value":0.25', b'"value":0.75')
    assert changed != line
    with pytest.raises(CorruptRecord, match="not what was exported"):
        whole_of(changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "file_format", "num_episodes", "num_rows"),
    [("sft", "jsonl", 400, 1200), ("rows", "parquet", 400, 1200), ("dpo", "jsonl", 1200, 600)],
)
def test_a_killed_export_goes_on_to_the_same_rows(
    tmp_path: Path, form: str, file_format: str, num_episodes: int, num_rows: int
) -> None:
    asyncio.run(filled(tmp_path, num_episodes))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HONE_DATA_DIR": str(tmp_path)}

    def command(out: Path) -> list[str]:
        named = ["--run", "r", "--as", form, "--format", file_format, "--part-episodes", "50", "--out", str(out)]
        return [sys.executable, "-m", "gateway.cli", "export", *named]

    out, num_kills = tmp_path / f"killed.{file_format}", 0
    while not out.exists() and num_kills < 50:
        known = len(list(tmp_path.glob("killed.*.partial/part-*")))
        process = subprocess.Popen(command(out), env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and len(list(tmp_path.glob("killed.*.partial/part-*"))) < known + 2:
            time.sleep(0.005)
        num_kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert num_kills >= 2
    whole = tmp_path / f"whole.{file_format}"
    told = subprocess.run([*command(whole), "--json"], env=env, cwd=tmp_path, capture_output=True, check=True)
    assert json.loads(told.stdout)["num_episodes"] == num_episodes
    assert out.read_bytes() == whole.read_bytes()
    assert json.loads(told.stdout)["num_rows"] == num_rows


async def filled(folder: Path, num_episodes: int) -> None:
    ledger = await SqlLedger.connect(f"sqlite:///{folder}/hone.db", SystemClock())
    await fill(ledger, num_episodes)
    await ledger.close()
