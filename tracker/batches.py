"""The trainer's side of SQL: who trains a policy, what was taken for a step, and what became of it.

Every write carries the fence of the policy's lease and checks it in its own transaction, with the lease's row locked:
a trainer that was replaced cannot change anything. A group is taken once for each policy, a step of an epoch is taken
once, and the credit of a batch is frozen in the transaction that takes it. What there is to take is told by
`offers.py`; what a batch trains on is left to the trainer's feed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from tracker import tables
from tracker.errors import Conflict, LeaseLost, NotFound
from tracker.members import read_groups
from tracker.rounds import DROPPED, TAKEN, end_batch, lock_group, settle_shares
from tracker.sql import Database, insert_new
from tracker.types import Batch, CallCredit, GroupState, SkipReason
from tracker.versions import ensure_policy, lock_policy

TRAINED = "trained"
CREDIT = tuple[CallCredit, ...]


class BatchTaking(Database):
    """Lease, take, commit."""

    async def take_lease(self, policy: str, holder: str, now_ms: int, ttl_ms: int) -> int | None:
        """The fence (rises with every new holder), or None while another holder's lease has not expired. The same
        holder renews and keeps its fence."""
        return await self.write(_take_lease, policy, holder, now_ms, now_ms + ttl_ms)

    async def release_lease(self, policy: str, fence: int) -> None:
        """Let another trainer take over at once; a lease lost before is left as it is."""
        await self.write(_release_lease, policy, fence)

    async def take(self, batch: Batch, num_rewards: int | None = None) -> Batch:
        """One transaction: the batch, its groups (unique by group and policy), the frozen credit; groups -> taken.

        Members get their final advantage: the mean over their calls in `credit`. A step is unique in its epoch: the
        same batch id again is a no-op, another raises `Conflict`, as does an epoch that is not the policy's.
        `num_rewards` is how many events of the members the credit was computed from: if there are others by now,
        `Conflict` with code `rewards_moved`, so that no reward is neither used nor late.
        """
        return await self.write(_take, batch, num_rewards)

    async def skip_group(self, group_id: str, reason: SkipReason, policy: str, fence: int) -> None:
        """This policy's share of the group is not trained."""
        await self.write(_skip_group, group_id, reason, policy, fence)

    async def last_batches(self, policy: str, limit: int) -> list[Batch]:
        """Newest step first, of the newest epoch first."""
        return await self.read(_last_batches, policy, limit)

    async def mark_trained(self, batch: Batch) -> None:
        """State, version, manifest and metrics of `batch`; its groups -> trained once every policy's share is."""
        await self.write(_mark_trained, batch)

    async def drop_batch(self, batch_id: str, reason: SkipReason, fence: int, detail: str = "") -> None:
        """Its shares are skipped for this reason; its step may be taken again. `detail` is kept with its metrics."""
        await self.write(_drop_batch, batch_id, reason, fence, detail)

    async def num_groups(self, states: Sequence[GroupState]) -> int:
        """How many groups of all tenants are in one of these states."""
        return await self.read(_num_groups, states)


def check_fence(connection: Connection, policy: str, fence: int) -> None:
    """Lock the policy's lease; raises `LeaseLost` unless this fence holds it."""
    leases = tables.trainer_leases
    statement = select(leases.c.fence, leases.c.holder).where(leases.c.policy == policy).with_for_update()
    row = connection.execute(statement).one_or_none()
    if row is None or row.fence != fence or not row.holder:
        raise LeaseLost(f"Another trainer holds policy {policy!r} now; fence {fence} is void.")


def _take_lease(connection: Connection, policy: str, holder: str, now_ms: int, expires_ms: int) -> int | None:
    leases = tables.trainer_leases
    ensure_policy(connection, policy)
    fresh = {"policy": policy, "holder": holder, "fence": 1, "expires_ms": expires_ms}
    if insert_new(connection, leases, fresh):
        return 1
    row = connection.execute(select(leases).where(leases.c.policy == policy).with_for_update()).one()
    if row.holder != holder and row.holder and row.expires_ms > now_ms:
        return None
    fence = row.fence if row.holder == holder else row.fence + 1
    values = {"holder": holder, "fence": fence, "expires_ms": expires_ms}
    connection.execute(update(leases).where(leases.c.policy == policy).values(values))
    return fence


