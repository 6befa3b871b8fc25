"""How episodes and groups stand, read from SQL: rewards, members and their advantages.

A group's standing is computed from the reward events each time it is read, until it is taken; from then on the
standing that was frozen with the batch is shown, whatever arrives later. The arithmetic is `credit.py`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, select

from tracker import tables
from tracker.arms import unpack_arms
from tracker.credit import episode_reward, member_standing
from tracker.exclusion import DROP
from tracker.registry import run_settings
from tracker.types import (
    EpisodeState,
    EpisodeStatus,
    Group,
    GroupState,
    Member,
    Reward,
    RunSettings,
    SkipReason,
)

CHUNK: Final = 1000
"""How many ids one statement may name."""
PLACELESS: Final = frozenset({EpisodeStatus.INFRA_ERROR, EpisodeStatus.CANCELLED})
"""Statuses that free a place while the round is open."""
_COUNTED: Final = ("num_calls", "num_excluded", "num_truncated")
NO_PLACE: Final = "expired"
"""Why an episode that was not done when its round was settled does not count."""


class RunCache:
    """The settings of runs as one transaction sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seen: dict[tuple[str, str], RunSettings] = {}

    def get(self, tenant: str, run: str) -> RunSettings:
        """The settings of a run, read at most once."""
        if (tenant, run) not in self._seen:
            self._seen[tenant, run] = run_settings(self._connection, tenant, run)
        return self._seen[tenant, run]


def collected(
    connection: Connection, statement: Select[Any], column: ColumnElement[str], ids: Sequence[str]
) -> dict[str, list[Row[Any]]]:
    """The rows of a statement about these ids, gathered by the column that holds the id."""
    found: defaultdict[str, list[Row[Any]]] = defaultdict(list)
    for start in range(0, len(ids), CHUNK):
        for row in connection.execute(statement.where(column.in_(ids[start : start + CHUNK]))):
            found[row._mapping[column]].append(row)  # pyright: ignore[reportPrivateUsage]
    return found


def rewards_of(connection: Connection, episode_ids: Sequence[str]) -> dict[str, list[Reward]]:
    """episode -> its reward events and those of its calls, by `seq`."""
    rewards = tables.rewards
    rows = collected(connection, select(rewards).order_by(rewards.c.seq), rewards.c.episode_id, episode_ids)
    return {episode_id: [reward_of(row) for row in found] for episode_id, found in rows.items()}


def reward_of(row: Row[Any]) -> Reward:
    fields = dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
    fields["value"] = None if row.value is None else float(row.value)  # SQLite hands a whole number back as an int
    return Reward(**fields)


def read_groups(connection: Connection, rows: Sequence[Row[Any]], *, seated_only: bool = False) -> list[Group]:
    """Groups with their members. `seated_only` leaves out those that lost their place."""
    group_ids = [row.group_id for row in rows]
    seats = _episodes_in(connection, group_ids)
    rewards = rewards_of(connection, [seat.episode_id for found in seats.values() for seat in found])
    frozen = _frozen(connection, group_ids)
    runs = RunCache(connection)
    groups: list[Group] = []
    for row in rows:
        here = [seat for seat in seats.get(row.group_id, ()) if not seated_only or seat.place is not None]
        run = runs.get(row.tenant, row.run)
        groups.append(group_of(row, standing(here, rewards, run, frozen.get(row.group_id, {}))))
    return groups


def standing(
    seats: Iterable[Row[Any]],
    rewards: Mapping[str, Sequence[Reward]],
    run: RunSettings,
    frozen: Mapping[str, Member],
) -> list[Member]:
    """How the episodes of one group stand: frozen where it was taken, else by their rewards so far."""
    members = {seat.episode_id: _member(seat, rewards.get(seat.episode_id, ()), run) for seat in seats}
    seated = [member for member in members.values() if member.member]
    if frozen:
        current = [_with(member, frozen[member.episode_id]) for member in seated if member.episode_id in frozen]
    else:
        current = list(member_standing(seated, run.credit))
    return list((members | {member.episode_id: member for member in current}).values())


def _with(member: Member, frozen: Member) -> Member:
    """The member as it stood when the group was taken, in the state it is in now."""
    return Member(
        episode_id=member.episode_id,
        status=member.status,
        state=member.state,
        reward=frozen.reward,
        advantage=frozen.advantage,
        member=frozen.member,
        why=frozen.why,
        truncated=member.truncated,
    )


def _member(seat: Row[Any], rewards: Sequence[Reward], run: RunSettings) -> Member:
    status = None if seat.status is None else EpisodeStatus(seat.status)
    return Member(
        episode_id=seat.episode_id,
        status=status,
        state=EpisodeState(seat.state),
        reward=episode_reward(rewards, run.reward_weights),
        member=seat.place is not None,
        why="" if seat.place is not None else _why_placeless(status),
        truncated=run.truncated == DROP and seat.num_truncated > 0 and seat.num_excluded == seat.num_calls,
    )


def _why_placeless(status: EpisodeStatus | None) -> str:
    return status.value if status is not None and status in PLACELESS else NO_PLACE


def _episodes_in(connection: Connection, group_ids: Sequence[str]) -> dict[str, list[Row[Any]]]:
    episodes = tables.episodes
    names = ("group_id", "episode_id", "status", "state", "place", "ended_ms", *_COUNTED)
    statement = select(*(episodes.c[name] for name in names)).order_by(episodes.c.created_ms, episodes.c.episode_id)
    return collected(connection, statement, episodes.c.group_id, group_ids)


def episodes_in(connection: Connection, group_id: str) -> list[Row[Any]]:
    """The episodes of one group, those that lost their place included."""
    return _episodes_in(connection, [group_id]).get(group_id, [])


def _frozen(connection: Connection, group_ids: Sequence[str]) -> dict[str, dict[str, Member]]:
    table = tables.standings
    rows = collected(connection, select(table), table.c.group_id, group_ids)
    return {group_id: {row.episode_id: _frozen_member(row) for row in found} for group_id, found in rows.items()}


def _frozen_member(row: Row[Any]) -> Member:
    return Member(episode_id=row.episode_id, reward=row.reward, advantage=row.advantage, member=row.member, why=row.why)


def group_of(row: Row[Any], members: Sequence[Member]) -> Group:
    """A row of `groups` with the standing of its members, as far as they were read."""
    return Group(
        group_id=row.group_id,
        tenant=row.tenant,
        run=row.run,
        task=row.task,
        round=row.round,
        size=row.size,
        state=GroupState(row.state),
        reason=None if row.reason is None else SkipReason(row.reason),
        members=tuple(members),
        created_ms=row.created_ms,
        arms=unpack_arms(row.arms),
    )
