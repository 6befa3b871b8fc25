"""One episode as its page reads it: like `gateway/story.py`, with an outline in the place of its calls.

The prompts of a long episode are never put together for a page (`tracker/outline.py`), and so nothing of an archive is
proven by looking at it: `check` does that, and takes as long as the episode is long.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Final

from gateway.dependencies import Services
from gateway.story import find_view, merged_events
from tracker.codec import decode_sketches
from tracker.credit import call_rewards, episode_reward
from tracker.errors import CorruptRecord, NotFound
from tracker.evidence import Fault, Sealed, episode_faults
from tracker.outline import Outline, outline, sketched
from tracker.receipts import chain, receipt_digest
from tracker.types import EpisodeRow, EpisodeState, EpisodeStatus, Event, Intent, Record, Reward, RunSettings

MAX_KEPT: Final = 4
MAX_KEPT_BYTES: Final = 2**20
"""Of an archive; spelled out it is many times as large."""


class Glance(Record, frozen=True):
    """What a page of an episode is made from."""

    row: EpisodeRow
    run: RunSettings
    state: EpisodeState
    status: EpisodeStatus | None
    versions: dict[str, int]
    told: Outline
    intents: tuple[Intent, ...]
    events: tuple[Event, ...]
    rewards: tuple[Reward, ...]
    receipts: Chain | None = None
    """`None` until it is sealed."""
    gone: str = ""
    """Why nothing can be read of its calls, for people; empty where they are there."""

    @property
    def reward(self) -> float | None:
        """The episode's effective reward, without those of its calls."""
        return episode_reward(self.rewards, self.run.reward_weights)

    @property
    def call_rewards(self) -> dict[str, float]:
        return call_rewards(self.rewards, self.run.reward_weights)


class Chain(Record, frozen=True):
    """What an episode was sealed with."""

    digest: str
    receipts: dict[str, str] | None
    """call_id -> digest of its receipt (hex); `None` where only the chain was stored."""
    is_closed: bool
    """Whether the receipts are those of the chain."""


class Checked(Record, frozen=True):
    """What came of comparing an episode's calls with its receipts."""

    num_calls: int
    faults: tuple[Fault, ...]


class Outlines:
    """Outlines of the archives that were looked at last: who reads one goes from part to part of it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], Outline] = OrderedDict()

    def of(self, stored: Sealed, run: RunSettings) -> Outline:
        """The outline of an archive; the same bytes have the same. Raises `CorruptRecord`."""
        key = stored.episode_id, hashlib.blake2b(stored.blob).digest()
        told = self._kept.pop(key, None) or outline(decode_sketches(stored.blob), run)
        if len(stored.blob) <= MAX_KEPT_BYTES:
            self._kept[key] = told
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return told


async def read_glance(services: Services, outlines: Outlines, tenant: str, episode_id: str) -> Glance:
    """Read an episode; raises `NotFound`, also where it was deleted."""
    row = await services.ledger.get_episode(tenant, episode_id)
    run = await services.ledger.get_run(tenant, row.head.run)
    rewards = tuple(await services.ledger.rewards(episode_id))
    view = await find_view(services, row)
    if view is not None:
        return Glance(
            row=row,
            run=run,
            state=view.state,
            status=view.status or row.status,
            versions=view.pins,
            told=await asyncio.to_thread(outline, sketched(view.calls), run),
            intents=view.intents,
            events=merged_events(row.events, view.events),
            rewards=rewards,
        )
    row = await services.ledger.get_episode(tenant, episode_id)  # it may have been archived meanwhile
    stored = await services.batches.sealed(episode_id)
    told, receipts, gone = await asyncio.to_thread(_opened, outlines, stored, run)
    return Glance(
        row=row,
        run=run,
        state=row.state,
        status=row.status,
        versions=row.versions,
        told=told,
        intents=(),
        events=row.events,
        rewards=rewards,
        receipts=receipts,
        gone=gone,
    )


async def check(services: Services, tenant: str, episode_id: str) -> Checked:
    """Compare every call of an archived episode with its receipt; raises `NotFound` where nothing is sealed."""
    row = await services.ledger.get_episode(tenant, episode_id)
    stored = await services.batches.sealed(episode_id)
    if stored is None:
        raise NotFound("An episode is sealed when it ends; this one is not yet.")
    if stored.shredded or row.removed:
        what = stored.shredded or f"{', '.join(row.removed)} were removed by retention"
        raise NotFound(f"It cannot be checked any more: {what}.")
    return await asyncio.to_thread(_checked, stored)


def _checked(stored: Sealed) -> Checked:
    try:
        archived = stored.opened()
    except CorruptRecord as error:
        return Checked(num_calls=0, faults=(Fault(what=error.message),))
    return Checked(num_calls=len(archived.calls), faults=tuple(dict.fromkeys(episode_faults(archived))))


def _opened(outlines: Outlines, stored: Sealed | None, run: RunSettings) -> tuple[Outline, Chain | None, str]:
    nothing = outline((), run)
    if stored is None:
        return nothing, None, ""
    sealed = _chain_of(stored)
    if stored.shredded:
        return nothing, sealed, stored.shredded
    try:
        return outlines.of(stored, run), sealed, ""
    except CorruptRecord as error:
        return nothing, sealed, error.message


def _chain_of(stored: Sealed) -> Chain:
    try:
        receipts = stored.stored_receipts()
    except CorruptRecord:
        return Chain(digest=stored.chain, receipts={}, is_closed=False)
    if receipts is None:
        return Chain(digest=stored.chain, receipts=None, is_closed=True)
    digests = [receipt_digest(receipt) for receipt in receipts]
    return Chain(
        digest=stored.chain,
        receipts={receipt.call_id: digest.hex() for receipt, digest in zip(receipts, digests, strict=True)},
        is_closed=chain(digests).hex() == stored.chain,
    )
