"""Groups in flight: what of a run a trainer still has to see, how old it is, and when that is enough.

The rule: a new round opens only while what is in flight can be trained before it would be too stale, which is while
fewer than (staleness + 1) steps' worth of groups are. Whoever takes a free place of an open round is always let in,
else groups could not fill. In flight are the groups that are ready or taken, and open rounds that will be: those that
are full, or have a member that has not ended. An open round that has passed the bound already is hopeless and counts no
more, so that no straggler blocks the door. Nothing gets staler without a trainer, so nobody is refused where no lease
is held. Implicit episodes take their place when they are first rewarded, so for them only what is full, ready or taken
counts: whoever plays one after the other is let in until groups wait for the trainer.

All of it is decided in the transaction that gives the place, under the lock of the run's row. Functions over a
connection; who waits for what is for gateway and trainer to say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, case, exists, func, select

from tracker import tables
from tracker.errors import TooManyRequests
from tracker.families import family_of
from tracker.offers import calls_policy
from tracker.rounds import num_free_places, task_digest
from tracker.sql import Database
from tracker.types import SERVED_STATES, EpisodeHead, EpisodeState, GroupState, InFlight, RunSettings

FIRST_RETRY_S: Final = 2
"""How soon to ask again where no two versions tell how long a step takes."""
LONGEST_RETRY_S: Final = 30
"""SDKs take a minute at most from a server."""
RECENT_GROUPS: Final = 64
"""How many of a run's groups tell which policies it calls."""
TOO_STALE: Final = "too_stale"
UNTRAINED: Final = (GroupState.OPEN, GroupState.READY, GroupState.TAKEN)
SHOWN: Final = ("group_id", "tenant", "run", "task", "round", "size", "state", "created_ms")


class InFlightGroups(Database):
    """What a trainer may have to wait for."""

    async def groups_in_flight(self, policy: str) -> list[InFlight]:
        """The groups of all runs that this policy's trainer has still to see, oldest first."""
        return await self.read(groups_in_flight, policy)


def refuse_if_full(connection: Connection, head: EpisodeHead, run: RunSettings, now_ms: int) -> None:
    """Raise `TooManyRequests` if this episode needs a new round and what is in flight is enough already.

    The caller holds the lock of the run's row.
    """
    trained = _leased_policies(connection, now_ms) if run.mode == "train" else ()
    if not trained or num_free_places(connection, head) > _num_before(connection, head):
        return
    for policy in trained:
        if head.policy not in (None, policy):
            continue
        groups = groups_in_flight(connection, policy, head.tenant, head.run)
        counted = [group for group in groups if _counts(group, head, run)]
        if is_enough([group.task for group in counted], head.task, run):
            raise _too_stale(counted, policy, run, _retry_after_s(connection, policy, now_ms))


def groups_in_flight(
    connection: Connection, policy: str, tenant: str | None = None, run: str | None = None
) -> list[InFlight]:
    """The groups that a policy's trainer has still to see, of one run or of all, oldest first.

    Of open ones, those that have members, in runs that call the policy as far as anybody knows.
    """
    groups, episodes = tables.groups, tables.episodes
    seated = and_(episodes.c.group_id == groups.c.group_id, episodes.c.place.is_not(None))
    num_live = func.sum(case((episodes.c.status.is_(None), 1), else_=0)).label("num_live")
    began_ms = func.min(episodes.c.created_ms).label("began_ms")
    num_seated = func.count(episodes.c.episode_id).label("num_seated")
    columns = [groups.c[name] for name in SHOWN]
    where = [] if tenant is None else [groups.c.tenant == tenant, groups.c.run == run]
    statement = (
        select(*columns, num_live, began_ms, num_seated)
        .select_from(groups.join(episodes, seated))
        .where(*where, groups.c.state.in_(UNTRAINED), _is_owed(policy))
        .group_by(*columns)
        .order_by(groups.c.created_ms, groups.c.group_id)
    )
    rows = connection.execute(statement).all()
    open_runs = {(row.tenant, row.run) for row in rows if row.state == GroupState.OPEN}
    others = {named for named in open_runs if not _may_call(connection, policy, *named)}
    rows = [row for row in rows if row.state != GroupState.OPEN or (row.tenant, row.run) not in others]
    activated = _activations(connection, policy, min((row.began_ms for row in rows), default=0))
    return [_in_flight(row, activated) for row in rows]


def _is_owed(policy: str) -> Any:
    """Open groups, whose calls nobody knows yet; else those with calls of the policy that it has not done with."""
    groups, shares = tables.groups, tables.batch_groups
    done = exists().where(
        shares.c.group_id == groups.c.group_id, shares.c.policy == policy, shares.c.state != GroupState.TAKEN
    )
    return (groups.c.state == GroupState.OPEN) | (calls_policy(policy) & ~done)


def _activations(connection: Connection, policy: str, since_ms: int) -> list[int]:
    """When versions became active, from a time on."""
    versions = tables.versions
    where = (versions.c.policy == policy, versions.c.state.in_(SERVED_STATES), versions.c.activated_ms >= since_ms)
    return list(connection.execute(select(versions.c.activated_ms).where(*where)).scalars())


