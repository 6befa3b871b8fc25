"""Groups as a whole: the lists of them, and the rules by which an open round becomes ready or is skipped.

A round is ready when all its places are held by archived episodes and each is scored or past the run's
`reward_grace_s` since its end. At `group_timeout_s` it is settled with what it has: ready with two scored members,
else skipped. Members that were not archived by then lose their place, so a ready round holds archived episodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, func, select

from tracker import tables
from tracker.credit import episode_reward
from tracker.episode_rows import next_cursor, page_after
from tracker.errors import BadRequest, NotFound
from tracker.members import RunCache, collected, episodes_in, read_groups, rewards_of
from tracker.registry import run_settings
from tracker.rounds import free_place, lock_group, policies_of, set_group, task_digest
from tracker.sql import Database
from tracker.types import EpisodeState, Group, GroupShare, GroupState, RunSettings, SkipReason

MIN_SCORED: Final = 2
"""How many members a round needs at its timeout: one cannot be compared."""


class Groups(Database):
    """Lists of groups, and their settling."""

    async def list_groups(
        self,
        tenant: str,
        *,
        run: str | None,
        task: str | None,
        limit: int,
        cursor: str | None,
        state: str | None = None,
    ) -> tuple[list[Group], str | None]:
        """Newest first, with members; their advantages are provisional until the group is taken. `BadRequest` on a
        state that is none."""
        where = [tables.groups.c.tenant == tenant]
        where += [] if run is None else [tables.groups.c.run == run]
        where += [] if task is None else [tables.groups.c.task_digest == task_digest(task)]
        where += [] if state is None else [_in_state(state)]
        return await self.read(_list, where, limit, cursor)

    async def get_group(self, tenant: str, group_id: str) -> Group:
        """One group with its members; raises `NotFound`."""
        return await self.read(_get, tenant, group_id)

    async def group_shares(self, group_ids: Sequence[str]) -> dict[str, list[GroupShare]]:
        """group -> what became of it for each policy that took or skipped it, by policy."""
        return await self.read(_shares, group_ids)

    async def settle_groups(self, now_ms: int) -> list[Group]:
        """Move open rounds to ready or skipped by the rules of the contract; returns those that moved."""
        moved: list[Group] = []
        for group_id in await self.read(_to_settle, now_ms):
            moved += await self.write(_settle, group_id, now_ms)
        return moved


def verdict(
    group: Row[Any], seats: Sequence[Row[Any]], scored: frozenset[str], run: RunSettings, now_ms: int
) -> tuple[GroupState, SkipReason | None]:
    """What a round becomes, from its episodes with a place and the ids of those that are scored."""
    archived = [seat for seat in seats if seat.state == EpisodeState.ARCHIVED]
    num_scored = sum(seat.episode_id in scored for seat in archived)
    grace_ms = run.reward_grace_s * 1000
    settled = [seat for seat in archived if seat.episode_id in scored or now_ms - (seat.ended_ms or 0) >= grace_ms]
    if len(settled) == group.size:
        return GroupState.READY, None
    if now_ms - group.created_ms < run.group_timeout_s * 1000:
        return GroupState.OPEN, None
    if num_scored >= min(MIN_SCORED, group.size):
        return GroupState.READY, None
    return GroupState.SKIPPED, SkipReason.TOO_FEW_SCORED if archived else SkipReason.EXPIRED


def _to_settle(connection: Connection, now_ms: int) -> list[str]:
    """Open rounds that are full of archived episodes or have waited long enough; which of them move is not said yet."""
    groups, episodes = tables.groups, tables.episodes
    done = and_(
        episodes.c.group_id == groups.c.group_id,
        episodes.c.place.is_not(None),
        episodes.c.state == EpisodeState.ARCHIVED,
    )
    columns = (groups.c.group_id, groups.c.tenant, groups.c.run, groups.c.size, groups.c.created_ms)
    statement = (
        select(*columns, func.count(episodes.c.episode_id).label("num_archived"))
        .select_from(groups.outerjoin(episodes, done))
        .where(groups.c.state == GroupState.OPEN)
        .group_by(*columns)
        .order_by(groups.c.created_ms, groups.c.group_id)
    )
    runs = RunCache(connection)

    def is_due(row: Row[*tuple[Any, ...]]) -> bool:
        timeout_ms = runs.get(row.tenant, row.run).group_timeout_s * 1000
        return row.num_archived == row.size or now_ms - row.created_ms >= timeout_ms

    return [row.group_id for row in connection.execute(statement) if is_due(row)]


def _settle(connection: Connection, group_id: str, now_ms: int) -> list[Group]:
    """Settle one round; the group if it moved."""
    group = lock_group(connection, group_id)
    if group.state != GroupState.OPEN:
        return []
    seats = [seat for seat in episodes_in(connection, group_id) if seat.place is not None]
    run = run_settings(connection, group.tenant, group.run)
    state, reason = verdict(group, seats, _scored(connection, seats, run), run, now_ms)
    if state == GroupState.OPEN:
        return []
    for seat in seats:
        if seat.state != EpisodeState.ARCHIVED:
            free_place(connection, seat.episode_id)
    if state == GroupState.READY and not policies_of(connection, group_id):
        state, reason = GroupState.SKIPPED, SkipReason.NO_IDS
    ready_ms = now_ms if state == GroupState.READY else None
    set_group(connection, group_id, state=state, reason=reason, ready_ms=ready_ms)
    return read_groups(connection, [lock_group(connection, group_id)])


def _scored(connection: Connection, seats: Sequence[Row[Any]], run: RunSettings) -> frozenset[str]:
    rewards = rewards_of(connection, [seat.episode_id for seat in seats])
    return frozenset(
        episode_id for episode_id, events in rewards.items() if episode_reward(events, run.reward_weights) is not None
    )


def _list(connection: Connection, where: list[Any], limit: int, cursor: str | None) -> tuple[list[Group], str | None]:
    groups = tables.groups
    statement = select(groups).where(*where, *page_after(cursor, groups.c.created_ms, groups.c.group_id))
    statement = statement.order_by(groups.c.created_ms.desc(), groups.c.group_id.desc()).limit(limit + 1)
    found = connection.execute(statement).all()
    page = read_groups(connection, found[:limit])
    more = len(found) > limit and bool(page)
    return page, next_cursor(page[-1].created_ms, page[-1].group_id) if more else None


def _in_state(state: str) -> ColumnElement[bool]:
    if state not in set(GroupState):
        raise BadRequest(f"state is one of {', '.join(GroupState)}, not {state!r}.", param="state")
    return tables.groups.c.state == state


def _get(connection: Connection, tenant: str, group_id: str) -> Group:
    groups = tables.groups
    found = connection.execute(select(groups).where(groups.c.group_id == group_id, groups.c.tenant == tenant)).all()
    if not found:
        raise NotFound(f"There is no group {group_id!r}.", param="group_id")
    return read_groups(connection, found)[0]


def _shares(connection: Connection, group_ids: Sequence[str]) -> dict[str, list[GroupShare]]:
    shares, batches = tables.batch_groups, tables.batches
    joined = shares.outerjoin(batches, batches.c.batch_id == shares.c.batch_id)
    statement = select(shares, batches.c.epoch, batches.c.step).select_from(joined).order_by(shares.c.policy)
    rows = collected(connection, statement, shares.c.group_id, group_ids)
    return {
        group_id: [
            GroupShare(
                policy=row.policy,
                batch_id=row.batch_id,
                state=GroupState(row.state),
                reason=None if row.reason is None else SkipReason(row.reason),
                epoch=row.epoch,
                step=row.step,
            )
            for row in found
        ]
        for group_id, found in rows.items()
    }
