"""The whole ledger in one read: what waits, what is served, and how training goes.

Over indexes and small tables, so that it can be asked every few seconds. Who asks, how often, and what is made of it
is left to the gateway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from sqlalchemy import Connection, func, select

from tracker import tables
from tracker.overview import LastStep, Overview, PolicyOverview
from tracker.sql import Database
from tracker.types import EpisodeState


class Overviews(Database):
    """The ledger's part that is read for metrics."""

    async def overview(self) -> Overview:
        """Everything in one snapshot."""
        return await self.read(_overview)


def _overview(connection: Connection) -> Overview:
    episodes, groups = tables.episodes, tables.groups
    unfinished = [state for state in EpisodeState if state is not EpisodeState.ARCHIVED]
    counted = select(episodes.c.state, func.count()).where(episodes.c.state.in_(unfinished)).group_by(episodes.c.state)
    return Overview(
        episodes=_counts(connection.execute(counted).all()),
        groups=_counts(connection.execute(select(groups.c.state, func.count()).group_by(groups.c.state)).all()),
        policies=_policies(connection),
    )


def _policies(connection: Connection) -> tuple[PolicyOverview, ...]:
    policies, versions, batches, leases = tables.policies, tables.versions, tables.batches, tables.trainer_leases
    by_version = select(versions.c.policy, versions.c.state, func.count()).group_by(versions.c.policy, versions.c.state)
    by_batch = select(batches.c.policy, batches.c.state, func.count()).group_by(batches.c.policy, batches.c.state)
    of_versions = _nested(connection.execute(by_version).all())
    of_batches = _nested(connection.execute(by_batch).all())
    held = {row.policy: row.expires_ms for row in connection.execute(select(leases.c.policy, leases.c.expires_ms))}
    return tuple(
        PolicyOverview(
            policy=row.policy,
            active=row.active,
            versions=of_versions[row.policy],
            batches=of_batches[row.policy],
            last=_last_step(connection, row.policy),
            lease_ms=held.get(row.policy),
        )
        for row in connection.execute(select(policies).order_by(policies.c.policy)).all()
    )


def _last_step(connection: Connection, policy: str) -> LastStep | None:
    batches = tables.batches
    newest = (
        select(batches.c.step, batches.c.created_ms, batches.c.metrics)
        .where(batches.c.policy == policy, batches.c.state == "trained")
        .order_by(batches.c.epoch.desc(), batches.c.step.desc())
        .limit(1)
    )
    row = connection.execute(newest).first()
    if row is None:
        return None
    told: object = msgspec.json.decode(row.metrics)
    fields = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    gap = fields.get("gap_at_no_lag")
    return LastStep(
        step=row.step,
        taken_ms=row.created_ms,
        lag_mean=_number(fields.get("lag_mean")),
        lag_max=_number(fields.get("lag_max")),
        reward_mean=_number(fields.get("reward_mean")),
        gap_mean=_number(cast("dict[str, Any]", gap).get("mean")) if isinstance(gap, dict) else None,
    )


def _number(value: object) -> float | None:
    """A number as a trainer told it, if it told one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _counts(rows: Iterable[Any]) -> dict[str, int]:
    return {str(state): int(number) for state, number in rows}


def _nested(rows: Iterable[Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for policy, state, number in rows:
        found[str(policy)][str(state)] = int(number)
    return found
