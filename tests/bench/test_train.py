"""The training bench runs through, on two tiny workloads, and what it writes can be relied on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
NUMBERS = {"stock", "calls", "merged", "trie"}


def test_all_ways_to_run_the_same_calls_give_the_same_gradient(tmp_path: Path) -> None:
    told, plot = tmp_path / "train.json", tmp_path / "train.png"
    command = [sys.executable, "-m", "bench.train", "--quick", "--device", "cpu", "--threads", "1"]
    done = subprocess.run(
        [*command, "--json", str(told), "--plot", str(plot)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(told.read_text())
    assert found["command"].startswith("python -m bench.train --quick --device cpu")
    assert plot.read_bytes().startswith(b"\x89PNG")
    for row in found["rows"]:
        assert row["gradients_equal"]
        assert set(row["seconds"]) == set(row["peak_mb"]) == NUMBERS
        assert row["workload"] in done.stdout
        # What is shared is run once, however little that is here.
        assert row["distinct_tokens"] <= row["run_tokens"]["trie"] <= row["run_tokens"]["calls"] <= row["raw_tokens"]
        assert row["micro_batches"]["trie"] > 1
        assert row["flop_limit"] >= row["flop_limit_of_plan"] > 1
