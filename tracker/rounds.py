"""Places in the rounds of a task, and what becomes of each policy's share of a group.

A round is open until it is settled; an episode takes the lowest free place of the oldest open round that has one,
else it opens the next round. Places are given under the lock of the run's row, and a group's row is locked before
anything is decided on it: always run, then group, then episode. A group's state past `ready` is derived from its
shares, never set beside them. Functions over a connection; who calls them when is left to the ledger's parts.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, and_, func, insert, select, update

from tracker import tables
from tracker.arms import draw_arms, pack_arms, unpack_arms
from tracker.sql import insert_new
from tracker.trial_rows import draws
from tracker.types import Arm, EpisodeHead, GroupState, RunSettings, SkipReason

DONE: Final = frozenset({GroupState.TRAINED, GroupState.SKIPPED})
"""States in which nothing more can happen to a group or to a share of it."""
DROPPED: Final = "dropped"
TAKEN: Final = "taken"


def task_digest(task: str) -> str:
    """What a task is looked up by; the text itself is never part of a key."""
    return hashlib.sha256(task.encode("utf-8", "surrogatepass")).hexdigest()


class Seat(NamedTuple):
    """What an episode gets of a round."""

    group_id: str
    place: int
    arms: tuple[Arm, ...]
    """Those of the group."""


def take_place(connection: Connection, head: EpisodeHead, run: RunSettings, now_ms: int) -> Seat:
    """The group and the place an episode gets. The caller holds the lock of the run's row.

    Members of a group have its arms. An implicit episode, which has played by the time it takes its place, has arms
    already, and gets a round of those; any other takes the arms of the round it gets.
    """
    while True:
        group_id = _first_with_room(connection, head)
        if group_id is None:
            return _open_round(connection, head, run, now_ms)
        group = lock_group(connection, group_id)
        place = _lowest_free(connection, group)
        if group.state == GroupState.OPEN and place is not None:
            return Seat(group_id, place, unpack_arms(group.arms))


def num_free_places(connection: Connection, head: EpisodeHead) -> int:
    """How many places are free in the open rounds of the episode's task."""
    groups, episodes = tables.groups, tables.episodes
    is_open = (*_rounds_of(head), groups.c.state == GroupState.OPEN)
    seated = groups.join(episodes, and_(episodes.c.group_id == groups.c.group_id, episodes.c.place.is_not(None)))
    num_places = select(func.coalesce(func.sum(groups.c.size), 0)).where(*is_open).scalar_subquery()
    num_taken = select(func.count()).select_from(seated).where(*is_open).scalar_subquery()
    return connection.execute(select(num_places - num_taken)).scalar_one()


def free_place(connection: Connection, episode_id: str) -> None:
    """The episode keeps its group's name and has no place in it any more."""
    episodes = tables.episodes
    connection.execute(update(episodes).where(episodes.c.episode_id == episode_id).values(place=None))


def lock_group(connection: Connection, group_id: str) -> Row[Any]:
    """The group's row, locked until the transaction ends."""
    statement = select(tables.groups).where(tables.groups.c.group_id == group_id).with_for_update()
    return connection.execute(statement).one()


def set_group(connection: Connection, group_id: str, **values: Any) -> None:
    connection.execute(update(tables.groups).where(tables.groups.c.group_id == group_id).values(values))


def policies_of(connection: Connection, group_id: str) -> set[str]:
    """The policies that members with a place have called."""
    called, episodes = tables.episode_policies, tables.episodes
    joined = called.join(episodes, called.c.episode_id == episodes.c.episode_id)
    where = (episodes.c.group_id == group_id, episodes.c.place.is_not(None))
    return set(connection.execute(select(called.c.policy).select_from(joined).where(*where).distinct()).scalars())


def settle_shares(connection: Connection, group_id: str) -> None:
    """Bring a group that was ready in line with its shares: trained or skipped once every policy's share is."""
    shares = tables.batch_groups
    statement = select(shares).where(shares.c.group_id == group_id).order_by(shares.c.position, shares.c.policy)
    found = {row.policy: row for row in connection.execute(statement)}
    states = {row.state for row in found.values()}
    if policies_of(connection, group_id) - found.keys() or GroupState.TAKEN in states:
        begun = states & {GroupState.TAKEN, GroupState.TRAINED}
        set_group(connection, group_id, state=GroupState.TAKEN if begun else GroupState.READY, reason=None)
    elif GroupState.TRAINED in states:
        set_group(connection, group_id, state=GroupState.TRAINED, reason=None)
    else:
        reason = next((row.reason for row in found.values()), SkipReason.NO_IDS)
        set_group(connection, group_id, state=GroupState.SKIPPED, reason=reason)


def end_batch(connection: Connection, batch_id: str, state: GroupState, reason: SkipReason | None) -> None:
    """Move the shares of a batch to trained or skipped, and their groups with them."""
    shares = tables.batch_groups
    where = shares.c.batch_id == batch_id
    group_ids = connection.execute(select(shares.c.group_id).where(where).order_by(shares.c.group_id)).scalars().all()
    for group_id in group_ids:
        lock_group(connection, group_id)
    connection.execute(update(shares).where(where).values(state=state, reason=reason))
    for group_id in group_ids:
        settle_shares(connection, group_id)


