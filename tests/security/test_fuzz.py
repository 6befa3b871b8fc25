"""A coverage-guided fuzzer over everything that reads bytes of others, for so many inputs; `make fuzz` goes on.

Where atheris has no wheel for this Python the tests are skipped with that reason; what it found once is replayed
everywhere.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.fuzz.targets import SEEDS, TARGETS

ROOT = Path(__file__).parents[2]
NUM_INPUTS = 20_000
"""A number, and one seed: the same inputs on a slow machine and on a quick one."""
REGRESSIONS: dict[str, tuple[bytes, ...]] = {
    "dialects": (b'{"model":"m","messages":[{"role":[{"a":1}]}]}', b'{"model":"m","messages":[{"role":{}}]}'),
}
"""What once broke a law."""
NO_ATHERIS = "atheris cannot be installed on this Python (it has wheels for CPython 3.11 to 3.13 on Linux)"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason=NO_ATHERIS)
def test_no_bytes_break_a_law(tmp_path: Path) -> None:
    options = [f"-runs={NUM_INPUTS}", "-seed=1", "-max_total_time=120", "-rss_limit_mb=4096"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.fuzz", "all", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:].decode(errors="replace")


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_is_mended(name: str) -> None:
    for data in (*SEEDS[name], *REGRESSIONS.get(name, ()), b"", b"{}", b"\xff" * 100, b"[" * 5000):
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@given(st.data())
def test_no_part_of_a_seed_breaks_a_law(name: str, data: st.DataObject) -> None:
    """Seeds cut, doubled and spoiled, for machines without a fuzzer."""
    seed = data.draw(st.sampled_from(SEEDS[name]))
    start, end = sorted((data.draw(st.integers(0, len(seed))), data.draw(st.integers(0, len(seed)))))
    TARGETS[name](seed[:start] + data.draw(st.binary(max_size=6)) + seed[end:])
