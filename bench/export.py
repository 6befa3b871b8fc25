"""How export grows: `python -m bench.export` prints a table and writes bench/results/export.json.

A data folder is filled with a thousand archived episodes, and then with these again and again under other ids, and
`hone export` runs over it in a process of its own, in every form and format. What is told is its greatest resident
memory (`ru_maxrss`), which must not follow the number of episodes, and calls a second. Episodes are those of
`tests/fakes/archived.py`: three turns of 60 tokens each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fakes.archived import fill
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger

RESULTS = Path(__file__).parent / "results" / "export.json"
FEW = 1_000
TURNS = 3
CHANGED = {
    "episode_id": "{name} || '-c{copy}'",
    "group_id": "{name} || '-c{copy}'",
    "reward_id": "{name} || '-c{copy}'",
    "task_digest": "{name} || '-c{copy}'",
    "created_ms": "{name} + {copy} * 1000000",
    "is_scored": "1",
}
"""What a copy has of its own; the rest it has as it is."""
CASES = (
    ("rows", "jsonl"),
    ("rows", "parquet"),
    ("sft", "jsonl"),
    ("sft", "parquet"),
    ("dpo", "jsonl"),
    ("episodes", "jsonl"),
)


async def filled(folder: Path) -> None:
    """A thousand episodes."""
    ledger = await SqlLedger.connect(f"sqlite:///{folder}/hone.db", SystemClock())
    await fill(ledger, FEW)
    await ledger.close()


def multiplied(folder: Path, times: int) -> None:
    """The same episodes so many times, each under ids of its own."""
    database = sqlite3.connect(folder / "hone.db")
    with database:
        for copy in range(1, times):
            for table in ("groups", "episodes", "timelines", "rewards"):
                names = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] != "seq"]
                told = [CHANGED.get(name, '"{name}"').format(name=name, copy=copy) for name in names]
                key = "group_id" if table == "groups" else "episode_id"
                columns, values = ", ".join(f'"{name}"' for name in names), ", ".join(told)
                database.execute(
                    f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} WHERE {key} NOT LIKE '%-c%'"
                )
    database.close()


def measured(folder: Path, form: str, file_format: str) -> dict[str, Any]:
    """One export: its memory, its time, its rows."""
    out = folder / f"out.{file_format}"
    command = [sys.executable, "-m", "gateway.cli", "export", "--run", "r", "--as", form, "--format", file_format]
    read, write = os.pipe()
    started = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable,
        [*command, "--out", str(out), "--json"],
        {**os.environ, "HONE_DATA_DIR": str(folder)},
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, said
    seconds = time.perf_counter() - started
    size = out.stat().st_size
    out.unlink()
    answer = json.loads(said)
    return {
        "as": form,
        "format": file_format,
        "episodes": answer["num_episodes"],
        "rows": answer["num_rows"],
        "max_rss_mib": round(usage.ru_maxrss / 1024, 1),
        "seconds": round(seconds, 2),
        "calls_per_s": round(answer["num_episodes"] * TURNS / seconds),
        "file_mib": round(size / 2**20, 1),
    }


def told(measures: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything, and how memory grew from the few episodes to the many."""
    few = {(one["as"], one["format"]): one["max_rss_mib"] for one in measures[: len(CASES)]}
    growth = {
        f"{one['as']} {one['format']}": round(one["max_rss_mib"] / few[one["as"], one["format"]], 3)
        for one in measures[len(CASES) :]
    }
    return {"machine": platform.platform(), "cpus": os.cpu_count(), "measures": measures, "rss_growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=20_000)
    asked = parser.parse_args()
    measures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hone-bench-export-") as name:
        folder = Path(name)
        asyncio.run(filled(folder))
        for times in (1, asked.episodes // FEW):
            multiplied(folder, times)
            for form, file_format in CASES:
                measures.append(measured(folder, form, file_format))
                print("  ".join(f"{name} {value}" for name, value in measures[-1].items()), flush=True)
    RESULTS.write_text(json.dumps(told(measures), indent=1) + "\n")
    print(f"memory, many episodes to few: {told(measures)['rss_growth']}")


if __name__ == "__main__":
    main()