def _release_lease(connection: Connection, policy: str, fence: int) -> None:
    leases = tables.trainer_leases
    statement = update(leases).where(leases.c.policy == policy, leases.c.fence == fence)
    connection.execute(statement.values(holder="", expires_ms=0))


def _take(connection: Connection, batch: Batch, num_rewards: int | None) -> Batch:
    check_fence(connection, batch.policy, batch.fence)
    stored = _find(connection, batch.batch_id)
    if stored is not None:
        return _same(stored, batch)
    _check_step(connection, batch)
    values = _values(batch) | {"state": TAKEN}
    connection.execute(insert(tables.batches).values(values))
    for group_id in sorted(batch.group_ids):
        _take_share(connection, batch, group_id)
    if num_rewards is not None and num_rewards != _num_rewards(connection, batch.group_ids):
        raise Conflict("Rewards came in while the credit was computed; compute it again.", code="rewards_moved")
    return msgspec.structs.replace(batch, state=TAKEN)


def _check_step(connection: Connection, batch: Batch) -> None:
    epoch = lock_policy(connection, batch.policy).epoch
    if epoch != batch.epoch:
        raise Conflict(f"Policy {batch.policy!r} is at epoch {epoch}, not {batch.epoch}.", code="old_epoch")
    batches = tables.batches
    same_step = (
        batches.c.policy == batch.policy,
        batches.c.epoch == batch.epoch,
        batches.c.step == batch.step,
        batches.c.state != DROPPED,
    )
    if connection.execute(select(batches.c.batch_id).where(*same_step)).one_or_none() is not None:
        raise Conflict(f"Step {batch.step} of {batch.policy!r} was taken by another batch.", code="step_taken")


def _take_share(connection: Connection, batch: Batch, group_id: str) -> None:
    group = lock_group(connection, group_id)
    if group.state not in (GroupState.READY, GroupState.TAKEN):
        raise Conflict(f"Group {group_id!r} is {group.state}, not ready.", code="group_not_ready")
    _freeze(connection, group, batch.credit)
    share = _share(group_id, batch.policy, GroupState.TAKEN) | {
        "batch_id": batch.batch_id,
        "position": batch.group_ids.index(group_id),
    }
    if not insert_new(connection, tables.batch_groups, share):
        raise Conflict(f"Group {group_id!r} was taken for {batch.policy!r} before.", code="group_taken")
    settle_shares(connection, group_id)


def _num_rewards(connection: Connection, group_ids: Sequence[str]) -> int:
    """Events of the members of groups whose rows are locked, so that none is being added."""
    rewards, episodes = tables.rewards, tables.episodes
    joined = rewards.join(episodes, rewards.c.episode_id == episodes.c.episode_id)
    where = (episodes.c.group_id.in_(group_ids), episodes.c.place.is_not(None))
    return connection.execute(select(func.count()).select_from(joined).where(*where)).scalar_one()


def _freeze(connection: Connection, group: Row[Any], credit: Sequence[CallCredit]) -> None:
    """Write down how the members stand; the first policy that takes the group decides."""
    advantages: defaultdict[str, list[float]] = defaultdict(list)
    for item in credit:
        advantages[item.episode_id].append(item.advantage)
    for member in read_groups(connection, [group], seated_only=True)[0].members:
        own = advantages.get(member.episode_id)
        values = {
            "group_id": group.group_id,
            "episode_id": member.episode_id,
            "reward": member.reward,
            "advantage": fmean(own) if own else member.advantage,
            "member": member.member,
            "why": member.why,
        }
        insert_new(connection, tables.standings, values)


def _skip_group(connection: Connection, group_id: str, reason: SkipReason, policy: str, fence: int) -> None:
    check_fence(connection, policy, fence)
    lock_group(connection, group_id)
    shares = tables.batch_groups
    share = _share(group_id, policy, GroupState.SKIPPED) | {"reason": reason}
    if not insert_new(connection, shares, share):
        where = (shares.c.group_id == group_id, shares.c.policy == policy)
        state = connection.execute(select(shares.c.state).where(*where)).scalar_one()
        if state != GroupState.SKIPPED:
            raise Conflict(f"Group {group_id!r} is {state} for {policy!r} and cannot be skipped.", code="group_taken")
    settle_shares(connection, group_id)


