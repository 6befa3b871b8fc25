"""Keys that nobody has: whoever sends many of them is slowed, and the database is hardly asked for them.

A key is known by its whole digest, here too. One that was found before is looked up whatever else comes from its
address, so that a stranger behind the same proxy does not lock it out; one that was not there is believed to be not
there for a while, and costs nothing. Only the rest can load the database, and it is bounded: so many different ones an
address in a minute, so many in a second altogether, so many look-ups at a time. Memory is bounded too; what is
forgotten for it can only be looked up once more. Keys are random beyond guessing: what this spares is the database.
Counted in this process. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from gateway.addresses import address_of
from gateway.windows import Windows, keep
from tracker.clock import Clock
from tracker.errors import TooManyRequests

MAX_OF_ADDRESS: Final = 20
"""Different unknown keys of one address in a minute."""
MAX_A_SECOND: Final = 100
"""Unknown keys of all addresses in a second."""
MAX_AT_ONCE: Final = 64
"""Look-ups of keys that were never seen, at a time."""
WINDOW_MS: Final = 60_000
UNKNOWN_MS: Final = 5_000
"""How long it is believed that there is no such key."""
MAX_KEPT: Final = 8_192
"""Digests and addresses that are remembered, each."""
CODE: Final = "too_many_unknown_keys"


class Guess:
    """One look-up of a key that was never seen; told how it went."""

    is_known: bool | None = None
    """`None` where nobody knows: the database did not answer."""


class Guesses:
    """What was found and what was not, and who asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, None] = {}
        self._unknown: dict[str, int] = {}
        """digest -> when it was not there."""
        self._of_all = Windows(MAX_A_SECOND, 1_000, max_names=1)
        self._of_address = Windows(MAX_OF_ADDRESS, WINDOW_MS, MAX_KEPT)
        self._num_looking = 0

    def is_known(self, digest: str) -> bool:
        """Whether a key of this digest was there at some time."""
        return digest in self._known

    def is_unknown(self, digest: str) -> bool:
        """Whether there was none a moment ago; by a clock that was set back, nobody knows."""
        seen_ms = self._unknown.get(digest)
        return seen_ms is not None and 0 <= self._clock.now_ms() - seen_ms < UNKNOWN_MS

    @contextmanager
    def looking(self, digest: str, address: str | None) -> Generator[Guess]:
        """Around the look-up of a key that was never seen; raises `TooManyRequests` where there were too many."""
        network = None if address is None else network_of(address)
        self._check(network)
        guess = Guess()
        self._num_looking += 1
        try:
            yield guess
        finally:
            self._num_looking -= 1
        if guess.is_known:
            keep(self._known, digest, None, MAX_KEPT)
            self._unknown.pop(digest, None)
        elif guess.is_known is False:
            self._count(digest, network)

    def _check(self, network: str | None) -> None:
        if self._num_looking >= MAX_AT_ONCE:
            raise _too_many("Too many keys that nobody has are tried", 1)
        for windows, name, whose in self._bounds(network):
            if wait_ms := windows.wait_ms(name, self._clock.now_ms()):
                raise _too_many(f"Too many keys that nobody has were tried {whose}", -(-wait_ms // 1000))

    def _count(self, digest: str, network: str | None) -> None:
        now_ms = self._clock.now_ms()
        keep(self._unknown, digest, now_ms, MAX_KEPT)
        for windows, name, _ in self._bounds(network):
            windows.add(name, now_ms)

    def _bounds(self, network: str | None) -> list[tuple[Windows, str, str]]:
        """What counts there, under which name, and whose that is."""
        of_all = (self._of_all, "", "in all")
        return [of_all] if network is None else [of_all, (self._of_address, network, "from this address")]


def network_of(address: str) -> str:
    """Whose address it is: the address, and the /64 of an IPv6 one, which is what one customer has.

    >>> network_of("192.0.2.1"), network_of("2001:db8::1"), network_of("2001:db8::2")
    ('192.0.2.1', '2001:db8::', '2001:db8::')
    """
    known = address_of(address)
    if isinstance(known, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(known) >> 64 << 64, 64)).network_address)
    return str(known or address)


def _too_many(told: str, wait_s: int) -> TooManyRequests:
    return TooManyRequests(f"{told}: try again in {wait_s} s.", retry_after_s=wait_s, code=CODE)
