"""What joins a call to an implicit episode: claims, what is noted for later ones, and the protocol that holds both.

A call that names no episode *claims* one: by the session it says it belongs to, by the attempt that it repeats, or by
the answers of this gateway that its conversation holds. Every call of an implicit episode that is recorded leaves
*notes* for the claims that come after it. Claim and note are one step each for all gateways at once, and outlive any of
them. Only digests are held, never text. What the digests are of is for the gateway to say.
"""

from __future__ import annotations

from typing import Final, Protocol

from tracker.types import CallState, Record

UNDELIVERED: Final = frozenset({CallState.FAILED, CallState.ABORTED})
"""How an attempt ended whose answer the agent did not get."""
PENDING_MS: Final = 60_000
"""How long an episode that was claimed may take to be created."""


class Claim(Record, frozen=True):
    """What a call that names no episode says of itself."""

    scope: bytes
    """Digest of tenant, key and task: nothing outside of it is ever found."""
    proposed: str
    """The id of the episode that the call opens if it joins none."""
    attempt: str
    """Names this attempt; never used again."""
    body_digest: str
    now_ms: int
    retry: int = 0
    """The SDK's retry count: above 0, the call joins the episode of an attempt with the same body."""
    session: bytes | None = None
    """Digest of the session that the call says it belongs to."""
    traces: tuple[bytes, ...] = ()
    """Digests by which answers of its conversation are found, those of the last one first."""
    avoided: str = ""
    """An episode that is known to take no call any more, whatever the store says of it."""


class Claimed(Record, frozen=True):
    """What a claim got."""

    episode_id: str
    """`proposed`, or one that others claimed."""
    is_open: bool = False
    """Whether it is open already; else whoever got it creates it."""
    role: str | None = None
    """The role of the call whose answer this one goes on from, where it goes on from one of the same episode."""


class Note(Record, frozen=True):
    """What a recorded call of an implicit episode leaves for later claims."""

    scope: bytes
    attempt: str
    answers: tuple[bytes, ...] = ()
    """Digests by which its answers are found, if it was completed: each as a whole after all that stands before it, and
    by its tool calls' ids."""
    role: str = "main"


class Claims(Protocol):
    """Implicit episodes as calls find them. Everything here has a time to live."""

    async def claim(self, claim: Claim) -> Claimed:
        """The episode of a call that names none, in one step. The first that fits decides:

        the open episode of its session, else it becomes that session's; for a retry, the open episode of an earlier
        attempt with the same body that none has retried yet: the oldest that failed, else the only one in flight, else
        the only one that was answered (of several nobody can tell which it is, so they stay real); the last trace that
        is known, and among its answers in open episodes the oldest of those that were gone on from least; `proposed`.
        An episode is open for a claim until it ended, or was idle for the time it was opened with. Raises
        `Unavailable`.
        """
        ...

    async def end_idle(self, episode_id: str, now_ms: int) -> bool:
        """Open -> finishing with status `ok` if it is implicit and was idle for its time without a call in flight.

        Raises `NotFound` or `Gone` if the store does not hold it.
        """
        ...
