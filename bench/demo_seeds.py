"""`make bench-demo-seeds`: the demo on five seeds, one after the other; does the gain stand in at least four?

Writes `bench/results/demo-seeds.json` and prints the table that docs/demo.md quotes.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "demo-seeds.json"
WANTED = 4


def play(seed: int) -> dict[str, Any]:
    """One demo in a process and a data folder of its own."""
    target = RESULTS.with_name(f".demo-seed-{seed}.json")
    command = [sys.executable, "-m", "gateway.cli", "demo", "--seed", str(seed), "--json", str(target)]
    subprocess.run(command, check=True)
    try:
        return json.loads(target.read_text())
    finally:
        for leftover in RESULTS.parent.glob(f".demo-seed-{seed}.*"):
            leftover.unlink()


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def row(result: dict[str, Any]) -> str:
    before, after, gain = result["before"], result["after"], result["gain"]
    cells = (
        str(result["seed"]),
        f"{before['mean']:.1%} ({before['low']:.1%} to {before['high']:.1%})",
        f"{after['mean']:.1%} ({after['low']:.1%} to {after['high']:.1%})",
        f"{gain['mean']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})",
        str(result["versions"]),
        f"{result['calls']:,}",
        f"{result['training']['merge_ratio']:.2f}",
        f"{result['seconds']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    num_seeds = parser.parse_args().seeds
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    results = [play(seed) for seed in range(num_seeds)]
    num_certain = sum(result["gain"]["low"] > 0 for result in results)
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "command": "make bench-demo-seeds",
        "num_certain": num_certain,
        "seeds": results,
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print("| seed | before | after | gain (paired) | versions | calls | merge ratio | seconds |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for result in results:
        print(row(result))
    print(f"\nThe lower bound of the gain is above 0 in {num_certain} of {num_seeds} seeds.")
    sys.exit(0 if num_certain >= min(WANTED, num_seeds) else 1)


if __name__ == "__main__":
    main()
