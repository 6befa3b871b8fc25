"""The steps of a policy in order, and the groups of a batch, as pages show them.

A step is told without its manifest and its credit, which are large and which a list or a curve does not show. Groups
and episodes are told to their own tenant only: a batch may be of several. What a batch is proven by is read by
`batch_reading.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, func, or_, select

from tracker import tables
from tracker.errors import BadRequest
from tracker.intervals import interval_of_sums
from tracker.members import CHUNK, read_groups
from tracker.overview import StepTold, VersionReward
from tracker.sql import Database
from tracker.types import Group

MAX_CURSOR_CHARS: Final = 200
MAX_COUNTED: Final = 30_000
"""Episodes that rewards are counted over at once: of the newest versions asked for, if there are more."""


class TrainingReading(Database):
    """What was trained, for whoever looks."""

    async def steps(self, policy: str, limit: int, cursor: str | None) -> tuple[list[StepTold], str | None]:
        """Newest step of the newest epoch first, dropped ones included; raises `BadRequest` for no cursor of ours."""
        return await self.read(_steps, policy, limit, cursor)

    async def lease_until(self, policy: str) -> int | None:
        """Until when a trainer holds the policy, in the past where it let go or was lost; `None` if none ever did."""
        return await self.read(_lease_until, policy)

    async def version_rewards(
        self, tenant: str, policy: str, versions: range, run: str | None = None
    ) -> dict[int, VersionReward]:
        """version -> what the tenant's archived episodes that were played with it to their end came to."""
        return await self.read(_version_rewards, tenant, policy, versions, run)

    async def groups_of_batch(self, tenant: str, batch_id: str) -> tuple[list[Group], int]:
        """The tenant's groups in a batch, in its order, with their members, and how many there are of others."""
        return await self.read(_groups_of_batch, tenant, batch_id)

    async def own_episodes(self, tenant: str, episode_ids: Collection[str]) -> frozenset[str]:
        """Those of these episodes that are the tenant's and were not deleted."""
        return await self.read(_own_episodes, tenant, list(episode_ids))


def _steps(connection: Connection, policy: str, limit: int, cursor: str | None) -> tuple[list[StepTold], str | None]:
    batches = tables.batches
    where = [batches.c.policy == policy, *([] if cursor is None else [_is_behind(cursor)])]
    order = (batches.c.epoch.desc(), batches.c.step.desc(), batches.c.batch_id.desc())
    # First only where they stand: a row's metrics lie behind its manifest, and are not read of those left out.
    places = select(batches.c.batch_id).where(*where).order_by(*order).limit(limit + 1)
    page = list(connection.execute(places).scalars())
    names = ("batch_id", "policy", "epoch", "step", "state", "version", "metrics", "created_ms")
    columns = [batches.c[name] for name in names]
    rows = connection.execute(select(*columns).where(batches.c.batch_id.in_(page[:limit])).order_by(*order)).all()
    num_groups = _num_groups(connection, page[:limit])
    told = [_told(row, num_groups.get(row.batch_id, 0)) for row in rows]
    return told, f"{told[-1].epoch}.{told[-1].step}.{told[-1].batch_id}" if len(page) > limit else None


def _is_behind(cursor: str) -> ColumnElement[bool]:
    """What comes after the page that ended with this step."""
    epoch, step, batch_id = [*cursor.split(".", 2), "", ""][:3]
    numbers = [part for part in (epoch, step) if part.isascii() and part.isdigit() and len(part) < 10]
    if len(numbers) < 2 or not batch_id or len(cursor) > MAX_CURSOR_CHARS:
        raise BadRequest("Pass next_cursor of the page before, unchanged.", param="cursor")
    batches, before, at = tables.batches, int(epoch), int(step)
    same_epoch = batches.c.epoch == before
    return or_(
        batches.c.epoch < before,
        and_(same_epoch, batches.c.step < at),
        and_(same_epoch, batches.c.step == at, batches.c.batch_id < batch_id),
    )


def _num_groups(connection: Connection, batch_ids: Sequence[str]) -> dict[str, int]:
    shares = tables.batch_groups
    statement = select(shares.c.batch_id, func.count()).where(shares.c.batch_id.in_(batch_ids))
    return {str(row[0]): int(row[1]) for row in connection.execute(statement.group_by(shares.c.batch_id))}


def _told(row: Row[Any], num_groups: int) -> StepTold:
    return StepTold(**dict(row._mapping), num_groups=num_groups)  # pyright: ignore[reportPrivateUsage]


def _lease_until(connection: Connection, policy: str) -> int | None:
    leases = tables.trainer_leases
    return connection.execute(select(leases.c.expires_ms).where(leases.c.policy == policy)).scalar()


def _version_rewards(
    connection: Connection, tenant: str, policy: str, versions: range, run: str | None
) -> dict[int, VersionReward]:
    kinds, pins, episodes = tables.call_kinds, tables.episode_policies, tables.episodes
    within = (kinds.c.policy == policy, kinds.c.version >= versions.start, kinds.c.version < versions.stop)
    newest_first = select(kinds.c.version, kinds.c.episode_id).where(*within).distinct()
    called = newest_first.order_by(kinds.c.version.desc(), kinds.c.episode_id).limit(MAX_COUNTED).subquery()
    pinned = and_(pins.c.episode_id == called.c.episode_id, pins.c.policy == policy, pins.c.version == called.c.version)
    found = called.join(pins, pinned).join(episodes, episodes.c.episode_id == called.c.episode_id)
    score = episodes.c.score
    counts = (func.count(), func.count(score), func.sum(score), func.sum(score * score))
    where = [episodes.c.tenant == tenant, episodes.c.deleted_ms.is_(None)]
    where += [] if run is None else [episodes.c.run == run]
    statement = select(called.c.version, *counts).select_from(found).where(*where).group_by(called.c.version)
    return {
        int(version): VersionReward(num_episodes=int(number), reward=interval_of_sums(int(scored), total, squares))
        for version, number, scored, total, squares in connection.execute(statement)
    }


def _groups_of_batch(connection: Connection, tenant: str, batch_id: str) -> tuple[list[Group], int]:
    groups, shares = tables.groups, tables.batch_groups
    joined = groups.join(shares, shares.c.group_id == groups.c.group_id)
    statement = select(groups).select_from(joined).where(shares.c.batch_id == batch_id).order_by(shares.c.position)
    rows = connection.execute(statement).all()
    own = [row for row in rows if row.tenant == tenant]
    return read_groups(connection, own, seated_only=True), len(rows) - len(own)


def _own_episodes(connection: Connection, tenant: str, episode_ids: Sequence[str]) -> frozenset[str]:
    episodes = tables.episodes
    statement = select(episodes.c.episode_id).where(episodes.c.tenant == tenant, episodes.c.deleted_ms.is_(None))
    found: set[str] = set()
    for start in range(0, len(episode_ids), CHUNK):
        named = episodes.c.episode_id.in_(episode_ids[start : start + CHUNK])
        found.update(connection.execute(statement.where(named)).scalars())
    return frozenset(found)
