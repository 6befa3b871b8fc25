"""The keys of tenants in SQL: payloads are sealed and opened with them, and a tenant's can be shredded.

A tenant has one live key, made when its first payload is sealed; after a shredding the next one begins. Each use reads
the key's row in the same transaction, so that a shredding holds at once in every process. What was begun before a
shredding and is archived after it is sealed with a key that nobody keeps. Without a master key payloads stay in plain,
and those that are sealed cannot be read. The ciphers are in `sealing.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import aiosqlite
from sqlalchemy import Connection, Row, select, update

from tracker import tables
from tracker.audit import record_act
from tracker.clock import Clock
from tracker.errors import Gone, NotFound, SettingsError
from tracker.sealing import MasterKeys, generation_of, is_sealed, new_key, opened, sealed
from tracker.sql import Database, insert_new
from tracker.types import Act

MAX_KEPT: Final = 4_096
SHREDDED: Final = "shredded"
NO_KEY: Final = "HONE_ENCRYPTION_KEY: what is archived is encrypted; give the key it was encrypted with."


class Vault:
    """Seals and opens payloads; with no master key it leaves them as they are."""

    def __init__(self, master: MasterKeys | None = None) -> None:
        self._master = master
        self._kept: dict[bytes, bytes] = {}
        """wrapped key -> key, so that it is unwrapped once."""

    def sealed(self, connection: Connection, episode: Row[Any], payload: bytes, digest: str) -> bytes:
        """The payload of an episode as it is stored; `digest` is the chain it was closed with."""
        if self._master is None:
            return payload
        rows, owner = _keys_of(connection, episode.tenant), (episode.episode_id, digest)
        shredded = next((row for row in rows if row.wrapped is None), None)
        if shredded is not None and episode.created_ms <= shredded.shredded_ms:
            return sealed(payload, new_key(), shredded.generation, owner)
        live = next((row for row in rows if row.wrapped is not None), None)
        if live is None:
            live = self._make(connection, episode.tenant, rows[0].generation + 1 if rows else 1)
        return sealed(payload, self._unwrapped(self._master, live), live.generation, owner)

    def opened(self, connection: Connection, tenant: str, owner: tuple[str, str], stored: bytes) -> bytes:
        """What is stored of an episode, `owner` its id and its chain. Raises `Gone` if it was shredded."""
        if not is_sealed(stored):
            return stored
        row = _key_row(connection, tenant, generation_of(stored))
        if row.wrapped is None:
            raise Gone(shredded_line(row.shredded_ms), code=SHREDDED)
        if self._master is None:
            raise SettingsError(NO_KEY)
        return opened(stored, self._unwrapped(self._master, row), owner)

    def check(self, rows: list[Row[Any]]) -> None:
        """Raise `SettingsError` unless every tenant's live key can be opened."""
        for row in rows:
            if self._master is None:
                raise SettingsError(NO_KEY)
            self._unwrapped(self._master, row)

    def rewrapped(self, row: Row[Any]) -> bytes | None:
        """A tenant's key under the current master key; `None` where it is already."""
        if self._master is None:
            raise SettingsError(NO_KEY)
        if self._master.is_current(row.wrapped):
            return None
        return self._master.wrapped(self._unwrapped(self._master, row), row.tenant, row.generation)

    def _make(self, connection: Connection, tenant: str, generation: int) -> Row[Any]:
        """The next key of a tenant; whoever makes it at the same time, one is stored and both read that."""
        assert self._master is not None
        wrapped = self._master.wrapped(new_key(), tenant, generation)
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        values = {"tenant": tenant, "generation": generation, "wrapped": wrapped, "created_ms": now_ms}
        insert_new(connection, tables.tenant_keys, values)
        return _key_row(connection, tenant, generation)

    def _unwrapped(self, master: MasterKeys, row: Row[Any]) -> bytes:
        if row.wrapped not in self._kept:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[row.wrapped] = master.unwrapped(row.wrapped, row.tenant, row.generation)
        return self._kept[row.wrapped]


class TenantKeys(Database):
    """Tenants' keys, as an operator sees them."""

    _clock: Clock
    _vault: Vault

    async def check_encryption(self) -> None:
        """Raise `SettingsError` unless what is archived can be read with the keys that were given."""
        self._vault.check(await self.read(_live))

    async def shred_tenant(self, tenant: str, act: Act | None = None) -> int:
        """Delete the keys of a tenant, for ever; how many there were. `NotFound` if it has none."""
        return await self.write(_shred, tenant, self._clock.now_ms(), act)

    async def settle_file(self) -> None:
        """On SQLite, take what was replaced out of the log beside the file too, as far as readers let it go."""
        if self._is_sqlite:
            async with self._engine.connect() as connection:
                raw = (await connection.get_raw_connection()).driver_connection
                assert isinstance(raw, aiosqlite.Connection)
                async with raw.execute("PRAGMA wal_checkpoint(TRUNCATE)") as cursor:
                    await cursor.fetchall()

    async def rewrap_tenants(self, act: Act | None = None) -> int:
        """Wrap every live key with the current master key; how many were wrapped with another."""
        return await self.write(_rewrap, self._vault, act)


def shredded_line(at_ms: int) -> str:
    """What is said in the place of a payload whose key is gone.

    >>> shredded_line(0)
    'payload shredded at 1970-01-01T00:00:00Z'
    """
    at = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    return f"payload shredded at {at}"


def _keys_of(connection: Connection, tenant: str) -> list[Row[Any]]:
    """The tenant's keys, newest first; none can be shredded before this transaction ends."""
    keys = tables.tenant_keys
    statement = select(keys).where(keys.c.tenant == tenant).order_by(keys.c.generation.desc())
    return list(connection.execute(statement.with_for_update(read=True)).all())


def _key_row(connection: Connection, tenant: str, generation: int) -> Row[Any]:
    keys = tables.tenant_keys
    row = connection.execute(select(keys).where(keys.c.tenant == tenant, keys.c.generation == generation)).one_or_none()
    if row is None:
        raise SettingsError(f"Tenant {tenant} has no key {generation}: the database is not the one it was made in.")
    return row


def _live(connection: Connection) -> list[Row[Any]]:
    keys = tables.tenant_keys
    statement = select(keys).where(keys.c.wrapped.is_not(None)).order_by(keys.c.tenant, keys.c.generation)
    return list(connection.execute(statement).all())


def _shred(connection: Connection, tenant: str, now_ms: int, act: Act | None) -> int:
    keys = tables.tenant_keys
    where = keys.c.tenant == tenant
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete = ON")  # what is replaced is overwritten, not left in a page
    if connection.execute(select(keys.c.generation).where(where).limit(1)).one_or_none() is None:
        raise NotFound(f"Tenant {tenant!r} has no key: nothing of it was encrypted.")
    live = (where, keys.c.wrapped.is_not(None))
    num_shredded = connection.execute(update(keys).where(*live).values(wrapped=None, shredded_ms=now_ms)).rowcount
    record_act(connection, act)
    return num_shredded


def _rewrap(connection: Connection, vault: Vault, act: Act | None) -> int:
    keys = tables.tenant_keys
    num_wrapped = 0
    for row in _live(connection):
        wrapped = vault.rewrapped(row)
        if wrapped is not None:
            where = (keys.c.tenant == row.tenant, keys.c.generation == row.generation, keys.c.wrapped == row.wrapped)
            num_wrapped += connection.execute(update(keys).where(*where).values(wrapped=wrapped)).rowcount
    record_act(connection, act)
    return num_wrapped
