"""What one process knows of episodes whose every call it stored itself: it need not ask Redis what they hold.

Usually all calls of an episode come to one gateway, one after the other. It then knows their block index as well as
Redis does, and a call is stored with one script instead of three. Whoever is not sure that no call is missing asks
Redis; and since copies are only compression, one that knows too little stores more bytes, never wrong ones. Bounded by
what it keeps, oldest episodes first. No I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from tracker.deltas import DIGEST_BYTES

MAX_ENTRIES: Final = 16_384
"""Of all episodes together, about 200 bytes each: what 200,000 new tokens need."""


class LocalIndex:
    """The block index and the stored bodies of the episodes this process served last."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max = max_entries
        self._num_entries = 0
        self._episodes: OrderedDict[str, Known] = OrderedDict()

    def known(self, episode_id: str, index: int) -> Known | None:
        """All that the episode holds before its `index`-th call; None unless this process stored all of it."""
        if index == 0:
            return Known()
        known = self._episodes.get(episode_id)
        return known if known is not None and known.num_calls == index else None

    def note(self, episode_id: str, position: int, entries: Iterable[bytes], bodies: Iterable[bytes]) -> None:
        """Take a call that was stored as the episode's `position`-th record; what was stored before must be known."""
        known = self._episodes.get(episode_id)
        if known is None:
            known = Known()
        if known.num_calls != position:  # somebody else stores calls of it too
            self.forget(episode_id)
            return
        self._episodes[episode_id] = known
        self._episodes.move_to_end(episode_id)
        before = known.num_entries
        known.take(position, entries, bodies)
        self._num_entries += known.num_entries - before
        while self._num_entries > self._max:
            oldest, _ = next(iter(self._episodes.items()))
            self.forget(oldest)

    def forget(self, episode_id: str) -> None:
        """Drop what is known of an episode."""
        known = self._episodes.pop(episode_id, None)
        if known is not None:
            self._num_entries -= known.num_entries


class Known:
    """What an episode holds."""

    __slots__ = ("bodies", "num_calls", "places")

    def __init__(self) -> None:
        self.num_calls = 0
        self.places: dict[bytes, bytes] = {}
        """digest -> `PLACE`, as in Redis."""
        self.bodies: set[bytes] = set()
        """Digests of the bodies that are stored."""

    @property
    def num_entries(self) -> int:
        return len(self.places) + len(self.bodies)

    def take(self, position: int, entries: Iterable[bytes], bodies: Iterable[bytes]) -> None:
        """Add what a stored record holds; entries are digest + `SPAN`."""
        place = position.to_bytes(4, "big")
        self.places.update((entry[:DIGEST_BYTES], place + entry[DIGEST_BYTES:]) for entry in entries)
        self.bodies.update(bodies)
        self.num_calls += 1
