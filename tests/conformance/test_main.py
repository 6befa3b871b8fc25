"""`python -m tests.conformance` where it cannot begin: one line and status 2, no trace."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.fakes.scripted_engine import ScriptedEngine

CLOSED = "http://127.0.0.1:9"


async def run(*arguments: str) -> tuple[int | None, list[str]]:
    command = (sys.executable, "-m", "tests.conformance", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, told = await process.communicate()
    return process.returncode, told.decode().splitlines()


@pytest.mark.slow
async def test_a_suite_that_cannot_begin_says_why_in_one_line() -> None:
    async with ScriptedEngine(control=True) as engine, ScriptedEngine() as silent:
        for url, control, more, words in [
            (CLOSED, engine.url, (), f"at {CLOSED} is no gateway"),
            (engine.url, CLOSED, (), f"at {CLOSED} is no scripted engine"),
            (engine.url, silent.url, (), f"at {silent.url} is no scripted engine"),
            (engine.url, engine.url, ("--only", "no such words"), "no rule holds"),
        ]:
            status, told = await run(url, "key", "--engine-control", control, *more)
            assert (status, len(told)) == (2, 1), told
            assert words in told[0]
