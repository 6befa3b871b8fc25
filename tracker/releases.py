"""Releases as SQL holds them: trials from their start to their end, shadows, and the list of what was decided.

The rule: releases only go forward. A version goes on trial once, newer than the stable one; a trial ends by promotion,
by rollback, or because a newer version took its place, and its state never leaves its end. Whoever decides does so in
one transaction under the lock of the policy's row, together with the event that tells of it: of two gateways that come
to the same end at once one does it, and the other finds it done. What a trial amounts to is `trials.py`'s.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from tracker import tables
from tracker.audit import before_of
from tracker.clock import Clock
from tracker.credit import episode_reward
from tracker.errors import Conflict
from tracker.expecting import expected
from tracker.measures import Measures
from tracker.members import RunCache, rewards_of
from tracker.sql import Database, insert_new
from tracker.trial_rows import UNDECIDED, find_trial, note_release, set_trial, trial_of, trials_in
from tracker.trials import NOT_TRIED, OPEN, ReleaseEvent, Seen, Shadow, Tally, Trial, TrialState
from tracker.types import EpisodeState, EpisodeStatus, GroupState, Policy, VersionState
from tracker.versions import activate, check_epoch, check_usable, ensure_policy, lock_policy, roll_back

SCORED: Final = (EpisodeStatus.OK, EpisodeStatus.FAILED)
"""Statuses of episodes that say something of the version that played them."""
MAX_SEEN: Final = 2_000
"""Episodes of a trial that are looked at: the first. `hold` could let it go on for ever."""


class Releases(Database):
    """Trials and shadows."""

    _clock: Clock

    async def open_trials(self) -> list[Trial]:
        """Those that run or are paused, of all policies."""
        return await self.read(_open_trials)

    async def list_trials(self, policy: str) -> list[Trial]:
        """Newest version first."""
        return await self.read(_list_trials, policy)

    async def find_trial(self, policy: str, version: int) -> Trial | None:
        return await self.read(find_trial, policy, version)

    async def queue_trial(self, policy: str, version: int, epoch: int, share: float, event: ReleaseEvent) -> Trial:
        """Have a version wait for its turn; one that has a trial keeps it."""
        return await self.write(_queue, (policy, version, epoch), share, event)

    async def start_trial(self, policy: str, version: int, epoch: int, share: float, event: ReleaseEvent) -> Trial:
        """The version, which engines serve, is on trial. It waits if another is; older ones that wait are done with.

        `Conflict` unless `epoch` is the policy's and the version is newer than the active one.
        """
        return await self.write(_start, (policy, version, epoch), share, event)

    async def change_trial(self, policy: str, event: ReleaseEvent, **values: Any) -> Trial:
        """Set the state (running, paused) or the share of the trial that goes on; `Conflict` if there is none."""
        return await self.write(_change, policy, event, values)

    async def promote(self, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
        """The version gets all traffic; `None` if its trial has ended already."""
        return await self.write(_promote, policy, version, event)

    async def withdraw_trial(self, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
        """Roll back to the stable version; `None` if the trial has ended already."""
        return await self.write(_withdraw, policy, version, event)

    async def trial_episodes(self, trial: Trial) -> list[Seen]:
        """What is known of the archived episodes of a trial that got what their arm says, in the order in which they
        were archived."""
        return await self.read(_seen, trial)

    async def trial_counts(self, policy: str, version: int) -> dict[str, int]:
        """How many episodes were begun: `stable`, `canary`."""
        return await self.read(_counts, policy, version)

    async def list_releases(self, policy: str, limit: int, cursor: str | None) -> tuple[list[ReleaseEvent], str | None]:
        """What became of the versions of a policy, newest first."""
        return await self.read(_list_releases, policy, limit, before_of(cursor))

    async def set_shadow(self, policy: str, shadow: Shadow | None, event: ReleaseEvent) -> None:
        """Have a version get copies of calls, in place of any other; `None`: nobody does."""
        await self.write(_set_shadow, policy, shadow, event)

    async def list_shadows(self) -> list[Shadow]:
        return await self.read(_list_shadows)

    async def add_tally(self, policy: str, version: int, against: int, numbers: Mapping[str, float]) -> None:
        """Add to the sums of a comparison. Not safe to repeat."""
        await self.write(_add_tally, (policy, version, against), dict(numbers))

    async def list_tallies(self, policy: str) -> list[Tally]:
        """Newest version first."""
        return await self.read(_list_tallies, policy)


def _open_trials(connection: Connection) -> list[Trial]:
    trials = tables.trials
    statement = select(trials).where(trials.c.state.in_(OPEN)).order_by(trials.c.policy)
    return [trial_of(row) for row in connection.execute(statement)]


def _list_trials(connection: Connection, policy: str) -> list[Trial]:
    trials = tables.trials
    statement = select(trials).where(trials.c.policy == policy).order_by(trials.c.version.desc())
    return [trial_of(row) for row in connection.execute(statement)]


def _queue(connection: Connection, named: tuple[str, int, int], share: float, event: ReleaseEvent) -> Trial:
    policy, version, epoch = named
    row = lock_policy(connection, policy)
    check_epoch(row, epoch)
    return _entered(connection, row, version, (share, event.at_ms), event)


def _entered(connection: Connection, row: Row[Any], version: int, how: tuple[float, int], event: ReleaseEvent) -> Trial:
    """The trial of a version, waiting where it is new."""
    share, now_ms = how
    fresh = Trial(
        policy=row.policy,
        version=version,
        epoch=row.epoch,
        stable=row.active,
        state=TrialState.WAITING,
        share=share,
        salt=secrets.token_hex(16),
        created_ms=now_ms,
    )
    if insert_new(connection, tables.trials, msgspec.structs.asdict(fresh)):
        note_release(connection, msgspec.structs.replace(event, kind="waiting"))
        return fresh
    found = find_trial(connection, row.policy, version)
    assert found is not None
    return found


def _start(connection: Connection, named: tuple[str, int, int], share: float, event: ReleaseEvent) -> Trial:
    policy, version, epoch = named
    row = lock_policy(connection, policy)
    check_epoch(row, epoch)
    check_usable(connection, policy, version)
    if version <= row.active:
        told = f"Version {row.active} of {policy!r} is active: trials are for newer ones; roll back to go to {version}."
        raise Conflict(told, param="version")
    trial = _entered(connection, row, version, (share, event.at_ms), event)
    if trial.state in OPEN or trials_in(connection, policy, OPEN):
        return trial
    _supersede(connection, policy, version, event.at_ms)
    versions = tables.versions
    where = (versions.c.policy == policy, versions.c.version == version)
    first_ms = func.coalesce(versions.c.activated_ms, event.at_ms)
    connection.execute(update(versions).where(*where).values(state=VersionState.ACTIVE, activated_ms=first_ms))
    started = {"state": TrialState.RUNNING, "stable": row.active, "epoch": row.epoch, "share": share}
    set_trial(connection, policy, version, **started, started_ms=event.at_ms, ended_ms=None)
    note_release(connection, msgspec.structs.replace(event, kind="started"))
    return msgspec.structs.replace(trial, **started, started_ms=event.at_ms, ended_ms=None)


def _supersede(connection: Connection, policy: str, version: int, now_ms: int) -> None:
    """Older versions that waited get no turn any more."""
    versions = tables.versions
    for trial in trials_in(connection, policy, [TrialState.WAITING]):
        if trial.version < version:
            set_trial(connection, policy, trial.version, state=TrialState.SUPERSEDED, ended_ms=now_ms)
            where = (versions.c.policy == policy, versions.c.version == trial.version)
            detail = f"{NOT_TRIED}: version {version} was newer when its turn came"
            never = versions.c.activated_ms.is_(None)
            connection.execute(update(versions).where(*where, never).values(state=VersionState.FAILED, detail=detail))


def _change(connection: Connection, policy: str, event: ReleaseEvent, values: Mapping[str, Any]) -> Trial:
    lock_policy(connection, policy)
    found = trials_in(connection, policy, OPEN)
    if not found:
        raise Conflict(f"No version of {policy!r} is on trial; POST /v1/policies/{policy}/canary puts one there.")
    trial = found[0]
    set_trial(connection, policy, trial.version, **values)
    note_release(connection, msgspec.structs.replace(event, version=trial.version))
    return msgspec.structs.replace(trial, **values)


def _promote(connection: Connection, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
    row = lock_policy(connection, policy)
    trial = find_trial(connection, policy, version)
    if trial is None or trial.state not in UNDECIDED:
        return None
    set_trial(connection, policy, version, state=TrialState.PROMOTED, ended_ms=event.at_ms)
    activate(connection, policy, version, row.epoch, event.at_ms)
    note_release(connection, event)
    return Policy(policy=policy, epoch=row.epoch, active=version)


def _withdraw(connection: Connection, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
    row = lock_policy(connection, policy)
    trial = find_trial(connection, policy, version)
    if trial is None or trial.state not in UNDECIDED:
        return None
    gone_to = roll_back(connection, policy, row.active, event.at_ms)
    note_release(connection, event)
    return gone_to


def _seen(connection: Connection, trial: Trial) -> list[Seen]:
    begun, episodes, measures = tables.trial_episodes, tables.episodes, tables.measures
    joined = begun.join(episodes, episodes.c.episode_id == begun.c.episode_id).join(
        measures, and_(measures.c.episode_id == begun.c.episode_id, measures.c.policy == begun.c.policy)
    )
    got = or_(
        and_(begun.c.is_canary, measures.c.version == trial.version),
        and_(~begun.c.is_canary, measures.c.version == trial.stable),
    )
    columns = [episodes.c[name] for name in ("episode_id", "tenant", "run", "task_digest", "group_id")]
    statement = (
        select(*columns, begun.c.is_canary, begun.c.share, measures.c.numbers, tables.groups.c.state)
        .select_from(joined.outerjoin(tables.groups, tables.groups.c.group_id == episodes.c.group_id))
        .where(
            begun.c.policy == trial.policy,
            begun.c.version == trial.version,
            episodes.c.state == EpisodeState.ARCHIVED,
            episodes.c.status.in_(SCORED),
            episodes.c.deleted_ms.is_(None),
            got,
        )
        .order_by(episodes.c.archived_ms, episodes.c.episode_id)
        .limit(MAX_SEEN)
    )
    rows = connection.execute(statement).all()
    rewards = rewards_of(connection, [row.episode_id for row in rows])
    runs = RunCache(connection)
    before = expected(connection, trial, rows)
    sizes = Counter(row.group_id for row in rows if row.state not in (None, GroupState.OPEN))
    return [
        Seen(
            is_canary=row.is_canary,
            share=row.share,
            reward=episode_reward(rewards.get(row.episode_id, ()), run.reward_weights),
            measures=msgspec.json.decode(row.numbers, type=Measures),
            group_id=row.group_id,
            group_size=sizes[row.group_id],
            task_mean=known.mean,
            num_before=known.num_before,
            num_attempts=run.group_size,
            likeness=known.likeness,
        )
        for row in rows
        for run, known in [(runs.get(row.tenant, row.run), before(row))]
    ]


def _counts(connection: Connection, policy: str, version: int) -> dict[str, int]:
    begun = tables.trial_episodes
    where = (begun.c.policy == policy, begun.c.version == version)
    statement = select(begun.c.is_canary, func.count()).where(*where).group_by(begun.c.is_canary)
    found = {bool(is_canary): number for is_canary, number in connection.execute(statement)}
    return {"stable": found.get(False, 0), "canary": found.get(True, 0)}


def _list_releases(
    connection: Connection, policy: str, limit: int, before: int | None
) -> tuple[list[ReleaseEvent], str | None]:
    events = tables.release_events
    where = [events.c.policy == policy, *([] if before is None else [events.c.seq < before])]
    rows = connection.execute(select(events).where(*where).order_by(events.c.seq.desc()).limit(limit + 1)).all()
    found = [ReleaseEvent(**dict(row._mapping)) for row in rows[:limit]]  # pyright: ignore[reportPrivateUsage]
    return found, str(found[-1].seq) if len(rows) > limit and found else None


def _set_shadow(connection: Connection, policy: str, shadow: Shadow | None, event: ReleaseEvent) -> None:
    ensure_policy(connection, policy)
    lock_policy(connection, policy)
    connection.execute(delete(tables.shadows).where(tables.shadows.c.policy == policy))
    if shadow is not None:
        check_usable(connection, policy, shadow.version)
        connection.execute(insert(tables.shadows).values(msgspec.structs.asdict(shadow)))
    note_release(connection, event)


def _list_shadows(connection: Connection) -> list[Shadow]:
    rows = connection.execute(select(tables.shadows).order_by(tables.shadows.c.policy)).all()
    return [Shadow(policy=row.policy, version=row.version, share=row.share) for row in rows]


def _add_tally(connection: Connection, named: tuple[str, int, int], numbers: Mapping[str, float]) -> None:
    policy, version, against = named
    lock_policy(connection, policy)
    tallies = tables.shadow_tallies
    where = (tallies.c.policy == policy, tallies.c.version == version, tallies.c.against == against)
    key = {"policy": policy, "version": version, "against": against}
    if insert_new(connection, tallies, key | {"numbers": msgspec.json.encode(numbers)}):
        return
    stored = connection.execute(select(tallies.c.numbers).where(*where)).scalar_one()
    before = msgspec.json.decode(stored, type=dict[str, float])
    summed = {name: before.get(name, 0.0) + numbers.get(name, 0.0) for name in before.keys() | numbers.keys()}
    connection.execute(update(tallies).where(*where).values(numbers=msgspec.json.encode(summed)))


def _list_tallies(connection: Connection, policy: str) -> list[Tally]:
    tallies = tables.shadow_tallies
    statement = select(tallies).where(tallies.c.policy == policy)
    statement = statement.order_by(tallies.c.version.desc(), tallies.c.against.desc())
    return [
        Tally(
            policy=row.policy,
            version=row.version,
            against=row.against,
            numbers=msgspec.json.decode(row.numbers, type=dict[str, float]),
        )
        for row in connection.execute(statement)
    ]
