"""Reward alarms as SQL holds them, and the newest episodes that they are found in. What is an alarm is `drift.py`'s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select

from tracker import tables
from tracker.credit import effective_reward, episode_reward
from tracker.drift import Alarm, AlarmKind, History, Point
from tracker.measures import Measures
from tracker.members import RunCache, rewards_of
from tracker.sql import Database
from tracker.types import Reward, RunSettings

RUNS: Final = 5
"""A policy's newest episodes are read for this many runs' windows."""
Name = tuple[str, str, str]


class Alarms(Database):
    """What is amiss, as it was found last."""

    async def histories(self, limit: int) -> list[History]:
        """By tenant, run and policy: the newest archived episodes that trained runs have, oldest first."""
        return await self.read(_histories, limit)

    async def put_alarms(self, alarms: Sequence[Alarm], at_ms: int) -> None:
        """These are raised, all others are over. One that was raised before keeps the time at which it was."""
        await self.write(_put_alarms, alarms, at_ms)

    async def list_alarms(self, tenant: str | None = None) -> list[Alarm]:
        """Those of a tenant, or of all, the newest first."""
        return await self.read(_list_alarms, tenant)


def _histories(connection: Connection, limit: int) -> list[History]:
    measures, episodes = tables.measures, tables.episodes
    found: defaultdict[Name, list[Row[*tuple[Any, ...]]]] = defaultdict(list)
    for policy in connection.execute(select(tables.policies.c.policy)).scalars().all():
        statement = (
            select(episodes.c.tenant, episodes.c.run, measures.c.policy, measures.c.episode_id, measures.c.numbers)
            .select_from(measures.join(episodes, episodes.c.episode_id == measures.c.episode_id))
            .where(measures.c.policy == policy)
            .order_by(measures.c.archived_ms.desc(), measures.c.episode_id.desc())
            .limit(RUNS * limit)
        )
        for row in connection.execute(statement).all():
            rows = found[row.tenant, row.run, row.policy]
            if len(rows) < limit:
                rows.append(row)
    runs = RunCache(connection)
    trained = {name: rows for name, rows in found.items() if runs.get(*name[:2]).mode == "train"}
    rewards = rewards_of(connection, [row.episode_id for rows in trained.values() for row in rows])
    return [
        History(
            tenant=name[0],
            run=name[1],
            policy=name[2],
            points=tuple(_point(row, rewards.get(row.episode_id, ()), runs.get(*name[:2])) for row in reversed(rows)),
        )
        for name, rows in trained.items()
    ]


def _point(row: Row[Any], rewards: Sequence[Reward], run: RunSettings) -> Point:
    measured = msgspec.json.decode(row.numbers, type=Measures)
    judges: dict[str, float] = {}
    for name, weight in run.reward_weights.items():
        if weight == 0:
            given = [event for event in rewards if event.name == name and event.call_id is None]
            value = effective_reward(given, {})
            judges |= {} if value is None else {name: value}
    return Point(
        reward=episode_reward(rewards, run.reward_weights),
        judges=judges,
        num_tokens=measured.num_tokens / measured.num_choices if measured.num_choices else None,
        refusals=measured.share("num_refusals"),
        repeated=measured.share("num_repeated"),
    )


def _put_alarms(connection: Connection, alarms: Sequence[Alarm], at_ms: int) -> None:
    table = tables.alarms
    before = {(row.tenant, row.run, row.policy, row.kind): row.raised_ms for row in connection.execute(select(table))}
    connection.execute(delete(table))
    for alarm in alarms:
        name = (alarm.tenant, alarm.run, alarm.policy, alarm.kind.value)
        values = {"tenant": alarm.tenant, "run": alarm.run, "policy": alarm.policy, "kind": alarm.kind}
        values |= {"raised_ms": before.get(name, at_ms), "detail": alarm.detail}
        connection.execute(insert(table).values(values | {"numbers": msgspec.json.encode(alarm.numbers)}))


def _list_alarms(connection: Connection, tenant: str | None) -> list[Alarm]:
    table = tables.alarms
    where = [] if tenant is None else [table.c.tenant == tenant]
    statement = (
        select(table).where(*where).order_by(table.c.raised_ms.desc(), table.c.run, table.c.policy, table.c.kind)
    )
    return [
        Alarm(
            tenant=row.tenant,
            run=row.run,
            policy=row.policy,
            kind=AlarmKind(row.kind),
            detail=row.detail,
            numbers=msgspec.json.decode(row.numbers, type=dict[str, float]),
            raised_ms=row.raised_ms,
        )
        for row in connection.execute(statement)
    ]
