"""`make bench-learn`: do agents that know nothing of Hone get better on words they never saw, and as with stock TRL?

Three tasks, three seeds each, through the whole of Hone on this machine; on the task of one turn stock TRL's
`GRPOTrainer` gets the same seeds and as many sampled tokens. What is finished is kept in `.hone/learn/runs` and not
played again, so it can be interrupted; delete that folder to start anew. Writes `bench/results/learn.json` (a row for
each task and seed) and `learn-summary.json`, the table, and the plots of docs/training.md.
"""

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.demo_seeds import machine
from bench.learning.figures import paired, percent, points, put_between, row_of, summary_of
from bench.learning.lessons import COMPARED, LESSONS
from bench.learning.plots import draw_bars, draw_curves

RUNS = Path(".hone/learn/runs")
LOGS = Path(".hone/learn/logs")
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
TRIES = 2
"""A run that broke is played once more from its beginning."""


def ensure(name: str, module: str, arguments: Sequence[object]) -> dict[str, Any] | None:
    """The result of one run: what is kept of it, or what it gives now; None where it broke each time."""
    kept = RUNS / f"{name}.json"
    for attempt in range(TRIES):
        if kept.exists():
            return json.loads(kept.read_text())
        print(f"{datetime.datetime.now():%H:%M:%S} {name} ...", flush=True)
        aside = RUNS / f".{name}.part"
        with (LOGS / f"{name}-{attempt}.log").open("w") as log:
            command = [sys.executable, "-m", module, *map(str, arguments), str(aside)]
            done = subprocess.run(command, check=False, stdout=log, stderr=log)
        if done.returncode == 0:
            aside.write_text(json.dumps(json.loads(aside.read_text()) | circumstances()) + "\n")
            aside.rename(kept)
        else:
            print(f"{name} broke with {done.returncode}; see {log.name}", flush=True)
    return json.loads(kept.read_text()) if kept.exists() else None


def circumstances() -> dict[str, str]:
    """When, where and on what code a run was made."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "machine": machine(), "commit": told.stdout.strip() or "unknown"}


def play(task: str, seed: int) -> dict[str, Any] | None:
    """Our run, and on the compared task that of stock TRL with what ours has used."""
    ours = ensure(f"{task}-{seed}", "bench.learning.ours", (task, seed))
    if ours is None or task != COMPARED:
        return ours and row_of(ours, None)
    budget = (seed, ours["episodes"], ours["sampled_tokens"])
    return row_of(ours, ensure(f"{task}-{seed}-stock", "bench.learning.stock", budget))


def table(rows: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]]) -> str:
    """Markdown, as docs/training.md has it; the lines of a task over all seeds are bold."""
    lines = [
        "| task | seed | before | after | gain (paired) | stock TRL after | ours - stock | sampled tokens | s |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for task in LESSONS:
        for row in [*(row for row in rows if row["task"] == task), *(one for one in summary if one["task"] == task)]:
            cells = [
                *(task, str(row["seed"]), percent(row, "before"), percent(row, "after"), points(row, "gain")),
                *(percent(row, "stock_after"), points(row, "difference")),
                *(f"{row['sampled_tokens']:,}", f"{row['seconds']:.0f}"),
            ]
            if row["seed"] == "all":
                cells = [f"**{cell}**" for cell in cells]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_docs(shown: str, said: str, rows: Sequence[dict[str, Any]]) -> None:
    """The block of docs/training.md that is made from the results."""
    seen = sorted({f"{row['date']}, {row['machine']}, commit {row['commit']}" for row in rows})
    pictures = "\n\n".join(
        f"![{text}](images/learn-{name}.png)"
        for name, text in (("curves", "Reward of each training group"), ("bars", "Held-out success, before and after"))
    )
    page = DOCS / "training.md"
    page.write_text(put_between(page.read_text(), f"{shown}\n\nSeen: {'; '.join(seen)}; {said}\n\n{pictures}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=list(LESSONS), default=list(LESSONS))
    parser.add_argument(
        "--at-once", type=int, default=1, help="runs beside each other; the seconds are then no measure"
    )
    parser.add_argument("--keep-docs", action="store_true", help="leave docs/training.md as it is")
    options = parser.parse_args()
    for folder in (RUNS, LOGS, RESULTS, IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    wanted = [(task, seed) for seed in range(options.seeds) for task in options.tasks]
    with ThreadPoolExecutor(options.at_once) as pool:
        played = [row for row in pool.map(lambda one: play(*one), wanted) if row is not None]
    if not played:
        sys.exit("no run came to its end")
    summary = [summary_of(task, [row for row in played if row["task"] == task]) for task in options.tasks]
    summary = [one for one in summary if one["seeds"]]
    rows = [{name: value for name, value in row.items() if not name.startswith("_")} for row in played]
    (RESULTS / "learn.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "learn-summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw_curves(rows, IMAGES / "learn-curves.png")
    draw_bars(rows, IMAGES / "learn-bars.png")
    shown = table(rows, summary)
    said = f"{len(played)} of {len(wanted)} runs; {paired(summary)}"
    print(f"{shown}\n\n{said}")
    if not options.keep_docs:
        write_docs(shown, said, rows)
    learned = all(one["gain_interval"][0] > 0 for one in summary)
    not_worse = all(one["difference_interval"][1] >= 0 for one in summary if one["difference_interval"])
    sys.exit(0 if len(played) == len(wanted) and learned and not_worse else 1)


if __name__ == "__main__":
    main()
