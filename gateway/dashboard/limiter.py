"""Slows whoever tries keys: after some failures an address waits before the next attempt is even looked at.

Keys are random beyond guessing; what this spares is the database and the log. Counted in this process by address,
within bounded memory.
"""

from __future__ import annotations

from typing import Final

from tracker.clock import Clock
from tracker.errors import TooManyRequests

MAX_FAILURES: Final = 10
"""Of one address within the window."""
WINDOW_MS: Final = 60_000
MAX_ADDRESSES: Final = 10_000


class SignInLimiter:
    """Failed attempts by address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, int]] = {}
        """address -> when its window began, and failures since."""

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` where this address has failed too often."""
        began_ms, number = self._failures.get(address, (0, 0))
        left_ms = began_ms + WINDOW_MS - self._clock.now_ms()
        if number >= MAX_FAILURES and left_ms > 0:
            wait_s = -(-left_ms // 1000)
            raise TooManyRequests(f"Too many failed attempts. Try again in {wait_s} s.", retry_after_s=wait_s)

    def failed(self, address: str) -> None:
        """Count a failure."""
        now_ms = self._clock.now_ms()
        began_ms, number = self._failures.get(address, (now_ms, 0))
        if began_ms + WINDOW_MS <= now_ms:
            began_ms, number = now_ms, 0
        if address not in self._failures and len(self._failures) >= MAX_ADDRESSES:
            self._forget_old(now_ms)
        self._failures[address] = (began_ms, number + 1)

    def _forget_old(self, now_ms: int) -> None:
        """Leave room: windows that are over, and where none is, all."""
        kept = {at: seen for at, seen in self._failures.items() if seen[0] + WINDOW_MS > now_ms}
        self._failures = kept if len(kept) < MAX_ADDRESSES else {}
