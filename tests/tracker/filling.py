"""Short ways to bring a ledger into the state that a test is about."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from tracker.ledger import SqlLedger
from tracker.types import Batch, CallCredit, EpisodeHead, Group, Reward

_numbers = itertools.count(1)


async def created(ledger: SqlLedger, episode_id: str, task: str = "t", **fields: object) -> EpisodeHead:
    head = EpisodeHead(episode_id=episode_id, task=task, **({"created_ms": 1_000_000} | fields))  # type: ignore[arg-type]
    return (await ledger.create_episode(head, None, ""))[0]


def reward(episode_id: str, value: float | None = 1.0, **fields: object) -> Reward:
    known: dict[str, object] = {"reward_id": f"reward-{next(_numbers)}", "seq": 0, "created_ms": 1_000_000}
    return Reward(episode_id=episode_id, value=value, **(known | fields))  # type: ignore[arg-type]


async def rewarded(ledger: SqlLedger, episode_id: str, value: float | None = 1.0, **fields: object) -> Reward:
    return (await ledger.add_reward("default", reward(episode_id, value, **fields), None, ""))[0]


async def archived(
    ledger: SqlLedger, episode_id: str, policies: Sequence[str] = ("p",), at_ms: int = 1_000_000
) -> bool:
    row = await ledger.get_episode("default", episode_id)
    versions = dict.fromkeys(policies, 0)
    row = msgspec.structs.replace(row, versions=versions, num_calls=3, num_samples=2, archived_ms=at_ms, ended_ms=at_ms)
    return await ledger.archive_episode(row, b"calls of " + episode_id.encode(), "digest")


async def ready_group(
    ledger: SqlLedger, task: str, values: Sequence[float | None], policies: Sequence[str] = ("p",)
) -> Group:
    """A group whose members have these rewards and called these policies; the run's group size must match."""
    ids = [f"{task}-{number}" for number in range(len(values))]
    for episode_id, value in zip(ids, values, strict=True):
        await created(ledger, episode_id, task)
        await rewarded(ledger, episode_id, value)
        await archived(ledger, episode_id, policies)
    return (await ledger.settle_groups(1_000_000 + 10_000_000))[0]


def batch(group: Group, fence: int, step: int = 1, **fields: object) -> Batch:
    credit = tuple(
        CallCredit(episode_id=member.episode_id, call_id=f"{member.episode_id}-call", advantage=0.25)
        for member in group.members
    )
    known: dict[str, object] = {"batch_id": f"batch-{step}", "policy": "p", "epoch": 0, "credit": credit}
    known["group_ids"] = (group.group_id,)
    return Batch(step=step, fence=fence, **(known | fields))  # type: ignore[arg-type]
