"""What a policy's trainer may take: ready groups that it has not taken, and what it took before, by task.

The rule: everything that is ready is offered, in the order in which it became ready; no backlog of one run or family
hides what another one has. Groups are listed by their heads alone, since there may be many; those that are chosen are
then read with their members. What is chosen is left to the trainer, the taking to `batches.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, exists, func, select

from tracker import tables
from tracker.members import group_of, read_groups
from tracker.sql import Database
from tracker.types import Group, GroupState

HELD = (GroupState.TAKEN, GroupState.TRAINED)


class Offers(Database):
    """Lists for a trainer to choose from."""

    async def ready_heads(self, policy: str) -> list[Group]:
        """Ready groups with calls of this policy not yet taken for it, in the order they became ready, without their
        members."""
        return await self.read(_ready_heads, policy)

    async def ready_groups(self, policy: str, group_ids: Sequence[str]) -> list[Group]:
        """Those of these groups that are ready for this policy, with their members, in the order they became ready."""
        return await self.read(_ready_groups, policy, group_ids)

    async def tasks_taken(self, policy: str, tenant: str, run: str) -> dict[str, int]:
        """task -> groups of the run that were taken for this policy and not dropped."""
        return await self.read(_tasks_taken, policy, tenant, run)


def calls_policy(policy: str) -> ColumnElement[bool]:
    """Whether a member of the group that has a place called this policy; known once the member is archived."""
    episodes, called = tables.episodes, tables.episode_policies
    return exists().where(
        episodes.c.group_id == tables.groups.c.group_id,
        episodes.c.place.is_not(None),
        called.c.episode_id == episodes.c.episode_id,
        called.c.policy == policy,
    )


def _is_offered(policy: str) -> tuple[ColumnElement[bool], ...]:
    groups, shares = tables.groups, tables.batch_groups
    taken = exists().where(shares.c.group_id == groups.c.group_id, shares.c.policy == policy)
    return groups.c.state.in_((GroupState.READY, GroupState.TAKEN)), calls_policy(policy), ~taken


def _in_order(connection: Connection, *where: ColumnElement[bool]) -> Sequence[Row[Any]]:
    groups = tables.groups
    statement = select(groups).where(*where).order_by(groups.c.ready_ms, groups.c.created_ms, groups.c.group_id)
    return connection.execute(statement).all()


def _ready_heads(connection: Connection, policy: str) -> list[Group]:
    return [group_of(row, ()) for row in _in_order(connection, *_is_offered(policy))]


def _ready_groups(connection: Connection, policy: str, group_ids: Sequence[str]) -> list[Group]:
    rows = _in_order(connection, *_is_offered(policy), tables.groups.c.group_id.in_(group_ids))
    return read_groups(connection, rows, seated_only=True)


def _tasks_taken(connection: Connection, policy: str, tenant: str, run: str) -> dict[str, int]:
    groups, shares = tables.groups, tables.batch_groups
    statement = (
        select(groups.c.task, func.count())
        .select_from(shares.join(groups, shares.c.group_id == groups.c.group_id))
        .where(shares.c.policy == policy, shares.c.state.in_(HELD), groups.c.tenant == tenant, groups.c.run == run)
        .group_by(groups.c.task)
    )
    return {task: count for task, count in connection.execute(statement)}
