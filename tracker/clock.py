"""The one thing that must be passed in to be tested: the time, in Unix milliseconds.

Stores, sweeper and gateway take a `Clock`; nothing in them asks the operating system. Durations of waiting are the
event loop's own affair.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time; tests pass one that they turn by hand."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
