"""What the gateway does without being asked: heartbeats, the sweeper, and an eye on engines and the embedded Redis.

Each duty is a step that is repeated for as long as the gateway runs. A step that fails as stores and engines fail is
logged and tried again; one that fails as a bug does ends its duty, and readiness says so. All are cancelled and awaited
at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from tracker.errors import HoneError

LOG: Final = logging.getLogger("hone.background")
Step = Callable[[], Awaitable[object]]


class Duties:
    """Repeated steps, each in a task of its own."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, step: Step, interval_s: float) -> None:
        """Repeat a step from now on."""
        self._tasks[name] = asyncio.create_task(_repeat(name, step, interval_s), name=name)

    def stopped(self) -> list[str]:
        """Duties that a bug has ended."""
        return [name for name, task in self._tasks.items() if task.done()]

    async def stop(self) -> None:
        """End all of them; a bug that ended one earlier is logged with its trace."""
        for task in self._tasks.values():
            task.cancel()
        results = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for name, result in zip(self._tasks, results, strict=True):
            if isinstance(result, Exception):
                LOG.error("duty %s had ended", name, exc_info=result)


@asynccontextmanager
async def duties() -> AsyncGenerator[Duties]:
    """Duties that end with the block."""
    running = Duties()
    try:
        yield running
    finally:
        await running.stop()


async def _repeat(name: str, step: Step, interval_s: float) -> None:
    """A failure is told once, and its end once."""
    said = ""
    while True:
        try:
            await step()
        except HoneError as error:
            if error.message != said:
                LOG.warning("%s: %s", name, error.message)
            said = error.message
        else:
            if said:
                LOG.info("%s works again", name)
            said = ""
        await asyncio.sleep(interval_s)