def expire_batches(connection: Connection, policy: str) -> None:
    """Drop what was taken for a policy and not trained yet; the caller holds the lock of the policy's row."""
    batches = tables.batches
    where = (batches.c.policy == policy, batches.c.state == TAKEN)
    for batch_id in connection.execute(select(batches.c.batch_id).where(*where)).scalars().all():
        connection.execute(update(batches).where(batches.c.batch_id == batch_id).values(state=DROPPED))
        end_batch(connection, batch_id, GroupState.SKIPPED, SkipReason.EXPIRED)


def withdraw_groups(connection: Connection, policy: str, version: int) -> None:
    """Skip what was played by versions of a policy after this one and was not taken yet; the caller holds the lock of
    the policy's row, and has dropped what was taken."""
    begun, episodes, groups, called = tables.trial_episodes, tables.episodes, tables.groups, tables.episode_policies
    on_trial = (
        select(groups.c.group_id)
        .select_from(
            begun.join(episodes, begun.c.episode_id == episodes.c.episode_id).join(
                groups, groups.c.group_id == episodes.c.group_id
            )
        )
        .where(
            begun.c.policy == policy,
            begun.c.version > version,
            begun.c.is_canary,
            groups.c.state == GroupState.OPEN,
        )
        .distinct()
    )
    for group_id in sorted(connection.execute(on_trial).scalars()):
        if lock_group(connection, group_id).state == GroupState.OPEN:
            set_group(connection, group_id, state=GroupState.SKIPPED, reason=SkipReason.WITHDRAWN)
    queued = (
        select(groups.c.group_id)
        .select_from(
            called.join(episodes, called.c.episode_id == episodes.c.episode_id).join(
                groups, groups.c.group_id == episodes.c.group_id
            )
        )
        .where(
            called.c.policy == policy,
            called.c.version > version,
            episodes.c.place.is_not(None),
            groups.c.state.in_((GroupState.READY, GroupState.TAKEN)),
        )
        .distinct()
    )
    for group_id in sorted(connection.execute(queued).scalars()):
        lock_group(connection, group_id)
        share = {"group_id": group_id, "policy": policy, "batch_id": None, "position": 0}
        share |= {"state": GroupState.SKIPPED, "reason": SkipReason.WITHDRAWN}
        if insert_new(connection, tables.batch_groups, share):
            settle_shares(connection, group_id)


def _first_with_room(connection: Connection, head: EpisodeHead) -> str | None:
    groups, episodes = tables.groups, tables.episodes
    seated = and_(episodes.c.group_id == groups.c.group_id, episodes.c.place.is_not(None))
    statement = (
        select(groups.c.group_id)
        .select_from(groups.outerjoin(episodes, seated))
        .where(*_rounds_of(head), groups.c.state == GroupState.OPEN, *_of_arms(head))
        .group_by(groups.c.group_id, groups.c.size, groups.c.round)
        .having(func.count(episodes.c.episode_id) < groups.c.size)
        .order_by(groups.c.round)
        .limit(1)
    )
    return connection.execute(statement).scalar_one_or_none()


def _lowest_free(connection: Connection, group: Row[Any]) -> int | None:
    episodes = tables.episodes
    statement = select(episodes.c.place).where(episodes.c.group_id == group.group_id, episodes.c.place.is_not(None))
    taken = set(connection.execute(statement).scalars())
    return next((place for place in range(group.size) if place not in taken), None)


def _of_arms(head: EpisodeHead) -> tuple[ColumnElement[bool], ...]:
    """Which rounds an episode may join, for the arms that it has played with."""
    if not head.implicit:
        return ()
    packed = pack_arms(head.arms)
    return (tables.groups.c.arms.is_(None) if packed is None else tables.groups.c.arms == packed,)


def _open_round(connection: Connection, head: EpisodeHead, run: RunSettings, now_ms: int) -> Seat:
    groups = tables.groups
    last = connection.execute(select(func.max(groups.c.round)).where(*_rounds_of(head))).scalar_one()
    number = 0 if last is None else last + 1
    group_id = _group_id(head, number)
    arms = head.arms if head.implicit else draw_arms(draws(connection, head.policy), group_id)
    values = {
        "group_id": group_id,
        "tenant": head.tenant,
        "run": head.run,
        "task": head.task,
        "task_digest": task_digest(head.task),
        "round": number,
        "size": run.group_size,
        "state": GroupState.OPEN,
        "created_ms": now_ms,
        "arms": pack_arms(arms),
    }
    connection.execute(insert(groups).values(values))
    return Seat(group_id, 0, arms)


def _rounds_of(head: EpisodeHead) -> tuple[Any, ...]:
    groups = tables.groups
    return (
        groups.c.tenant == head.tenant,
        groups.c.run == head.run,
        groups.c.task_digest == task_digest(head.task),
    )


def _group_id(head: EpisodeHead, number: int) -> str:
    named = msgspec.json.encode((head.tenant, head.run, task_digest(head.task), number))
    return f"grp-{hashlib.sha256(named).hexdigest()[:24]}"
