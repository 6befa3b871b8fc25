"""How often each name did something within its window of time, in bounded memory: who does it too often can be slowed.

The window of a name begins when it is counted first, and the next one when it is counted first after that was over; by
a clock that was set back it is over too. Where there are too many names, the one that was counted longest ago is
forgotten. Pure.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Windows:
    """Counts by name."""

    def __init__(self, most: int, window_ms: int, max_names: int) -> None:
        self._most = most
        self._window_ms = window_ms
        self._max_names = max_names
        self._counted: dict[str, tuple[int, int]] = {}
        """name -> when its window began, and how many times since."""

    def __len__(self) -> int:
        return len(self._counted)

    def add(self, name: str, now_ms: int) -> bool:
        """Count one more; whether it is within the bound.

        >>> seen = Windows(most=2, window_ms=1_000, max_names=10)
        >>> [seen.add("a", now_ms) for now_ms in (0, 0, 999, 1_000)], seen.wait_ms("a", 1_300)
        ([True, True, False, True], 0)
        """
        began_ms, number = self._counted.get(name, (now_ms, 0))
        if not 0 <= now_ms - began_ms < self._window_ms:
            began_ms, number = now_ms, 0
        keep(self._counted, name, (began_ms, number + 1), self._max_names)
        return number < self._most

    def wait_ms(self, name: str, now_ms: int) -> int:
        """How long it is until one more is within the bound again; 0 where it is now."""
        began_ms, number = self._counted.get(name, (now_ms, 0))
        left_ms = began_ms + self._window_ms - now_ms
        return left_ms if number >= self._most and 0 < left_ms <= self._window_ms else 0


def keep(kept: dict[str, T], name: str, value: T, most: int) -> None:
    """Remember, and forget what was told longest ago where there are too many."""
    kept.pop(name, None)
    kept[name] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
