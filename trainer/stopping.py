"""How the trainer is told to end: a flag that a signal sets, waits that it ends, work that it breaks off.

The rule: told to stop, the trainer ends at once, wherever it is. `kill -9` is safe anywhere, so breaking off is: a step
that was not finished is trained again at the next start. Shielded is only what costs more to begin anew than to end:
an operation in SQL (its connection has to stay in step, to give the lease back) and the writing of a checkpoint.

There are no locks here: a handler runs between any two instructions of the main thread, also of one that holds a lock,
which is why this is no `threading.Event`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_S: Final = 0.05


class Stopped(BaseException):
    """Told to stop in the middle of work that can be begun anew; like `KeyboardInterrupt`, no library may catch it."""


class Stop:
    """Whether this process was told to end. Set once, never taken back."""

    def __init__(self) -> None:
        self._is_set = False
        self._breaks_off = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Ask to end at the next look; also from another thread."""
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        """Sleep this long, or until told to stop; True if told."""
        until = time.monotonic() + seconds
        while not self._is_set and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_S))
        return self._is_set

    def listen(self) -> None:
        """Let SIGTERM and SIGINT tell. Called once, by the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._told)

    @contextmanager
    def breaking_off(self) -> Generator[None]:
        """Inside, a signal raises `Stopped` wherever the main thread is; one that came before raises at once."""
        with self._switched(breaks_off=True):
            self._end_if_told()
            yield

    @contextmanager
    def shielded(self) -> Generator[None]:
        """Inside `breaking_off`: a signal raises only when this ends."""
        with self._switched(breaks_off=False):
            yield
        if self._breaks_off:
            self._end_if_told()

    @contextmanager
    def _switched(self, *, breaks_off: bool) -> Generator[None]:
        before, self._breaks_off = self._breaks_off, breaks_off
        try:
            yield
        finally:
            self._breaks_off = before

    def _end_if_told(self) -> None:
        if self._is_set:
            raise Stopped

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self._is_set = True
        if self._breaks_off:
            # Once: what is cleaned up on the way out is not disturbed by further signals.
            self._breaks_off = False
            raise Stopped
