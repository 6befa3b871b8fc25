"""Clients before the embedded engine and a real model: what it samples is what is recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import environments

pytestmark = pytest.mark.slow
NAMES = ("openai-stream", "anthropic-stream")
START_S = 120
Json = dict[str, Any]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`hone engine` with the model in the wheel; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--model", "smollm2", "--served-model-name", "base", "--port", str(port)]
    cache = ["--cache-dir", str(environments.ROOT / ".hone" / "models")]
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "trainer.engine", *arguments, *cache]
    with log.open("wb") as output, subprocess.Popen(command, env=env, stdout=output, stderr=output) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait(health: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(health, timeout=2).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)


def test_what_a_real_model_samples_is_trained_once(engine: str, tmp_path: Path) -> None:
    if (why := environments.why_missing("python")) is not None:
        pytest.skip(why)
    command = [sys.executable, "-m", "tests.agents.play", "--engine", engine, "--out", str(tmp_path), *NAMES]
    subprocess.run(command, check=True, cwd=environments.ROOT)
    for name in NAMES:
        report: Json = json.loads((tmp_path / f"{name}.json").read_text())
        assert report["status"] == 0, report["output"]
        (episode,) = report["episodes"]
        samples = episode["samples"]
        assert samples["excluded"] == []
        spans = [span for sample in samples["samples"] for span in sample["spans"]]
        assert len({span["call_id"] for span in spans}) == len(spans) == len(episode["calls"])
        assert all(span["end"] > span["start"] for span in spans)
