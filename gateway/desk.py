"""What the command line reads and writes in the ledger of a data folder, beside a gateway that may be running."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import make_url

from gateway.auth import mint
from tracker.clock import SystemClock
from tracker.errors import BadRequest, SettingsError
from tracker.ledger import SqlLedger
from tracker.lines import EpisodeLineage
from tracker.settings import StoreSettings
from tracker.sql import open_engine, upgrade
from tracker.types import EpisodeRow, Key, KeyUsage
from tracker.vault import Vault


@asynccontextmanager
async def open_ledger(stores: StoreSettings) -> AsyncGenerator[SqlLedger]:
    """The ledger of a data folder that exists; raises `SettingsError` rather than make one in the wrong place."""
    url = make_url(stores.database_url)
    if url.get_backend_name() == "sqlite" and not stores.data_dir.joinpath(url.database or "").is_file():
        raise SettingsError(
            f"{stores.data_dir} is no data folder of Hone: start `hone gateway` or `hone up` there first, "
            "or set HONE_DATA_DIR to the folder of one that runs."
        )
    await upgrade(stores.database_url)
    ledger = SqlLedger(open_engine(stores.database_url), SystemClock(), Vault(stores.encryption_key))
    try:
        yield ledger
    finally:
        await ledger.close()


async def create_key(
    stores: StoreSettings, scopes: Sequence[Scope], tenant: str, label: str, expires_days: float | None
) -> tuple[str, Key]:
    """A new key, which is told this once, and what is stored of it."""
    if not scopes:
        raise BadRequest(f"Give the key a scope: --scope {' | '.join(Scope)}.")
    if not re.fullmatch(ID_PATTERN, tenant):
        raise BadRequest(f"A tenant's name matches {ID_PATTERN}.")
    secret, key_digest = mint()
    now_ms = SystemClock().now_ms()
    key = Key(
        key_id=f"key-{secrets.token_hex(8)}",
        digest=key_digest,
        tenant=tenant,
        scopes=tuple(dict.fromkeys(scopes)),
        label=label,
        created_ms=now_ms,
        expires_ms=None if expires_days is None else now_ms + int(expires_days * 86_400_000),
    )
    async with open_ledger(stores) as ledger:
        await ledger.add_key(key)
    return secret, key


async def list_keys(stores: StoreSettings, tenant: str) -> list[Key]:
    """Every key of a tenant, without the keys themselves."""
    async with open_ledger(stores) as ledger:
        return await ledger.list_keys(tenant)


async def revoke_key(stores: StoreSettings, tenant: str, key_id: str) -> None:
    """A running gateway refuses the key within seconds."""
    async with open_ledger(stores) as ledger:
        await ledger.revoke_key(tenant, key_id, SystemClock().now_ms())


async def list_episodes(
    stores: StoreSettings, tenant: str, run: str | None, status: str | None, limit: int
) -> list[EpisodeRow]:
    """The newest episodes of a tenant."""
    async with open_ledger(stores) as ledger:
        rows, _ = await ledger.list_episodes(tenant, run=run, task=None, status=status, limit=limit, cursor=None)
    return rows


async def episode_lineage(stores: StoreSettings, tenant: str, episode_id: str) -> EpisodeLineage:
    """What was trained on an episode."""
    async with open_ledger(stores) as ledger:
        return await ledger.episode_lineage(tenant, episode_id)


async def shred_tenant(stores: StoreSettings, tenant: str) -> int:
    """Delete the keys of a tenant, so that nothing that was sealed with them is read again; how many there were."""
    async with open_ledger(stores) as ledger:
        num_keys = await ledger.shred_tenant(tenant, act_of_desk(tenant, "tenant.shred", tenant))
        await ledger.settle_file()
    return num_keys


async def rewrap_tenants(stores: StoreSettings) -> int:
    """Wrap the keys of all tenants with the first of the keys given; how many were wrapped with another."""
    async with open_ledger(stores) as ledger:
        return await ledger.rewrap_tenants()
