"""The reward ledger: events are appended and never changed; what they amount to is `credit.py`'s.

An event that can no longer change what is trained is stored with `late`: its group was taken, trained or skipped, or
its episode has no place in a group. Events of one episode get their `seq` under the lock of its row, so the order of
`seq` is the order in which they were committed. A final one commits the end of its episode in the same transaction.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select

from tracker import tables
from tracker.arms import unpack_arms
from tracker.episode_rows import claim, commit_end, find_episode, head_of, lock_episode, set_episode
from tracker.episodes import add_event
from tracker.errors import Conflict, NotFound, Unprocessable
from tracker.members import PLACELESS, reward_of, rewards_of
from tracker.registry import lock_run
from tracker.removal import Kept
from tracker.rounds import take_place
from tracker.sql import Database
from tracker.trial_rows import any_rolled_back
from tracker.types import EpisodeStatus, Event, GroupState, Reward

CLOSED = frozenset({GroupState.TAKEN, GroupState.TRAINED, GroupState.SKIPPED})
"""States of a group whose credit no reward can change any more."""


class Rewards(Database):
    """Reward events."""

    async def add_reward(
        self, tenant: str, reward: Reward, idempotency_key: str | None, body_digest: str
    ) -> tuple[Reward, bool]:
        """Append (`seq` and `late` are given here); returns the stored event and whether it is new. A final one also
        commits the end of its episode (status ok) unless it ended already. Same key, other digest: `Conflict`."""
        if reward.value is not None and not math.isfinite(reward.value):
            raise Unprocessable("A reward is a finite number, or null for not scored.", param="reward")
        return await self.write(_add, tenant, reward, idempotency_key, body_digest)

    async def rewards(self, episode_id: str) -> list[Reward]:
        """All events of the episode and its calls, by `seq`."""
        return await self.read(_rewards, episode_id)


def _add(connection: Connection, tenant: str, reward: Reward, key: str | None, body_digest: str) -> tuple[Reward, bool]:
    if key is not None:
        before = claim(connection, tenant, "reward", key, (body_digest, reward.reward_id))
        if before is not None:
            return _stored(connection, before), False
    find_episode(connection, tenant, reward.episode_id)
    _give_place(connection, tenant, reward)
    locked = lock_episode(connection, reward.episode_id)
    if key is None and _find(connection, reward.reward_id) is not None:
        return _repeated(connection, reward), False
    stored = _append(connection, reward, _is_late(connection, *locked))
    if stored.final and locked[0].status is None:
        commit_end(connection, locked, EpisodeStatus.OK, reward.created_ms)
    return stored, True


def _give_place(connection: Connection, tenant: str, reward: Reward) -> None:
    """An implicit episode takes its place in a group when it is first rewarded."""
    row = find_episode(connection, tenant, reward.episode_id)
    if not row.implicit or row.group_id is not None or _is_placeless(connection, row):
        return
    run = lock_run(connection, tenant, row.run, reward.created_ms)
    row = find_episode(connection, tenant, reward.episode_id)
    if run.mode == "train" and row.group_id is None:
        seat = take_place(connection, head_of(row), run, reward.created_ms)
        set_episode(connection, row.episode_id, group_id=seat.group_id, place=seat.place)


def _is_late(connection: Connection, episode: Row[Any], group: Row[Any] | None) -> bool:
    """Whether this reward comes too late to be trained. Episodes of an eval run have no group and are never late."""
    if group is None:
        return episode.implicit and _is_placeless(connection, episode)
    return group.state in CLOSED or episode.place is None


def _is_placeless(connection: Connection, episode: Row[Any]) -> bool:
    """Whether an episode without a group takes no place any more: it failed, its tokens are gone, or it got a version
    that was rolled back since."""
    if episode.status in PLACELESS or not episode.kept & Kept.TOKENS:
        return True
    return any_rolled_back(connection, unpack_arms(episode.arms))


def _append(connection: Connection, reward: Reward, late: bool) -> Reward:
    values = msgspec.structs.asdict(reward) | {"late": late}
    del values["seq"]
    row = connection.execute(insert(tables.rewards).values(values).returning(tables.rewards)).one()
    if late:
        event = Event(at_ms=reward.created_ms, kind="late_reward", detail=reward.reward_id)
        add_event(connection, reward.episode_id, event)
    return reward_of(row)


def _find(connection: Connection, reward_id: str) -> Reward | None:
    rewards = tables.rewards
    row = connection.execute(select(rewards).where(rewards.c.reward_id == reward_id)).one_or_none()
    return None if row is None else reward_of(row)


def _stored(connection: Connection, reward_id: str) -> Reward:
    found = _find(connection, reward_id)
    if found is None:
        raise NotFound("The episode that this reward was given to was deleted.", param="episode_id")
    return found


def _repeated(connection: Connection, reward: Reward) -> Reward:
    """The stored event of this id; `Conflict` if it is another one."""
    stored = _stored(connection, reward.reward_id)
    if msgspec.structs.replace(reward, seq=stored.seq, late=stored.late) != stored:
        raise Conflict(f"The reward id {reward.reward_id!r} is taken.", param="reward_id")
    return stored


def _rewards(connection: Connection, episode_id: str) -> list[Reward]:
    return rewards_of(connection, [episode_id]).get(episode_id, [])