def _share(group_id: str, policy: str, state: GroupState) -> dict[str, Any]:
    return {"group_id": group_id, "policy": policy, "batch_id": None, "position": 0, "state": state, "reason": None}


def _last_batches(connection: Connection, policy: str, limit: int) -> list[Batch]:
    batches = tables.batches
    statement = select(batches).where(batches.c.policy == policy)
    statement = statement.order_by(batches.c.epoch.desc(), batches.c.step.desc(), batches.c.created_ms.desc())
    return [read_batch(connection, row) for row in connection.execute(statement.limit(limit)).all()]


def _mark_trained(connection: Connection, batch: Batch) -> None:
    check_fence(connection, batch.policy, batch.fence)
    lock_policy(connection, batch.policy)
    stored = _known(connection, batch.batch_id)
    if stored.state == DROPPED:
        raise Conflict(f"Batch {batch.batch_id!r} was dropped.", code="batch_dropped")
    values = {"version": batch.version, "manifest": batch.manifest, "metrics": batch.metrics, "state": TRAINED}
    _set_batch(connection, batch.batch_id, **values)
    end_batch(connection, batch.batch_id, GroupState.TRAINED, None)


def _drop_batch(connection: Connection, batch_id: str, reason: SkipReason, fence: int, detail: str) -> None:
    policy = _known(connection, batch_id).policy
    check_fence(connection, policy, fence)
    lock_policy(connection, policy)
    batch = _known(connection, batch_id)
    if batch.state == TRAINED:
        raise Conflict(f"Batch {batch_id!r} is trained and cannot be dropped.", code="batch_trained")
    if batch.state == TAKEN:
        told = msgspec.json.decode(batch.metrics, type=dict[str, Any])
        metrics = msgspec.json.encode(told | {"problem": detail}) if detail else batch.metrics
        _set_batch(connection, batch_id, state=DROPPED, metrics=metrics)
        end_batch(connection, batch_id, GroupState.SKIPPED, reason)


def _num_groups(connection: Connection, states: Sequence[GroupState]) -> int:
    statement = select(func.count()).select_from(tables.groups).where(tables.groups.c.state.in_(states))
    return connection.execute(statement).scalar_one()


def _set_batch(connection: Connection, batch_id: str, **values: Any) -> None:
    connection.execute(update(tables.batches).where(tables.batches.c.batch_id == batch_id).values(values))


def _find(connection: Connection, batch_id: str) -> Batch | None:
    row = connection.execute(select(tables.batches).where(tables.batches.c.batch_id == batch_id)).one_or_none()
    return None if row is None else read_batch(connection, row)


def _known(connection: Connection, batch_id: str) -> Batch:
    batch = _find(connection, batch_id)
    if batch is None:
        raise NotFound(f"There is no batch {batch_id!r}.")
    return batch


def _same(stored: Batch, asked: Batch) -> Batch:
    """The stored batch; `Conflict` if the id stands for another one."""
    if (stored.policy, stored.epoch, stored.step) != (asked.policy, asked.epoch, asked.step):
        raise Conflict(f"The batch id {asked.batch_id!r} is taken.", code="batch_taken")
    return stored


def _values(batch: Batch) -> dict[str, Any]:
    values = msgspec.structs.asdict(batch) | {"credit": msgspec.msgpack.encode(batch.credit)}
    del values["group_ids"]
    return values


def read_batch(connection: Connection, row: Row[Any]) -> Batch:
    """A stored batch with its groups, in their order."""
    shares = tables.batch_groups
    statement = select(shares.c.group_id).where(shares.c.batch_id == row.batch_id).order_by(shares.c.position)
    fields = dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
    fields["credit"] = msgspec.msgpack.decode(row.credit, type=CREDIT)
    return Batch(**fields, group_ids=tuple(connection.execute(statement).scalars()))
