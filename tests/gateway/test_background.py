"""What the gateway does without being asked."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.background import duties
from tracker.errors import Unavailable


async def test_a_duty_that_fails_is_repeated_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="hone.background")
    done = asyncio.Event()
    num_steps = 0

    async def step() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps < 4:
            raise Unavailable("Redis is away.")
        if num_steps > 4:
            done.set()

    async with duties() as running:
        running.start("sweeper", step, 0.001)
        await asyncio.wait_for(done.wait(), 30)
        assert running.stopped() == []
    assert caplog.messages == ["sweeper: Redis is away.", "sweeper works again"]


async def test_a_bug_ends_its_duty_and_is_told_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def step() -> None:
        raise ZeroDivisionError

    async with duties() as running:
        running.start("sweeper", step, 0.001)
        async with asyncio.timeout(30):
            while not running.stopped():
                await asyncio.sleep(0)
        assert running.stopped() == ["sweeper"]
    assert "ZeroDivisionError" in caplog.text
