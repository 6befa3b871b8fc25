"""Whole episodes out of SQL and into it: what export reads, and how an episode of another installation is brought here.

An episode is read with everything that belongs to it as of one moment: its row, the settings of its run, its rewards,
its archive and how it stood in its group. It is brought in by one transaction, once: an id that is here already is left
as it is, and compared by whoever asked. Nothing that was brought in is trained here: its group is done, whatever it was
elsewhere. Whether an archive is what its receipts say is checked before (`evidence.py`); files are left to the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict
from sqlalchemy import Connection, Row, insert, select

from tracker import tables
from tracker.audit import record_act
from tracker.batch_reading import timelines_of
from tracker.clock import Clock
from tracker.episode_rows import COUNTERS, episode_rows, row_of
from tracker.errors import Conflict, Gone
from tracker.finding import put_kinds
from tracker.members import RunCache, collected, rewards_of
from tracker.registry import adopt_run
from tracker.removal import Kept
from tracker.rounds import DONE, task_digest
from tracker.sql import Database, insert_new
from tracker.types import (
    Act,
    EpisodeHead,
    EpisodeState,
    GroupState,
    Reward,
    SkipReason,
)
from tracker.vault import Vault
from tracker.wholes import HEAD, GroupPlace, Standing, StoredTimeline, WholeEpisode


class Transfers(Database):
    """Episodes as a whole."""

    _clock: Clock
    _vault: Vault

    async def whole_episodes(self, tenant: str, episode_ids: Sequence[str]) -> list[WholeEpisode]:
        """Those of these episodes that are archived, in this order; an id that is none of the tenant's is left out."""
        return await self.read(_whole, tenant, episode_ids, self._vault)

    async def rewards_of_episodes(self, episode_ids: Sequence[str]) -> dict[str, list[Reward]]:
        """episode -> its reward events and those of its calls, by `seq`."""
        return await self.read(rewards_of, episode_ids)

    async def bring_episode(self, whole: WholeEpisode, act: Act | None = None) -> bool:
        """Store an episode as it was elsewhere, in the tenant and the run that its row names; False if the id is here.

        `Conflict` if the run is here with other settings, its group goes on here, or the id is another tenant's;
        `Gone` if the episode was deleted here."""
        return await self.write(bring, whole, self._clock.now_ms(), self._vault, act)


def _whole(connection: Connection, tenant: str, episode_ids: Sequence[str], vault: Vault) -> list[WholeEpisode]:
    episodes = tables.episodes
    where = (episodes.c.tenant == tenant, episodes.c.state == EpisodeState.ARCHIVED, episodes.c.deleted_ms.is_(None))
    rows = collected(connection, select(episodes).where(*where), episodes.c.episode_id, episode_ids)
    found = [rows[episode_id][0] for episode_id in dict.fromkeys(episode_ids) if episode_id in rows]
    ids = [row.episode_id for row in found]
    timelines = {stored.episode_id: stored for stored in timelines_of(connection, ids, vault)}
    rewards, groups, keys = rewards_of(connection, ids), _groups(connection, found), _keys(connection, ids)
    runs = RunCache(connection)
    return [
        WholeEpisode(
            row=msgspec.structs.replace(told, key_ids=keys.get(told.head.episode_id, ())),
            run=runs.get(tenant, told.head.run),
            timeline=timelines[told.head.episode_id],
            rewards=tuple(rewards.get(told.head.episode_id, ())),
            group=groups.get(told.head.episode_id),
        )
        for told in episode_rows(connection, found)
        if told.head.episode_id in timelines
    ]


