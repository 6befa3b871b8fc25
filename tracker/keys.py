"""The keys of the ledger: what is stored of them, what they may take, and what calls with them took.

Of a key only the SHA-256 digest is stored. A key is 256 random bits, so nobody can try the keys that a digest could
be of; a slow or salted hash, which protects passwords that can be guessed, would only make every look-up slow. A key is
found by its digest, and no attacker can choose one: how long the look-up takes tells nothing of use. Rotation gives a
key another secret under the same id, so limits, usage and the episodes that it opened stay with it; scopes and tenant
never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, case, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tracker import tables
from tracker.audit import record_act
from tracker.clock import Clock
from tracker.episode_rows import next_cursor, page_after
from tracker.errors import Conflict, NotFound
from tracker.sql import Database, insert_new
from tracker.types import Act, Key, KeyLimits, KeyUsage, Scope

COUNTS = KeyUsage.__struct_fields__
LIMITS = KeyLimits.__struct_fields__


class Keys(Database):
    """API keys and their usage."""

    _clock: Clock

    async def add_key(self, key: Key, act: Act | None = None) -> None:
        """Store a key; the same again is a no-op, another under a known id or digest a `Conflict`."""
        await self.write(_add_key, key, act)

    async def find_key(self, digest: str) -> Key | None:
        """The key with this digest, also when it is revoked or has expired. A digest that it had before a rotation
        finds it too: then it expires when the grace is over."""
        return await self.read(_find_key, digest)

    async def get_key(self, tenant: str, key_id: str) -> Key:
        return await self.read(_get_key, tenant, key_id)

    async def list_keys(self, tenant: str) -> list[Key]:
        """In the order they were made."""
        return await self.read(_list_keys, tenant)

    async def key_page(self, tenant: str, limit: int, cursor: str | None) -> tuple[list[Key], str | None]:
        """Newest first."""
        return await self.read(_key_page, tenant, limit, cursor)

    async def rotate_key(self, tenant: str, key_id: str, digest: str, until_ms: int, act: Act | None = None) -> Key:
        """The key has another digest from now on; every one that it had is good until `until_ms` at most. `Conflict`
        if it was revoked or has expired."""
        return await self.write(_rotate_key, (tenant, key_id, digest), until_ms, self._clock.now_ms(), act)

    async def limit_key(
        self, tenant: str, key_id: str, changes: Mapping[str, int | None], act: Act | None = None
    ) -> Key:
        """Change the limits that are named; `None` takes one away."""
        return await self.write(_limit_key, tenant, key_id, changes, act)

    async def revoke_key(self, tenant: str, key_id: str, at_ms: int, act: Act | None = None) -> Key:
        """From now on the key is good for nothing; the time of the first revocation stays."""
        return await self.write(_revoke_key, tenant, key_id, at_ms, act)

    async def add_usage(self, taken: Mapping[tuple[str, int], KeyUsage]) -> None:
        """Add what calls took, by (key id, day); what is of no key is left out. Not safe to repeat: a count whose
        commit nobody heard of may be counted twice."""
        await self.write(_add_usage, taken)

    async def key_usage(self, key_ids: Sequence[str], day: int) -> dict[str, tuple[KeyUsage, KeyUsage]]:
        """key id -> what it took in all, and on this day."""
        return await self.read(_usage, key_ids, day)


def _add_key(connection: Connection, key: Key, act: Act | None) -> None:
    values = msgspec.structs.asdict(key) | {"scopes": " ".join(key.scopes)} | msgspec.structs.asdict(key.limits)
    del values["limits"]
    if insert_new(connection, tables.keys, values):
        record_act(connection, act)
    elif _find_key(connection, key.digest) != key:
        raise Conflict("A key with this id or digest exists already.")


def _find_key(connection: Connection, digest: str) -> Key | None:
    keys, former = tables.keys, tables.former_secrets
    row = connection.execute(select(keys).where(keys.c.digest == digest)).one_or_none()
    if row is not None:
        return _key(row)
    statement = select(keys, former.c.until_ms).join(former, former.c.key_id == keys.c.key_id)
    row = connection.execute(statement.where(former.c.digest == digest)).one_or_none()
    if row is None:
        return None
    until_ms = row.until_ms if row.expires_ms is None else min(row.until_ms, row.expires_ms)
    return msgspec.structs.replace(_key(row), expires_ms=until_ms)


def _get_key(connection: Connection, tenant: str, key_id: str) -> Key:
    return _key(_row(connection, tenant, key_id))


def _row(connection: Connection, tenant: str, key_id: str, *, locks: bool = False) -> Row[Any]:
    keys = tables.keys
    statement = select(keys).where(keys.c.tenant == tenant, keys.c.key_id == key_id)
    row = connection.execute(statement.with_for_update() if locks else statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no key {key_id!r} of tenant {tenant}; hone keys list shows them.", param="key_id")
    return row


def _list_keys(connection: Connection, tenant: str) -> list[Key]:
    keys = tables.keys
    statement = select(keys).where(keys.c.tenant == tenant).order_by(keys.c.created_ms, keys.c.key_id)
    return [_key(row) for row in connection.execute(statement)]


def _key_page(connection: Connection, tenant: str, limit: int, cursor: str | None) -> tuple[list[Key], str | None]:
    keys = tables.keys
    where = [keys.c.tenant == tenant, *page_after(cursor, keys.c.created_ms, keys.c.key_id)]
    statement = select(keys).where(*where).order_by(keys.c.created_ms.desc(), keys.c.key_id.desc()).limit(limit + 1)
    found = [_key(row) for row in connection.execute(statement)]
    page = found[:limit]
    return page, next_cursor(page[-1].created_ms, page[-1].key_id) if len(found) > limit and page else None


def _rotate_key(
    connection: Connection, named: tuple[str, str, str], until_ms: int, now_ms: int, act: Act | None
) -> Key:
    tenant, key_id, digest = named
    stored = _key(_row(connection, tenant, key_id, locks=True))
    if stored.revoked_ms is not None or (stored.expires_ms is not None and stored.expires_ms <= now_ms):
        raise Conflict(f"The key {key_id!r} was revoked or has expired: make another.", param="key_id")
    former = tables.former_secrets
    of_key = former.c.key_id == key_id
    earlier = case((former.c.until_ms < until_ms, former.c.until_ms), else_=until_ms)
    connection.execute(update(former).where(of_key).values(until_ms=earlier))
    insert_new(connection, former, {"digest": stored.digest, "key_id": key_id, "until_ms": until_ms})
    record_act(connection, act)
    return _changed(connection, stored, digest=digest)


def _limit_key(
    connection: Connection, tenant: str, key_id: str, changes: Mapping[str, int | None], act: Act | None
) -> Key:
    stored = _key(_row(connection, tenant, key_id, locks=True))
    record_act(connection, act)
    return _changed(connection, stored, limits=msgspec.structs.replace(stored.limits, **changes))


def _revoke_key(connection: Connection, tenant: str, key_id: str, at_ms: int, act: Act | None) -> Key:
    stored = _key(_row(connection, tenant, key_id, locks=True))
    record_act(connection, act)
    return stored if stored.revoked_ms is not None else _changed(connection, stored, revoked_ms=at_ms)


def _changed(connection: Connection, key: Key, **fields: Any) -> Key:
    """Change a key's row; the key as it is then."""
    columns = dict(fields)
    if "limits" in columns:
        columns |= msgspec.structs.asdict(columns.pop("limits"))
    connection.execute(update(tables.keys).where(tables.keys.c.key_id == key.key_id).values(columns))
    return msgspec.structs.replace(key, **fields)


