"""The policies and their published versions, as SQL knows them.

A version's number is inserted before anything is written under it, counted on the policy's row and never used again.
The epoch is what a rollback raises: whatever was begun under an older one is refused from then on. How an adapter
comes to an engine is left to the gateway's hot swap.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from tracker import tables
from tracker.clock import Clock
from tracker.errors import Conflict, NotFound
from tracker.rounds import expire_batches, withdraw_groups
from tracker.sql import Database, insert_new
from tracker.trial_rows import drop_shadow, end_trials, note_release
from tracker.trials import ReleaseEvent, TrialState
from tracker.types import Policy, Version, VersionState

BROKEN = (VersionState.FAILED, VersionState.WITHDRAWN)
"""States of a version that can never be routed to again."""


class Versions(Database):
    """Policies and versions."""

    _clock: Clock

    async def ensure_policy(self, policy: str) -> Policy:
        """The policy, created at first sight with epoch 0 and the bare base model active."""
        return await self.read(_find_policy, policy) or await self.write(ensure_policy, policy)

    async def list_policies(self) -> list[Policy]:
        """By name."""
        return await self.read(_list_policies)

    async def reserve_version(self, policy: str, epoch: int | None, at_ms: int) -> Version:
        """Insert the next number; `Conflict` if `epoch` is given and is not the policy's. Never re-used."""
        return await self.write(_reserve_version, policy, epoch, at_ms)

    async def put_version(self, version: Version) -> None:
        """Store folder, digest, state, metrics, probe and detail of a reserved version."""
        await self.write(_put_version, version)

    async def get_version(self, policy: str, version: int) -> Version:
        return await self.read(get_version, policy, version)

    async def find_version(self, policy: str, folder: str) -> Version | None:
        """The version published from this folder."""
        return await self.read(_find_version, policy, folder)

    async def list_versions(self, policy: str) -> list[Version]:
        """By number; without version 0, which needs no row."""
        return await self.read(_list_versions, policy)

    async def activate(self, policy: str, version: int, epoch: int) -> None:
        """The version is active and new pins get it, in one transaction.

        `Conflict` unless `epoch` is the policy's and no later version is active.
        """
        await self.write(activate, policy, version, epoch, self._clock.now_ms())

    async def rollback(self, policy: str, version: int, event: ReleaseEvent | None = None) -> Policy:
        """Raise the epoch, activate `version`, mark later versions withdrawn, on trial or not; batches of the old epoch
        not yet trained are dropped and their groups skipped as expired, groups that withdrawn versions played in are
        skipped as withdrawn. `event` is noted in the same transaction."""
        return await self.write(_rollback, policy, version, self._clock.now_ms(), event)


def ensure_policy(connection: Connection, policy: str) -> Policy:
    insert_new(connection, tables.policies, {"policy": policy, "epoch": 0, "active": 0, "last_version": 0})
    return _policy(lock_policy(connection, policy))


def lock_policy(connection: Connection, policy: str) -> Row[Any]:
    """The policy's row, locked; raises `NotFound` if there is none."""
    statement = select(tables.policies).where(tables.policies.c.policy == policy).with_for_update()
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no policy {policy!r}.", param="policy")
    return row


def get_version(connection: Connection, policy: str, version: int) -> Version:
    versions = tables.versions
    statement = select(versions).where(versions.c.policy == policy, versions.c.version == version)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"Policy {policy!r} has no version {version}.", param="version")
    return _version(row)


def _find_policy(connection: Connection, policy: str) -> Policy | None:
    row = connection.execute(select(tables.policies).where(tables.policies.c.policy == policy)).one_or_none()
    return None if row is None else _policy(row)


def _list_policies(connection: Connection) -> list[Policy]:
    return [_policy(row) for row in connection.execute(select(tables.policies).order_by(tables.policies.c.policy))]


def _reserve_version(connection: Connection, policy: str, epoch: int | None, at_ms: int) -> Version:
    row = lock_policy(connection, policy)
    if epoch is not None:
        check_epoch(row, epoch)
    version = Version(policy=policy, version=row.last_version + 1, epoch=row.epoch, created_ms=at_ms)
    connection.execute(insert(tables.versions).values(msgspec.structs.asdict(version)))
    set_policy(connection, policy, last_version=version.version)
    return version


