"""What the command line reads and writes in the ledger of a data folder, beside a gateway that may be running."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from sqlalchemy import make_url

from gateway.auditing import act_of_desk, attempted
from gateway.auth import mint
from gateway.key_making import MAX_GRACE_S, Wanted, check_limits, made, told_of
from tracker.clock import SystemClock
from tracker.errors import BadRequest, SettingsError
from tracker.ledger import SqlLedger
from tracker.lines import EpisodeLineage
from tracker.quotas import day_of
from tracker.settings import StoreSettings
from tracker.sql import open_engine, upgrade
from tracker.types import DEFAULT, Key, KeyUsage
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


async def create_key(stores: StoreSettings, wanted: Wanted) -> tuple[str, Key]:
    """A new key, which is told this once, and what is stored of it."""
    secret, key = made(wanted, SystemClock().now_ms())
    act = act_of_desk(key.tenant, "key.create", key.key_id, told_of(key))
    async with open_ledger(stores) as ledger:
        await ledger.add_key(key, act)
    return secret, key


async def list_keys(stores: StoreSettings, tenant: str) -> list[tuple[Key, tuple[KeyUsage, KeyUsage]]]:
    """Every key of a tenant, without the keys themselves, and what calls with it took: in all, and today."""
    async with open_ledger(stores) as ledger:
        keys = await ledger.list_keys(tenant)
        usage = await ledger.key_usage([key.key_id for key in keys], day_of(SystemClock().now_ms()))
    return [(key, usage[key.key_id]) for key in keys]


async def key_with_usage(stores: StoreSettings, tenant: str, key_id: str) -> tuple[Key, tuple[KeyUsage, KeyUsage]]:
    """One key of a tenant, and what calls with it took: in all, and today."""
    async with open_ledger(stores) as ledger:
        key = await ledger.get_key(tenant, key_id)
        usage = await ledger.key_usage([key_id], day_of(SystemClock().now_ms()))
    return key, usage[key_id]


async def rotate_key(stores: StoreSettings, tenant: str, key_id: str, grace_s: float) -> tuple[str, Key, int]:
    """Another secret for a key, the key, and until when the old secret works."""
    if not 0 <= grace_s <= MAX_GRACE_S:
        raise BadRequest(f"The grace is from 0 to {MAX_GRACE_S} seconds.")
    secret, key_digest = mint()
    until_ms = SystemClock().now_ms() + int(grace_s * 1000)
    act = act_of_desk(tenant, "key.rotate", key_id, {"grace_s": grace_s})
    async with open_ledger(stores) as ledger, attempted(ledger, act):
        key = await ledger.rotate_key(tenant, key_id, key_digest, until_ms, act)
    return secret, key, until_ms


async def limit_key(stores: StoreSettings, tenant: str, key_id: str, changes: Mapping[str, int | None]) -> Key:
    """Change the limits that are named; `None` takes one away."""
    check_limits(changes)
    act = act_of_desk(tenant, "key.limit", key_id, changes)
    async with open_ledger(stores) as ledger, attempted(ledger, act):
        return await ledger.limit_key(tenant, key_id, changes, act)


async def revoke_key(stores: StoreSettings, tenant: str, key_id: str) -> Key:
    """A running gateway refuses the key within seconds."""
    act = act_of_desk(tenant, "key.revoke", key_id)
    async with open_ledger(stores) as ledger, attempted(ledger, act):
        return await ledger.revoke_key(tenant, key_id, SystemClock().now_ms(), act)


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
        return await ledger.rewrap_tenants(act_of_desk(DEFAULT, "tenant.rewrap", "all"))
