"""Which arm of a trial a group or an episode gets. Pure.

The rule: the arm is a keyed hash of an id against the share, so that every gateway and every repeat finds the same one,
nobody can choose it, and what is on trial gets as much as it is to get. A group's arm is that of its id, and every
member has it. An implicit episode has no group until it is rewarded: its arm is that of its own id, and it then takes
its place in a round of that arm. What an arm is good for is left to the episode store, what came of it to `trials.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from tracker.types import Arm, EpisodeHead, Record

RANGE: Final = 2**64
ARMS: Final = tuple[Arm, ...]


class Draw(Record, frozen=True):
    """A trial that takes in new groups."""

    policy: str
    version: int
    share: float
    """From 0 to 1."""
    salt: str


def draw_arms(draws: Iterable[Draw], drawn_for: str) -> tuple[Arm, ...]:
    """The arm of a group, or of an implicit episode, in each of the trials, by policy.

    >>> draw = Draw(policy="solver", version=3, share=0.5, salt="a")
    >>> [draw_arms([draw], name)[0].is_canary for name in ("g-1", "g-2", "g-3", "g-4")]
    [True, False, True, False]
    """
    found = [
        Arm(
            policy=draw.policy,
            version=draw.version,
            is_canary=is_canary(draw.salt, drawn_for, draw.share),
            share=draw.share,
        )
        for draw in draws
    ]
    return tuple(sorted(found, key=lambda arm: arm.policy))


def is_canary(salt: str, drawn_for: str, share: float) -> bool:
    """Whether the hash of an id lies within the share."""
    digest = hashlib.blake2b(drawn_for.encode(), key=salt.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * RANGE


def canaries(head: EpisodeHead) -> dict[str, int]:
    """policy -> the version that an episode gets while that is on trial."""
    return {arm.policy: arm.version for arm in head.arms if arm.is_canary}


def pack_arms(arms: tuple[Arm, ...]) -> bytes | None:
    """As SQL holds them: equal arms are equal bytes, none are NULL."""
    return msgspec.json.encode(arms) if arms else None


def unpack_arms(packed: bytes | None) -> tuple[Arm, ...]:
    return () if packed is None else msgspec.json.decode(packed, type=ARMS)