def _put_version(connection: Connection, version: Version) -> None:
    lock_policy(connection, version.policy)
    get_version(connection, version.policy, version.version)
    holder = _find_version(connection, version.policy, version.folder) if version.folder else None
    if holder is not None and holder.version != version.version:
        raise Conflict(f"Folder {version.folder!r} is version {holder.version} already.", param="folder")
    versions = tables.versions
    where = (versions.c.policy == version.policy, versions.c.version == version.version)
    fields = ("folder", "digest", "state", "metrics", "probe", "detail")
    connection.execute(update(versions).where(*where).values({name: getattr(version, name) for name in fields}))


def _find_version(connection: Connection, policy: str, folder: str) -> Version | None:
    versions = tables.versions
    statement = select(versions).where(
        versions.c.policy == policy, versions.c.folder == folder, versions.c.folder != ""
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else _version(row)


def _list_versions(connection: Connection, policy: str) -> list[Version]:
    versions = tables.versions
    statement = select(versions).where(versions.c.policy == policy).order_by(versions.c.version)
    return [_version(row) for row in connection.execute(statement)]


def activate(connection: Connection, policy: str, version: int, epoch: int, now_ms: int) -> None:
    row = lock_policy(connection, policy)
    check_epoch(row, epoch)
    check_usable(connection, policy, version)
    if version < row.active:
        raise Conflict(f"Version {row.active} of {policy!r} is active; roll back to go to {version}.", param="version")
    versions = tables.versions
    first_ms = func.coalesce(versions.c.activated_ms, now_ms)
    statement = update(versions).where(versions.c.policy == policy, versions.c.version == version)
    connection.execute(statement.values(state=VersionState.ACTIVE, activated_ms=first_ms))
    set_policy(connection, policy, active=version)
    end_trials(connection, policy, tables.trials.c.version <= version, TrialState.SUPERSEDED, now_ms)


def _rollback(
    connection: Connection, policy: str, version: int, now_ms: int, event: ReleaseEvent | None = None
) -> Policy:
    policy_now = roll_back(connection, policy, version, now_ms)
    note_release(connection, event)
    return policy_now


def roll_back(connection: Connection, policy: str, version: int, now_ms: int) -> Policy:
    """Go back to a version: the statements of it, in the caller's transaction."""
    row = lock_policy(connection, policy)
    check_usable(connection, policy, version)
    versions = tables.versions
    later = (versions.c.policy == policy, versions.c.version > version, versions.c.state != VersionState.FAILED)
    connection.execute(update(versions).where(*later).values(state=VersionState.WITHDRAWN))
    expire_batches(connection, policy)
    withdraw_groups(connection, policy, version)
    end_trials(connection, policy, tables.trials.c.version > version, TrialState.ROLLED_BACK, now_ms)
    drop_shadow(connection, policy, version)
    set_policy(connection, policy, epoch=row.epoch + 1, active=version)
    begun = {"policy": policy, "epoch": row.epoch + 1, "version": version, "at_ms": now_ms}
    connection.execute(insert(tables.rollbacks).values(begun))
    return Policy(policy=policy, epoch=row.epoch + 1, active=version)


def check_usable(connection: Connection, policy: str, version: int) -> None:
    """Version 0 is the base model, which always works."""
    if version == 0:
        return
    state = get_version(connection, policy, version).state
    if state in BROKEN:
        raise Conflict(f"Version {version} of {policy!r} is {state} and cannot become active.", param="version")


def check_epoch(row: Row[Any], epoch: int) -> None:
    if row.epoch != epoch:
        raise Conflict(
            f"Policy {row.policy!r} is at epoch {row.epoch}, not {epoch}: it was rolled back meanwhile.",
            param="epoch",
            code="old_epoch",
        )


def set_policy(connection: Connection, policy: str, **values: int) -> None:
    connection.execute(update(tables.policies).where(tables.policies.c.policy == policy).values(values))


def _policy(row: Row[Any]) -> Policy:
    return Policy(policy=row.policy, epoch=row.epoch, active=row.active)


def _version(row: Row[Any]) -> Version:
    fields = dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
    fields["state"] = VersionState(row.state)
    return Version(**fields)
