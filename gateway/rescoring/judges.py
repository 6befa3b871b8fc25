"""Judges: a command that reads an episode a line and answers a score a line, or a Python function of one episode.

A command is started as often as episodes are judged at once; each process judges one after the other and is kept. A
function is called in threads, or awaited where it is asynchronous. A score is a number, true, false, null for "not
scored", or an object with it under `reward`. What a judge answers instead ends the work with the episode's name.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from gateway.dialects.base import Json
from gateway.message_fold import encode_json
from tracker.errors import BadRequest, SettingsError

FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_LINE: Final = 2**26
PATIENCE_S: Final = 3600.0
"""For one episode; a judge may ask a model."""


class Judge(Protocol):
    """Scores episodes, several at once."""

    async def score(self, episode: Json) -> float | None:
        """Raises `BadRequest` for what is no score."""
        ...

    async def close(self) -> None: ...


def open_judge(named: str, cwd: Path) -> Judge:
    """The judge that `module:function` or a command line names. Raises `SettingsError` if it is none."""
    if FUNCTION.fullmatch(named):
        return FunctionJudge(_function(named, cwd))
    argv = shlex.split(named)
    if not argv:
        raise SettingsError("--judge: write a command, or module:function.")
    return CommandJudge(argv, cwd)


class FunctionJudge:
    """A Python function of one episode."""

    def __init__(self, function: Callable[[Json], Any]) -> None:
        self._function = function

    async def score(self, episode: Json) -> float | None:
        """What the function gives. Whatever it raises is a `BadRequest` that says of which episode, and where."""
        try:
            if inspect.iscoroutinefunction(self._function):
                value = await self._function(episode)
            else:
                value = await asyncio.to_thread(self._function, episode)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raised = "".join(traceback.format_exception_only(error)).strip()
            place = f"{frame.filename}, line {frame.lineno}"
            raise BadRequest(f"{_named(episode)}: the judge raised {raised} ({place}).") from error
        return score_of(value, episode)

    async def close(self) -> None:
        """Nothing was opened."""


class CommandJudge:
    """Processes of one command, each with one episode at a time."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        self._argv = argv
        self._cwd = cwd
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: list[asyncio.subprocess.Process] = []

    async def score(self, episode: Json) -> float | None:
        """What a process answers."""
        process = self._idle.pop() if self._idle else await self._start()
        answer = await self._ask(process, encode_json(episode) + b"\n")
        self._idle.append(process)
        try:
            value = msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise _no_score(episode, answer.decode("utf-8", "replace").strip()[:200] or "nothing") from error
        return score_of(value, episode)

    async def close(self) -> None:
        """End what was started."""
        for process in self._all:
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, cwd=self._cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=MAX_LINE
            )
        except OSError as error:
            raise SettingsError(f"{self._argv[0]} could not be run: {error.strerror}.") from error
        self._all.append(process)
        return process

    async def _ask(self, process: asyncio.subprocess.Process, line: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                process.stdin.write(line)
                await process.stdin.drain()
                return await process.stdout.readline()
        except (ConnectionError, ValueError, TimeoutError) as error:
            raise BadRequest(
                f"The judge {self._argv[0]} does not answer: {str(error) or 'it took too long'}."
            ) from error


def score_of(value: object, episode: Mapping[str, Any]) -> float | None:
    """A score from what a judge gave.

    >>> [score_of(value, {}) for value in (True, 2, None, {"reward": 0.5})]
    [1.0, 2.0, None, 0.5]
    """
    if isinstance(value, dict) and "reward" in value:
        value = cast("Json", value)["reward"]
    if value is None:
        return None
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise _no_score(episode, repr(cast("object", value))[:200])


def _named(episode: Mapping[str, Any]) -> str:
    return f"Episode {episode.get('episode_id')}"


def _no_score(episode: Mapping[str, Any], told: str) -> BadRequest:
    return BadRequest(f"{_named(episode)}: the judge answered {told}; a score is a finite number, true, false or null.")


def _function(named: str, cwd: Path) -> Callable[[Json], Any]:
    module, _, name = named.partition(":")
    if str(cwd) not in sys.path:
        sys.path.insert(0, str(cwd))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"--judge: {named} cannot be imported from {cwd}: {error}.") from error
    if not callable(found):
        raise SettingsError(f"--judge: {named} is no function.")
    return found