def _in_flight(row: Row[*tuple[Any, ...]], activated: Iterable[int]) -> InFlight:
    return InFlight(
        group_id=row.group_id,
        tenant=row.tenant,
        run=row.run,
        task=row.task,
        round=row.round,
        size=row.size,
        state=GroupState(row.state),
        num_live=row.num_live,
        num_seated=row.num_seated,
        lag=sum(at_ms >= row.began_ms for at_ms in activated),
        created_ms=row.created_ms,
    )


def _num_before(connection: Connection, head: EpisodeHead) -> int:
    """How many open episodes will want a free place of this task before an implicit one does."""
    if not head.implicit:
        return 0
    episodes = tables.episodes
    where = (
        episodes.c.tenant == head.tenant,
        episodes.c.run == head.run,
        episodes.c.task_digest == task_digest(head.task),
        episodes.c.implicit.is_(True),
        episodes.c.group_id.is_(None),
        episodes.c.state == EpisodeState.OPEN,
    )
    return connection.execute(select(func.count()).select_from(episodes).where(*where)).scalar_one()


def _leased_policies(connection: Connection, now_ms: int) -> Sequence[str]:
    """The policies that have a trainer now."""
    leases = tables.trainer_leases
    statement = select(leases.c.policy).where(leases.c.holder != "", leases.c.expires_ms > now_ms)
    return connection.execute(statement.order_by(leases.c.policy)).scalars().all()


def _may_call(connection: Connection, policy: str, tenant: str, run: str) -> bool:
    """Whether a run calls this policy, as far as its newest groups tell; one that called none yet may."""
    groups, episodes, called = tables.groups, tables.episodes, tables.episode_policies
    recent = (
        select(groups.c.group_id)
        .where(groups.c.tenant == tenant, groups.c.run == run)
        .order_by(groups.c.created_ms.desc(), groups.c.group_id.desc())
        .limit(RECENT_GROUPS)
    )
    joined = called.join(episodes, called.c.episode_id == episodes.c.episode_id)
    statement = select(called.c.policy).select_from(joined).where(episodes.c.group_id.in_(recent)).distinct()
    found = set(connection.execute(statement).scalars())
    return not found or policy in found


def _counts(group: InFlight, head: EpisodeHead, run: RunSettings) -> bool:
    if group.state != GroupState.OPEN:
        return True
    will_be_ready = group.num_seated == group.size or (group.num_live > 0 and not head.implicit)
    return will_be_ready and group.lag <= run.staleness


def is_enough(tasks: Sequence[str], task: str, run: RunSettings) -> bool:
    """Whether groups of these tasks are as many as can be in flight before another of `task`.

    A family of a mixed run is never kept out by the groups of others, since a step may be waiting for it: it may have
    its share of the bound, and one more for what steps owe each other.

    >>> run = RunSettings(run="r", groups_per_step=2, staleness=1, families={"maths": 3, "code": 1})
    >>> [is_enough(["maths/1"] * 4, task, run) for task in ("maths/2", "code/2")]
    [True, False]
    """
    bound = (run.staleness + 1) * run.groups_per_step
    family = family_of(task, run.families)
    if len(tasks) < bound or family is None:
        return len(tasks) >= bound
    share = Fraction(run.families[family]) / sum(map(Fraction, run.families.values()))
    return sum(family_of(other, run.families) == family for other in tasks) > math.ceil(bound * share)


def _retry_after_s(connection: Connection, policy: str, now_ms: int) -> int:
    """Until the next version is due by the pace of the last two; where it is late, a quarter of that pace."""
    versions = tables.versions
    where = (versions.c.policy == policy, versions.c.activated_ms.is_not(None))
    statement = select(versions.c.activated_ms).where(*where).order_by(versions.c.activated_ms.desc()).limit(2)
    last = connection.execute(statement).scalars().all()
    if len(last) < 2:
        return FIRST_RETRY_S
    pace_ms = last[0] - last[1]
    return min(LONGEST_RETRY_S, max(1, math.ceil(max(last[0] + pace_ms - now_ms, pace_ms / 4) / 1000)))


def _too_stale(groups: Sequence[InFlight], policy: str, run: RunSettings, retry_after_s: int) -> TooManyRequests:
    counts = Counter(group.state for group in groups)
    places = f"{counts[GroupState.OPEN]} played, {counts[GroupState.READY]} ready, {counts[GroupState.TAKEN]} trained"
    steps = run.staleness + 1
    return TooManyRequests(
        f"Run {run.run!r} has {len(groups)} groups in flight ({places}), as many as the trainer of policy {policy!r} "
        f"takes in {steps} steps of {run.groups_per_step}: another would be too stale (staleness {run.staleness}). "
        f"Ask again when a step is done; until then play the other attempts of tasks that were begun, "
        f"{run.group_size} each.",
        retry_after_s=retry_after_s,
        code=TOO_STALE,
    )
