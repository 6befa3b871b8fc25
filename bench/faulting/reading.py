"""What the gateways and the ledger hold after a fault, read for the verdict.

Episodes are read over HTTP, as anybody reads them; reward events and batches in SQL, where nobody has summed them up.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Sequence

from bench.faulting.load import POLICY
from bench.faulting.verdict import Accepted, Stored, StoredEpisode, Taken
from gateway.client import Client
from tracker.ledger import SqlLedger

READERS = 8
DROPPED = "dropped"


async def read_back(
    reader: Client, ledger: SqlLedger, run: str, episode_ids: Collection[str], trained: Sequence[Taken]
) -> Stored:
    """Everything of one run."""
    slots = asyncio.Semaphore(READERS)
    states = {episode["episode_id"]: str(episode["state"]) async for episode in reader.episodes(run)}
    known = [episode_id for episode_id in dict.fromkeys(episode_ids) if episode_id in states]
    episodes = await asyncio.gather(*(_episode(reader, slots, name, states[name]) for name in known))
    groups = {group["group_id"] async for group in reader.groups(run)}
    batches = [batch for batch in await ledger.list_batches(POLICY) if batch.state != DROPPED]
    return Stored(
        episodes=episodes,
        rewards=[reward for name in known for reward in await _rewards(ledger, name)],
        batches=[Taken(batch.batch_id, batch.group_ids) for batch in batches if groups & set(batch.group_ids)],
        trained=[batch for batch in trained if groups & set(batch.group_ids)],
        num_groups=len(groups),
    )


async def unsettled(reader: Client, run: str) -> int:
    """How many episodes of a run have not come to rest."""
    return sum([episode["state"] != "archived" async for episode in reader.episodes(run)])


async def untrained(reader: Client, run: str) -> int:
    """How many groups of a run wait for a trainer, or for their members."""
    return sum([group["state"] in ("open", "ready", "taken") async for group in reader.groups(run)])


async def _episode(reader: Client, slots: asyncio.Semaphore, episode_id: str, state: str) -> StoredEpisode:
    async with slots:
        samples = await reader.samples(episode_id)
        calls = (await reader.timeline(episode_id))["calls"]
    spans = Counter(span["call_id"] for sample in samples["samples"] for span in sample["spans"])
    return StoredEpisode(
        episode_id=episode_id,
        state=state,
        texts={call["call_id"]: (call["message"] or {}).get("content") or "" for call in calls},
        sampled=spans,
        excluded={entry["call_id"]: entry["reason"] for entry in samples["excluded"]},
    )


async def _rewards(ledger: SqlLedger, episode_id: str) -> list[Accepted]:
    events = await ledger.rewards(episode_id)
    return [Accepted(event.reward_id, json.loads(event.metadata)["nonce"]) for event in events]
