"""An archived episode with everything that belongs to it, as one record. Pure; how it is read and stored is left to
`transfers.py`."""

from __future__ import annotations

from typing import Final

from tracker.errors import CorruptRecord
from tracker.evidence import Archived
from tracker.receipts import decode_receipts
from tracker.removal import Kept
from tracker.types import EpisodeRow, GroupState, Record, Reward, RunSettings, SkipReason

HEAD: Final = (
    "episode_id",
    "tenant",
    "run",
    "task",
    "group_id",
    "policy",
    "version",
    "created_ms",
    "ttl_ms",
    "metadata",
    "implicit",
    "key_id",
)
"""What of an episode's head means the same in every installation."""


class StoredTimeline(Record, frozen=True):
    """The archive of one episode as it lies in SQL."""

    episode_id: str
    tenant: str
    run: str
    blob: bytes
    digest: str
    receipts: bytes | None
    kept: int = Kept.ALL
    shredded: str = ""
    """Why there is nothing to be read of it, for people."""

    def opened(self) -> Archived:
        """Raises `CorruptRecord`."""
        if self.shredded:
            raise CorruptRecord(f"episode {self.episode_id}: {self.shredded}")
        return Archived.of(self.episode_id, self.blob, self.digest, self.receipts)

    def sealed(self) -> Archived:
        """What proves it, without its calls. Raises `CorruptRecord`."""
        known = () if self.receipts is None else decode_receipts(self.receipts)
        return Archived(episode_id=self.episode_id, chain=self.digest, calls=(), receipts=known)


class Standing(Record, frozen=True):
    """How an episode stood when its group was taken."""

    reward: float | None = None
    advantage: float | None = None
    member: bool = True
    why: str = ""


class GroupPlace(Record, frozen=True):
    """The group of an episode, and its place there."""

    group_id: str
    round: int
    size: int
    state: GroupState
    reason: SkipReason | None = None
    created_ms: int = 0
    place: int | None = None
    standing: Standing | None = None
    """`None` until the group was taken."""


class WholeEpisode(Record, frozen=True):
    """An archived episode with everything that belongs to it."""

    row: EpisodeRow
    run: RunSettings
    timeline: StoredTimeline
    rewards: tuple[Reward, ...] = ()
    group: GroupPlace | None = None
