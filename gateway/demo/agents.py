"""The processes of a demo's agent: they read jobs from standard input and answer one JSON line for each.

The agent is a script that knows nothing of Hone. A job carries what `POST /v1/episodes` gave for the environment of an
agent, and nothing else of Hone. If the process ends, the jobs it had are reported as broken, not as failed attempts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from gateway.demo.task import Outcome, Playable
from gateway.local.children import ends_with_parent


class Agents:
    """One agent process that plays many jobs at once. Use it as an async context manager."""

    def __init__(self, program: Sequence[str], log: Path, num_at_once: int) -> None:
        """`program` is what Python is given: a script, or `-m` and a module, and its arguments."""
        self._program = program
        self._log = log
        self._num_at_once = num_at_once
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *ends_with_parent((sys.executable, *self._program, "--worker", str(self._num_at_once))),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._reader is not None
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        await self._reader

    async def play(self, job: str, task: Playable, env: dict[str, str]) -> Outcome:
        """Have one task played with this environment."""
        assert self._process is not None
        assert self._process.stdin is not None
        if self._process.returncode is not None:
            return Outcome(job=job, error="the agent's process has ended")
        done = self._waiting[job] = asyncio.get_running_loop().create_future()
        line = msgspec.json.encode({**task.job(), "job": job, "env": env})
        self._process.stdin.write(line + b"\n")
        return await done

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            outcome = msgspec.json.decode(line, type=Outcome)
            waiting = self._waiting.pop(outcome.job, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(outcome)
        for job, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_result(Outcome(job=job, error="the agent's process has ended"))
        self._waiting.clear()
