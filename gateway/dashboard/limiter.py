"""Slows whoever tries keys: after some failures an address waits before the next attempt is even looked at.

Keys are random beyond guessing; what this spares is the database and the log. Counted in this process by address,
within bounded memory.
"""

from __future__ import annotations

from typing import Final

from gateway.guesses import network_of
from gateway.windows import Windows
from tracker.clock import Clock
from tracker.errors import TooManyRequests

MAX_FAILURES: Final = 10
"""Of one address within the window."""
WINDOW_MS: Final = 60_000
MAX_ADDRESSES: Final = 10_000


class SignInLimiter:
    """Failed attempts by address, those of one customer's IPv6 network together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = Windows(MAX_FAILURES, WINDOW_MS, MAX_ADDRESSES)

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` where this address has failed too often."""
        if wait_ms := self._failures.wait_ms(network_of(address), self._clock.now_ms()):
            wait_s = -(-wait_ms // 1000)
            raise TooManyRequests(f"Too many failed attempts. Try again in {wait_s} s.", retry_after_s=wait_s)

    def failed(self, address: str) -> None:
        """Count a failure."""
        self._failures.add(network_of(address), self._clock.now_ms())
