"""Times by which something has to be through, of which a call has several: kept in one set, with one timer for all.

A timer for each, set and taken back, would cost a call more than all that it is to guard. So a deadline may be
overdrawn by a look, which nobody minds where they are seconds; what must be exact takes `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

LOOK_S: Final = 0.1
"""How often the deadlines are looked at, while there are any."""


class Deadlines:
    """All deadlines of a loop."""

    def __init__(self) -> None:
        self._open: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> Deadline:
        """A context whose work is cancelled, and raises `TimeoutError`, when it takes longer."""
        return Deadline(self, asyncio.get_running_loop().time() + seconds)

    def add(self, deadline: Deadline) -> None:
        """Look at it from now on."""
        self._open.add(deadline)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def drop(self, deadline: Deadline) -> None:
        """It was kept, or is over."""
        self._open.discard(deadline)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for deadline in [one for one in self._open if one.until_s <= now_s]:
            deadline.expire()
        self._timer = loop.call_later(LOOK_S, self._look) if self._open else None


class Deadline:
    """Used as a context, once, by one task."""

    __slots__ = ("_all", "_is_over", "_num_cancels", "_task", "until_s")

    def __init__(self, deadlines: Deadlines, until_s: float) -> None:
        self._all = deadlines
        self._task: asyncio.Task[object] | None = None
        self._num_cancels = 0
        self._is_over = False
        self.until_s = until_s
        """By the loop's clock; may be moved while it is entered, to infinity while nothing is waited for."""

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task()
        assert task is not None  # only tasks can be cancelled
        self._num_cancels = task.cancelling()
        self._all.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._all.drop(self)
        if not self._is_over or self._task is None:
            return
        if self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the work."""
        self._all.drop(self)
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