def _keys(connection: Connection, episode_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    table = tables.episode_keys
    rows = collected(connection, select(table).order_by(table.c.key_id), table.c.episode_id, episode_ids)
    return {episode_id: tuple(row.key_id for row in found) for episode_id, found in rows.items()}


def _groups(connection: Connection, rows: Sequence[Row[Any]]) -> dict[str, GroupPlace]:
    groups, standings = tables.groups, tables.standings
    group_ids = sorted({row.group_id for row in rows if row.group_id is not None})
    known = collected(connection, select(groups), groups.c.group_id, group_ids)
    ids = [row.episode_id for row in rows]
    stood = collected(connection, select(standings), standings.c.episode_id, ids)
    return {
        row.episode_id: _place(known[row.group_id][0], row, stood.get(row.episode_id, []))
        for row in rows
        if row.group_id in known
    }


def _place(group: Row[Any], episode: Row[Any], stood: Sequence[Row[Any]]) -> GroupPlace:
    frozen = next((row for row in stood if row.group_id == group.group_id), None)
    return GroupPlace(
        group_id=group.group_id,
        round=group.round,
        size=group.size,
        state=GroupState(group.state),
        reason=None if group.reason is None else SkipReason(group.reason),
        created_ms=group.created_ms,
        place=episode.place,
        standing=None
        if frozen is None
        else Standing(reward=frozen.reward, advantage=frozen.advantage, member=frozen.member, why=frozen.why),
    )


def bring(connection: Connection, whole: WholeEpisode, now_ms: int, vault: Vault, act: Act | None = None) -> bool:
    """Store an episode in this transaction; False if its id is here."""
    head = whole.row.head
    if _is_here(connection, head):
        return False
    adopt_run(connection, head.tenant, whole.run, now_ms)
    if whole.group is not None:
        _bring_group(connection, head, whole.group)
    row = connection.execute(insert(tables.episodes).values(_values(whole)).returning(tables.episodes)).one()
    _bring_timeline(connection, row, whole.timeline, vault)
    _bring_parts(connection, whole)
    record_act(connection, act)
    return True


def _is_here(connection: Connection, head: EpisodeHead) -> bool:
    known = row_of(connection, head.episode_id)
    if known is None:
        return False
    if known.tenant != head.tenant:
        raise Conflict(f"The episode id {head.episode_id!r} is taken.", param="episode_id")
    if known.deleted_ms is not None:
        raise Gone(f"Episode {head.episode_id!r} was deleted here; its id is never used again.", code="episode_deleted")
    return True


def _values(whole: WholeEpisode) -> dict[str, Any]:
    row, group = whole.row, whole.group
    return {name: getattr(row.head, name) for name in HEAD} | {
        "task_digest": task_digest(row.head.task),
        "group_id": None if group is None else group.group_id,
        "place": None if group is None else group.place,
        "state": EpisodeState.ARCHIVED,
        "status": row.status,
        "ended_ms": row.ended_ms,
        "archived_ms": row.archived_ms,
        "kept": int(Kept.ALL),
        **{name: getattr(row, name) for name in COUNTERS},
        **({} if row.spent is None else asdict(row.spent)),
    }


def _bring_group(connection: Connection, head: EpisodeHead, group: GroupPlace) -> None:
    """Its group, done; `Conflict` if there is one that is not the same, or that goes on here."""
    groups = tables.groups
    named = {"tenant": head.tenant, "run": head.run, "task_digest": task_digest(head.task)}
    was_trained = group.state == GroupState.TRAINED
    values = {
        **named,
        "group_id": group.group_id,
        "task": head.task,
        "round": _free_round(connection, named, group),
        "size": group.size,
        "state": GroupState.TRAINED if was_trained else GroupState.SKIPPED,
        "reason": None if was_trained else group.reason or SkipReason.EXPIRED,
        "created_ms": group.created_ms,
    }
    if insert_new(connection, groups, values):
        return
    stored = connection.execute(select(groups).where(groups.c.group_id == group.group_id).with_for_update()).one()
    told = f"Episode {head.episode_id}: its group {group.group_id}"
    if any(getattr(stored, name) != value for name, value in named.items()) or stored.size != group.size:
        raise Conflict(f"{told} is another one here; import into another run.", param="run")
    if stored.state not in DONE:
        raise Conflict(f"{told} is {stored.state} here and goes on; import into another run.", param="run")
    if group.place is not None and _is_seat_taken(connection, group):
        raise Conflict(f"{told} has another episode in its place here; import into another run.", param="run")


def _is_seat_taken(connection: Connection, group: GroupPlace) -> bool:
    episodes = tables.episodes
    where = (episodes.c.group_id == group.group_id, episodes.c.place == group.place)
    return connection.execute(select(episodes.c.episode_id).where(*where)).one_or_none() is not None


def _free_round(connection: Connection, named: dict[str, str], group: GroupPlace) -> int:
    """The round it was, or the next that is free: another tenant's groups have other ids for the same rounds."""
    groups = tables.groups
    where = [groups.c[name] == value for name, value in named.items()]
    taken = {
        row.round: row.group_id for row in connection.execute(select(groups.c.round, groups.c.group_id).where(*where))
    }
    return group.round if taken.get(group.round, group.group_id) == group.group_id else max(taken) + 1


def _bring_timeline(connection: Connection, row: Row[Any], timeline: StoredTimeline, vault: Vault) -> None:
    values = {"episode_id": row.episode_id, "digest": timeline.digest, "receipts": timeline.receipts}
    blob = vault.sealed(connection, row, timeline.blob, timeline.digest)
    connection.execute(insert(tables.timelines).values({**values, "blob": blob}))


def _bring_parts(connection: Connection, whole: WholeEpisode) -> None:
    row, named = whole.row, {"episode_id": whole.row.head.episode_id}
    for policy, version in row.versions.items():
        connection.execute(insert(tables.episode_policies).values({**named, "policy": policy, "version": version}))
    for key_id in row.key_ids:
        connection.execute(insert(tables.episode_keys).values({**named, "key_id": key_id}))
    put_kinds(connection, row.head.episode_id, row.kinds)
    for event in row.events:
        connection.execute(insert(tables.episode_events).values({**named, **asdict(event)}))
    for reward in sorted(whole.rewards, key=lambda reward: reward.seq):
        values = asdict(reward)
        del values["seq"]
        connection.execute(insert(tables.rewards).values(values))
    if whole.group is not None and whole.group.standing is not None:
        stood = {"group_id": whole.group.group_id, **named, **asdict(whole.group.standing)}
        connection.execute(insert(tables.standings).values(stood))
