"""`make faults`: kill, cut and fill everything in turn under load, and count what is missing afterwards.

`python -m bench.faults --episodes N` plays N episodes in all (2,000 by default), shared out over the faults in whole
groups; `--each N` plays N for every fault. Prints a table and writes bench/results/faults.json, a list with a row for
each fault; ends with status 1 where anything was lost, found twice or stuck. `--only NAME,NAME` does some of the faults
and leaves the other rows of that file as they are. What the columns mean stands in docs/operations.md, what a fault
does in `bench/faulting/catalogue.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.demo_seeds import machine
from bench.faulting.catalogue import FAULTS, Fault
from bench.faulting.load import GROUP_SIZE
from bench.faulting.stage import NoDisk, open_stage
from bench.faulting.trial import Outcome, tried

RESULTS = Path(__file__).parent / "results" / "faults.json"
COLUMNS = ("answered", "in_samples", "excluded", "lost", "rewards_accepted", "rewards_found", "groups_twice")


Rows = dict[str, dict[str, Any]]


async def measured(faults: Sequence[Fault], num_each: int, logs: Path | None, keep: Callable[[Outcome], None]) -> None:
    """Each fault in turn; those that need the same kind of stage share one, so that it has to survive all of them."""
    for kind, several in groupby(faults, key=lambda fault: fault.stage):
        with tempfile.TemporaryDirectory(prefix="hone-faults-") as folder:
            try:
                async with open_stage(Path(folder), kind) as stage:
                    for fault in several:
                        say(f"{fault.name}: {fault.does} ...")
                        outcome = await tried(fault, stage, num_each, f"{fault.name}-{time.time_ns()}")
                        say(told(outcome))
                        keep(outcome)
            except NoDisk as error:
                say(f"faults of the stage {kind!r} are left out: {error}")
            finally:
                keep_logs(Path(folder), logs, kind)


def keep_logs(folder: Path, logs: Path | None, kind: str) -> None:
    """Copy what the processes of a stage wrote."""
    for path in folder.rglob("*.log") if logs else ():
        target = logs / kind.replace(" ", "-") / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def told(outcome: Outcome) -> str:
    """One line on the way, with whatever is amiss below it."""
    verdict = outcome.verdict
    problems = [f"  {problem}" for problem in verdict.problems[:10]]
    mark = "ok" if verdict.holds else "FAILED"
    counts = (
        f"{verdict.answered} answered, {verdict.lost} lost, {verdict.rewards_found}/{verdict.rewards_accepted} rewards"
    )
    times = f"recovered in {outcome.recovery_s:.1f} s, {outcome.wall_s:.0f} s in all"
    return "\n".join([f"  {mark}: {counts}, {verdict.groups} groups, {times}", *problems])


def row_of(outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "fault": outcome.fault.name,
        **{column: getattr(verdict, column) for column in COLUMNS},
        "recovery_s": round(outcome.recovery_s, 2),
        "does": outcome.fault.does,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "episodes": outcome.num_episodes,
        "groups": verdict.groups,
        "reasons": dict(sorted(verdict.reasons.items())),
        "sdk_retries": outcome.num_retries,
        "calls_failed_for_agents": outcome.num_errors,
        "rewards_refused_and_stored": outcome.num_refused_and_stored,
        "late_writes_of_trainers_refused": outcome.num_late_writes,
        "wall_s": round(outcome.wall_s, 1),
        "problems": list(verdict.problems),
        "holds": verdict.holds,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As docs/operations.md has it."""
    names = ("fault", *COLUMNS, "recovery_s")
    lines = [f"| {' | '.join(names)} |", f"|---|{'--:|' * (len(names) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows)])


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000, help="in all, over all faults")
    parser.add_argument("--each", type=int, help="episodes for every fault, instead of --episodes")
    parser.add_argument("--only", default="", help="names of faults, with commas")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--logs", type=Path, help="a folder for what the processes wrote")
    given = parser.parse_args()
    wanted = [name for name in given.only.split(",") if name]
    faults = [fault for fault in FAULTS if not wanted or fault.name in wanted]
    if unknown := set(wanted) - {fault.name for fault in faults}:
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; there is {', '.join(fault.name for fault in FAULTS)}")
    num_each = given.each or given.episodes / len(FAULTS)
    rows: Rows = {}
    if wanted and given.out.exists():
        rows |= {row["fault"]: row for row in json.loads(given.out.read_text())}

    def keep(outcome: Outcome) -> None:
        rows[outcome.fault.name] = row_of(outcome)
        write(rows, given.out)

    asyncio.run(measured(faults, GROUP_SIZE * math.ceil(num_each / GROUP_SIZE), given.logs, keep))
    print(table(in_order(rows)))
    sys.exit(0 if all(row["holds"] for row in rows.values()) else 1)


def in_order(rows: Rows) -> list[dict[str, Any]]:
    """As the catalogue has them."""
    return [rows[fault.name] for fault in FAULTS if fault.name in rows]


def write(rows: Rows, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(in_order(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