def _key(row: Row[Any]) -> Key:
    columns = row._mapping  # pyright: ignore[reportPrivateUsage]
    return Key(
        key_id=row.key_id,
        digest=row.digest,
        tenant=row.tenant,
        scopes=tuple(Scope(scope) for scope in row.scopes.split()),
        label=row.label,
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
        revoked_ms=row.revoked_ms,
        limits=KeyLimits(**{name: columns[name] for name in LIMITS}),
    )


def _add_usage(connection: Connection, taken: Mapping[tuple[str, int], KeyUsage]) -> None:
    table = tables.key_usage
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    asked = {key_id for key_id, _ in taken}
    known = set(connection.execute(select(tables.keys.c.key_id).where(tables.keys.c.key_id.in_(asked))).scalars())
    for (key_id, day), usage in sorted(taken.items()):  # in one order, so that gateways never wait for each other
        if key_id not in known:
            continue
        statement = make(table).values(key_id=key_id, day=day, **msgspec.structs.asdict(usage))
        sums = {name: table.c[name] + statement.excluded[name] for name in COUNTS}
        connection.execute(statement.on_conflict_do_update(index_elements=["key_id", "day"], set_=sums))


def _usage(connection: Connection, key_ids: Sequence[str], day: int) -> dict[str, tuple[KeyUsage, KeyUsage]]:
    table = tables.key_usage
    today = [func.sum(case((table.c.day == day, table.c[name]), else_=0)) for name in COUNTS]
    in_all = [func.sum(table.c[name]) for name in COUNTS]
    statement = select(table.c.key_id, *in_all, *today).where(table.c.key_id.in_(key_ids)).group_by(table.c.key_id)
    found = {key_id: (KeyUsage(), KeyUsage()) for key_id in key_ids}
    for key_id, *sums in connection.execute(statement):
        counts = [int(count) for count in sums]
        found[key_id] = KeyUsage(**_named(counts[: len(COUNTS)])), KeyUsage(**_named(counts[len(COUNTS) :]))
    return found


def _named(counts: Sequence[int]) -> dict[str, int]:
    return dict(zip(COUNTS, counts, strict=True))
