"""Two processes that `accelerate launch` starts train as one does; how work is shared."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.trainer.models import tiny_model, tiny_tokenizer
from tests.trainer.world import add_group, check_folder, run_settings
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.types import Batch, VersionState
from trainer.__main__ import train
from trainer.checkpoints import Checkpoints
from trainer.config import TrainerSettings, load
from trainer.ranks import Ranks, shares
from trainer.stopping import Stop

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
NUM_STEPS = 3
REWARDS = [1.0, 0.0, 0.5, 0.25, 0.0]
LAUNCH_S = 900.0
"""By far longer than a launch takes, also on a busy machine."""
LAUNCH = (
    *("accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--num_processes", "2"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "--module", "trainer"),
)
TOML = """
[[policies]]
name = "solver"
model = "{model}"
lora = {{ r = 4, alpha = 8 }}

[trainer]
device = "cpu"
dtype = "float32"
max_steps = 3
token_budget = 16
poll_s = 0.01
parity = "off"
learning_rate = 1e-2
"""


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 8))
def test_every_micro_batch_is_one_ranks_and_no_rank_has_much_more_than_its_part(costs: list[int], num: int) -> None:
    found = shares(costs, num)
    assert sorted(number for numbers in found for number in numbers) == list(range(len(costs)))
    loads = [sum(costs[number] for number in numbers) for numbers in found]
    assert max(loads) <= sum(costs) / num + max(costs, default=0)


class Stub(BaseHTTPRequestHandler):
    """A gateway that serves at once whatever is published."""

    server: StubServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.serve(body)
        self.send_response(201)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Quiet."""


class StubServer(ThreadingHTTPServer):
    """The gateway's part in publishing, over the run's own database."""

    settings: TrainerSettings

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Stub)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.num_posts = 0

    def serve(self, body: dict[str, str]) -> None:
        check_folder(self.settings.stores.adapters_dir / body["folder"], body["digest"])
        in_ledger(self.settings, lambda ledger: activate(ledger, body["folder"]))
        self.num_posts += 1


async def activate(ledger: SqlLedger, folder: str) -> None:
    version = await ledger.find_version("solver", folder)
    assert version is not None
    await ledger.put_version(msgspec.structs.replace(version, state=VersionState.ACTIVE))
    await ledger.activate("solver", version.version, version.epoch)


def in_ledger(settings: TrainerSettings, work: Callable[[SqlLedger], Awaitable[T]]) -> T:
    async def done() -> T:
        ledger = await SqlLedger.connect(settings.stores.database_url, SystemClock())
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    return asyncio.run(done())


@contextmanager
def gateway() -> Iterator[StubServer]:
    with StubServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def prepare(folder: Path, model: Path) -> None:
    """A folder to start a trainer in, with a data folder in which all groups but the last are ready."""
    folder.mkdir()
    (folder / "hone.toml").write_text(TOML.format(model=model))
    settings = load([], {}, folder)
    settings.stores.data_dir.mkdir(parents=True)

    async def fill(ledger: SqlLedger) -> None:
        await ledger.put_run("default", run_settings(group_size=5, staleness=64))
        for number in range(NUM_STEPS - 1):
            await add_group(ledger, f"task-{number}", REWARDS)

    in_ledger(settings, fill)


@contextmanager
def launched(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """`accelerate launch -m trainer` with two processes; whatever is left of it at the end is killed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HONE_GATEWAY_URL": url}
    with (folder / "out.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *LAUNCH], cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, text=True
        )
    try:
        yield process
    finally:
        print((folder / "out.log").read_text())
        for child in ranks_of(process):
            child.kill()
        process.kill()
        process.wait()


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a launch, by rank."""
    if process.poll() is not None:
        return []
    children = psutil.Process(process.pid).children(recursive=True)
    return sorted((child for child in children if "RANK" in child.environ()), key=lambda child: child.environ()["RANK"])


def wait_for(folder: Path, line: str) -> None:
    until = time.monotonic() + LAUNCH_S
    while line not in (folder / "out.log").read_text():
        assert time.monotonic() < until, "not said: " + line
        time.sleep(0.05)


def state_of(settings: TrainerSettings) -> dict[str, Any]:
    """Adapter and optimiser of the newest checkpoint."""
    folder = Checkpoints(settings.checkpoints_dir, 1).all()[0].folder
    optimiser = torch.load(folder / "optimizer.pt", weights_only=True)
    return {"adapter": load_file(folder / "adapter_model.safetensors"), "optimiser": optimiser["state"]}


def check_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Gradients are summed in another order. Adam divides those near zero by their own size, which makes a difference
    in their last digits a part of a step (1e-2): the moments are compared closely, the weights within 1 % of a step."""
    torch.testing.assert_close(found["optimiser"], wanted["optimiser"], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found["adapter"], wanted["adapter"], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_as_one_and_go_on_after_one_of_them_was_killed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny_model(dtype=torch.float32).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    with gateway() as one, gateway() as two:
        prepare(tmp_path / "one", model)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        one.settings = load(["--gateway-url", one.url], {}, tmp_path / "one")
        two.settings = load(["--gateway-url", two.url], {}, tmp_path / "two")
        with launched(tmp_path / "two", two.url) as process:
            wait_for(tmp_path / "two", "waiting: no group is ready")
            leader, follower = ranks_of(process)
            follower.send_signal(signal.SIGKILL)
            assert process.wait(LAUNCH_S) != 0
            leader.wait(LAUNCH_S)
        for settings in (one.settings, two.settings):
            in_ledger(settings, lambda ledger: add_group(ledger, "last", REWARDS))
        with launched(tmp_path / "two", two.url) as process:
            assert process.wait(LAUNCH_S) == 0
        train(one.settings, Ranks(), Stop())
    check_equal(state_of(two.settings), state_of(one.settings))
    for server in (one, two):
        batches: list[Batch] = in_ledger(server.settings, lambda ledger: ledger.last_batches("solver", 100))
        assert [(batch.step, batch.state, batch.version) for batch in batches] == [
            (step, "trained", step) for step in range(NUM_STEPS, 0, -1)
        ]
        assert server.num_posts == NUM_STEPS
    lines = (two.settings.work_dir / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["micro_batches"] > 1 for line in lines)
