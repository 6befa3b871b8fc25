"""Child processes that are started, watched, restarted and stopped in order.

A child that dies before it was ever ready is an error with the end of its log: something must be put right first. One
that dies later is started again, after a back-off that doubles up to ten seconds. What the children are, and when one
counts as ready, is said by `up.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from tracker.errors import SettingsError
from tracker.types import Record

FIRST_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
STEADY_S: Final = 30.0
"""A child that was up this long starts its back-off anew."""
POLL_S: Final = 0.1
TELL_S: Final = 10.0
"""Between two words about a child whose start takes long."""
TAIL_LINES: Final = 15
MAX_TOLD_CHARS: Final = 100
DEATHWATCH: Final = Path(__file__).with_name("deathwatch.py")


class Program(Record, frozen=True):
    """What to start, and how long it may take to start and to stop."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """All of its environment."""
    cwd: str
    start_s: float = 600.0
    grace_s: float = 15.0
    may_finish: bool = False
    """Ending with code 0 means that its work is done; it is not started again."""
    advice: str = ""
    """What a person can do if it does not start."""
    tells_progress: bool = False
    """Its start takes long, and the last line of its log says what it is doing."""


class StartFailed(SettingsError):
    """A child ended, or did not become ready in time, when it was started first."""

    code = "start_failed"


def ends_with_parent(argv: Sequence[str]) -> tuple[str, ...]:
    """The command, so started that it ends when this process does, however that ends."""
    return (sys.executable, "-I", str(DEATHWATCH), str(os.getpid()), *argv)


def tail(log: Path, num_lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-num_lines:])


class Child:
    """One program and the process that runs it now."""

    def __init__(
        self,
        program: Program,
        log: Path,
        is_ready: Callable[[Child], Awaitable[bool]],
        say: Callable[[str], None],
    ) -> None:
        self.program = program
        self.log = log
        self._is_ready = is_ready
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._log_start = 0
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now; None where none does."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def printed(self) -> str:
        """What its present process has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        await self._spawn()
        started = time.monotonic()
        told = started
        while not await self._is_ready(self):
            now = time.monotonic()
            if self.pid is None:
                raise self._failure(f"ended at start with code {self._code()}")
            if now > started + self.program.start_s:
                raise self._failure(f"was not ready after {self.program.start_s:.0f} s")
            if self.program.tells_progress and now >= told + TELL_S:
                told = now
                self._say(f"{self.program.name} is starting, {now - started:.0f} s so far{self._doing()}")
            await asyncio.sleep(POLL_S)

    async def keep(self) -> None:
        """Start it again whenever it dies, until it is stopped."""
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping:
            started = time.monotonic()
            if self._process is not None:
                await self._process.wait()
                _end_group(self._process.pid)
            if self._stopping or (self.program.may_finish and self._code() == 0):
                return
            backoff_s = FIRST_BACKOFF_S if time.monotonic() - started > STEADY_S else backoff_s
            self._say(f"{self.program.name} ended with code {self._code()}; starting it again in {backoff_s:.1f} s")
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            if not self._stopping:
                self.num_restarts += 1
                await self._spawn()

    async def stop(self) -> None:
        """Ask it to end, wait for its grace, then kill it."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.program.grace_s)
        except TimeoutError:
            self._say(f"{self.program.name} did not stop within {self.program.grace_s:.0f} s and is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        _end_group(process.pid)

    async def _spawn(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *ends_with_parent(self.program.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.program.env,
                cwd=self.program.cwd,
                start_new_session=True,  # Ctrl-C is the supervisor's: it stops its children in order
            )

    def _code(self) -> int | None:
        return self._process.returncode if self._process else None

    def _doing(self) -> str:
        """The last line that it printed, cut short, without what logs write before their messages."""
        lines = [line.strip() for line in self.printed().splitlines() if line.strip()]
        said = lines[-1].rpartition("] ")[2][:MAX_TOLD_CHARS] if lines else ""
        return f": {said}" if said else ""

    def _failure(self, what: str) -> StartFailed:
        return StartFailed(
            f"{self.program.name} {what}. The end of {self.log}:\n{tail(self.log)}\n{self.program.advice}".rstrip()
        )


def _end_group(pid: int) -> None:
    """End what a process that is gone left behind: a server's workers would keep its memory, and its device's.

    A child leads a group of its own, whose number stays taken as long as anything is in it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
