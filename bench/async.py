"""`make bench-async`: what it costs to wait for the slowest episode, and what not waiting costs in staleness.

The same episodes through the same gateway, engine and trainer by two schedules, one after the other for each seed:
Hone's, which never waits, and a batch with a barrier. An engine of scripted answers takes its time, a step sleeps; the
rest is what runs in earnest. Writes `bench/results/async.json` and prints the table that docs/training.md quotes.
"""

import argparse
import asyncio
import datetime
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.demo_seeds import machine
from bench.schedules import Outcome, Workload, open_stage, played

RESULTS = Path(__file__).parent / "results" / "async.json"
SCHEDULES = ("hone", "barrier")
WANTED = 2.0
"""The barrier has to cost this many times our wall time."""
Outcomes = dict[str, list[Outcome]]


async def measured(load: Workload, num_seeds: int) -> Outcomes:
    """Both schedules for each seed, interleaved; the second seed begins with the other one."""
    outcomes: Outcomes = {name: [] for name in SCHEDULES}
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        async with open_stage(Path(folder) / "data") as stage:
            for seed in range(num_seeds):
                for name in SCHEDULES if seed % 2 == 0 else SCHEDULES[::-1]:
                    outcome = await played(name, load, seed, stage)
                    outcomes[name].append(outcome)
                    print(f"seed {seed}, {name}: {outcome.wall_s:.1f} s", file=sys.stderr, flush=True)
    return outcomes


def report_of(outcomes: Outcomes, load: Workload) -> dict[str, Any]:
    """What is written down; wall times and shares are medians over the seeds."""
    walls = {name: [outcome.wall_s for outcome in found] for name, found in outcomes.items()}
    lags = {name: [lag for outcome in found for lag in outcome.diary.lags] for name, found in outcomes.items()}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "command": "make bench-async",
        "workload": asdict(load),
        "num_seeds": len(walls["hone"]),
        "wall_s": {name: median(found) for name, found in walls.items()},
        "ratio": median(slow / fast for slow, fast in zip(walls["barrier"], walls["hone"], strict=True)),
        "idle": {name: median(outcome.idle for outcome in found) for name, found in outcomes.items()},
        "staleness_mean": fmean(lags["hone"]),
        "staleness_max": max(lags["hone"]),
        "staleness": {name: {"mean": fmean(found), "max": max(found)} for name, found in lags.items()},
        **{
            field: {
                name: sum(getattr(outcome, f"num_{field}") for outcome in found) for name, found in outcomes.items()
            }
            for field in ("episodes", "trained", "expired", "left")
        },
        "seeds": [
            {
                "seed": seed,
                "wall_s": {name: round(walls[name][seed], 2) for name in SCHEDULES},
                "idle": {name: round(outcomes[name][seed].idle, 3) for name in SCHEDULES},
                "num_steps": {name: outcomes[name][seed].diary.num_steps for name in SCHEDULES},
            }
            for seed in range(len(walls["hone"]))
        ],
    }


def table(report: dict[str, Any]) -> str:
    rows = [
        ("wall time, s", {name: f"{value:.1f}" for name, value in report["wall_s"].items()}),
        ("trainer idle", {name: f"{value:.0%}" for name, value in report["idle"].items()}),
        ("staleness, mean", {name: f"{value['mean']:.2f}" for name, value in report["staleness"].items()}),
        ("staleness, greatest", {name: str(value["max"]) for name, value in report["staleness"].items()}),
        ("episodes played", {name: str(value) for name, value in report["episodes"].items()}),
        ("groups trained", {name: str(value) for name, value in report["trained"].items()}),
        ("groups expired", {name: str(value) for name, value in report["expired"].items()}),
        ("groups left over", {name: str(value) for name, value in report["left"].items()}),
    ]
    lines = ["| | Hone | barrier |", "|---|--:|--:|"]
    return "\n".join([*lines, *(f"| {name} | {cells['hone']} | {cells['barrier']} |" for name, cells in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    for name, default in asdict(Workload()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = vars(parser.parse_args())
    num_seeds, out = given.pop("seeds"), given.pop("out")
    load = Workload(**given)
    report = report_of(asyncio.run(measured(load, num_seeds)), load)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    print(f"\nThe barrier takes {report['ratio']:.2f} times as long (median of {num_seeds} seeds).")
    sys.exit(0 if report["ratio"] >= WANTED else 1)


if __name__ == "__main__":
    main()
