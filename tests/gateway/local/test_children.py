import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.local.children import Child, Program, StartFailed, ends_with_parent, tail

STEADY = "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)"
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"


def program(tmp_path: Path, source: str, **fields: Any) -> Program:
    argv = (sys.executable, "-c", source)
    return Program(name="worker", argv=argv, env=dict(os.environ), cwd=str(tmp_path), advice="Do this.", **fields)


def child(tmp_path: Path, source: str, said: list[str] | None = None, **fields: Any) -> Child:
    log = tmp_path / "logs" / "worker.log"

    async def is_up(_: Child) -> bool:
        return "up" in tail(log)

    told = said if said is not None else []
    return Child(program(tmp_path, source, **fields), log, is_up, told.append)


@contextlib.asynccontextmanager
async def kept(one: Child) -> AsyncIterator[None]:
    await one.start()
    keeper = asyncio.create_task(one.keep())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await one.stop()


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A zombie is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_child_that_ends_at_start_is_an_error_with_the_end_of_its_log_and_advice(tmp_path: Path):
    one = child(tmp_path, "print('no model here'); raise SystemExit(3)")
    with pytest.raises(StartFailed) as failure:
        await one.start()
    assert "code 3" in failure.value.message
    assert "no model here" in failure.value.message
    assert failure.value.message.endswith("Do this.")


async def test_what_a_killed_child_leaves_behind_is_ended_before_it_is_started_again(tmp_path: Path):
    source = (
        "import subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('pid', left.pid, flush=True)\nprint('up', flush=True)\nleft.wait()"
    )
    one = child(tmp_path, source)
    async with kept(one):
        left = int(one.printed().split()[1])
        assert one.pid is not None
        assert is_alive(left)
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: not is_alive(left))
        await until(lambda: "up" in one.printed() and one.num_restarts == 1)
        second = int(one.printed().split()[1])
    await until(lambda: not is_alive(second))


async def test_a_start_that_takes_long_is_told_with_what_it_is_doing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.local.children.TELL_S", 0.05)
    said: list[str] = []
    go = tmp_path / "go"
    source = f"""
import pathlib, time
print("INFO [load.py:1] Loading weights", flush=True)
while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)
print("up", flush=True)
time.sleep(60)
"""
    one = child(tmp_path, source, said, tells_progress=True)
    starting = asyncio.create_task(one.start())
    await until(lambda: any("Loading weights" in line for line in said))
    go.touch()
    await starting
    await one.stop()
    assert all(re.match(r"worker is starting, \d+ s so far", line) for line in said), said


async def test_a_child_that_is_never_ready_is_an_error(tmp_path: Path):
    one = child(tmp_path, "import time; time.sleep(60)", start_s=0.3)
    with pytest.raises(StartFailed, match="was not ready"):
        await one.start()
    await one.stop()
    assert one.pid is None


async def test_a_killed_child_is_started_again_and_that_is_said(tmp_path: Path):
    said: list[str] = []
    one = child(tmp_path, STEADY, said)
    async with kept(one):
        first = one.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: one.pid not in (None, first))
        assert one.num_restarts == 1
    assert one.pid is None
    assert "worker ended with code -9" in said[0]


@pytest.mark.slow
async def test_a_child_that_keeps_dying_is_started_more_and_more_slowly(tmp_path: Path):
    said: list[str] = []
    one = child(tmp_path, "print('up')", said)
    async with kept(one):
        await until(lambda: len(said) >= 3)
    waits = [float(line.rpartition(" in ")[2].removesuffix(" s")) for line in said[:3]]
    assert waits == [0.2, 0.4, 0.8]


async def test_a_child_whose_work_is_done_is_left_alone(tmp_path: Path):
    said: list[str] = []
    one = child(tmp_path, "print('up')", said, may_finish=True)
    await one.start()
    await asyncio.wait_for(one.keep(), 60)
    assert said == []
    assert one.printed() == "up\n"


async def test_a_child_that_ignores_the_signal_to_end_is_killed_after_its_grace(tmp_path: Path):
    said: list[str] = []
    one = child(tmp_path, STUBBORN, said, grace_s=0.2)
    async with kept(one):
        pid = one.pid
    assert pid is not None
    assert not is_alive(pid)
    assert "is killed" in said[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_child_does_not_outlive_a_killed_supervisor():
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    source = f"""
import subprocess, time
from gateway.local.children import ends_with_parent
print(subprocess.Popen(ends_with_parent({command!r})).pid, flush=True)
time.sleep(60)
"""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert supervisor.stdout is not None
    with supervisor, supervisor.stdout:
        pid = int(supervisor.stdout.readline())
        deadline = time.monotonic() + 60
        while (
            b"time.sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            or b"deathwatch" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ):
            assert time.monotonic() < deadline
        supervisor.kill()
        supervisor.wait()
        while is_alive(pid):
            assert time.monotonic() < deadline
    assert ends_with_parent(("a",))[-1] == "a"
