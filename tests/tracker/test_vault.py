"""Archives are sealed with a key of their tenant; when that is shredded they are gone, and only they."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, select

from tests.tracker.building import chain_of
from tests.tracker.databases import Clock
from tests.tracker.filling import batch, rewarded
from tracker import tables
from tracker.codec import ARCHIVE_MAGIC, decode_calls, encode_calls
from tracker.errors import CorruptRecord, Gone, NotFound, SettingsError
from tracker.evidence import Archived, Checked
from tracker.ledger import SqlLedger
from tracker.manifests import Coverage, encode_manifest, manifest_of
from tracker.receipts import decode_receipts, seal
from tracker.removal import DAY_MS
from tracker.samples import rows_of
from tracker.sealing import SEALED_MAGIC, MasterKeys, new_key
from tracker.sql import open_engine
from tracker.types import Act, CallCredit, EpisodeHead, Retention, RunSettings
from tracker.vault import Vault
from tracker.verification import verify

Opened = Callable[..., SqlLedger]
OLD, NEW = new_key(), new_key()


@pytest.fixture
async def opening(database_url: str, clock: Clock) -> AsyncIterator[Opened]:
    """Opens the ledger of one database with these master keys, as several processes do."""
    ledgers: list[SqlLedger] = []

    def with_keys(*keys: bytes) -> SqlLedger:
        vault = Vault(MasterKeys(keys)) if keys else None
        ledgers.append(SqlLedger(open_engine(database_url), clock, vault))
        return ledgers[-1]

    yield with_keys
    for ledger in ledgers:
        await ledger.close()


async def begun(ledger: SqlLedger, name: str, tenant: str = "default", at_ms: int = 1_000_000) -> None:
    head = EpisodeHead(episode_id=name, tenant=tenant, task="t", created_ms=at_ms)
    await ledger.create_episode(head, None, "")


async def archived(ledger: SqlLedger, name: str, tenant: str = "default") -> bytes:
    """Archive an episode that was begun; what lies in SQL of it."""
    calls = chain_of(2, name)
    row = replace(await ledger.get_episode(tenant, name), versions={"p": 0}, num_calls=2, archived_ms=1_000_000)
    assert await ledger.archive_episode(row, encode_calls(calls), *seal(calls))
    return await ledger.read(stored_blob, name)


def stored_blob(connection: Connection, name: str) -> bytes:
    timelines = tables.timelines
    return connection.execute(select(timelines.c.blob).where(timelines.c.episode_id == name)).scalar_one()


async def names_read(ledger: SqlLedger, *names: str) -> list[str]:
    """The call that each episode reads first, or what is said instead."""
    told: list[str] = []
    for name in names:
        try:
            told.append(decode_calls(await ledger.get_timeline(name) or b"")[0].call_id)
        except Gone as gone:
            told.append(gone.code)
    return told


async def test_plain_and_sealed_archives_lie_beside_each_other_and_read_the_same(opening: Opened) -> None:
    plain, sealing = opening(), opening(OLD)
    for name in ("a", "b"):
        await begun(plain, name)
    blobs = [await archived(plain, "a"), await archived(sealing, "b")]
    assert [blob[:4] for blob in blobs] == [ARCHIVE_MAGIC, SEALED_MAGIC[:4]]
    assert await names_read(sealing, "a", "b") == ["a-0", "b-0"]
    opened = await sealing.archived("b")
    assert opened is not None
    assert opened.calls == chain_of(2, "b")
    with pytest.raises(SettingsError, match="HONE_ENCRYPTION_KEY"):
        await plain.get_timeline("b")


async def test_a_process_without_the_right_key_is_refused_at_its_start(opening: Opened) -> None:
    sealing = opening(OLD)
    for ledger in (opening(), sealing):
        await ledger.check_encryption()
    await begun(sealing, "a")
    await archived(sealing, "a")
    await opening(OLD).check_encryption()
    await opening(NEW, OLD).check_encryption()
    for wrong in (opening(), opening(NEW)):
        with pytest.raises(SettingsError):
            await wrong.check_encryption()


async def test_a_shredded_tenant_is_unreadable_in_every_process_and_others_are_not(
    opening: Opened, clock: Clock
) -> None:
    one, two = opening(OLD), opening(OLD)
    for name, tenant in (("a", "default"), ("b", "other")):
        await begun(one, name, tenant)
        await archived(one, name, tenant)
    assert await names_read(two, "a", "b") == ["a-0", "b-0"]
    clock.at_ms += 5
    act = Act(at_ms=1, tenant="default", key_id="cli", act="tenant.shred", target="default")
    assert await one.shred_tenant("default", act) == 1
    await one.settle_file()
    assert await names_read(two, "a", "b") == ["shredded", "b-0"]
    assert (await two.get_episode("default", "a")).num_calls == 2
    assert [told.act for told in (await one.list_acts("default", 5, None))[0]] == ["tenant.shred"]
    with pytest.raises(NotFound):
        await one.shred_tenant("nobody")


async def test_what_was_begun_before_a_shredding_is_gone_too_and_what_comes_later_is_not(
    opening: Opened, clock: Clock
) -> None:
    ledger = opening(OLD)
    for name in ("a", "between"):
        await begun(ledger, name, at_ms=clock.at_ms)
    await archived(ledger, "a")
    clock.at_ms += 10
    await ledger.shred_tenant("default")
    clock.at_ms += 10
    await begun(ledger, "later", at_ms=clock.at_ms)
    await archived(ledger, "later")
    await archived(ledger, "between")
    assert await names_read(ledger, "a", "between", "later") == ["shredded", "shredded", "later-0"]


async def test_a_rotated_master_key_opens_what_was_wrapped_before_and_after(opening: Opened) -> None:
    old = opening(OLD)
    await begun(old, "a")
    await archived(old, "a")
    rotated = opening(NEW, OLD)
    assert [await rotated.rewrap_tenants() for _ in range(2)] == [1, 0]
    assert await names_read(opening(NEW), "a") == ["a-0"]
    with pytest.raises(SettingsError):
        await opening(OLD).get_timeline("a")


async def test_retention_seals_what_it_leaves_and_passes_over_what_was_shredded(opening: Opened, clock: Clock) -> None:
    ledger = opening(OLD)
    run = RunSettings(run="default", retention=Retention(text_days=1, tokens_days=2))
    await ledger.put_run("default", run)
    head = EpisodeHead(episode_id="a", task="t", created_ms=1_000_000, implicit=True)
    await ledger.create_episode(head, None, "")
    before = await archived(ledger, "a")
    clock.at_ms += DAY_MS
    assert await ledger.apply_retention() == 1
    after = await ledger.read(stored_blob, "a")
    assert (after.startswith(SEALED_MAGIC), after != before) == (True, True)
    assert await names_read(ledger, "a") == ["a-0"]
    await ledger.shred_tenant("default")
    clock.at_ms += DAY_MS
    assert await ledger.apply_retention() == 1
    assert await ledger.read(stored_blob, "a") == after
    assert (await ledger.get_episode("default", "a")).removed == ("tokens", "text")


async def test_a_batch_whose_episodes_were_shredded_says_so_and_its_receipts_are_still_checked(
    opening: Opened, clock: Clock
) -> None:
    ledger = opening(OLD)
    await ledger.put_run("default", RunSettings(run="default", group_size=2))
    for name in ("a", "b"):
        await begun(ledger, name)
        await rewarded(ledger, name, float(name == "a"))
        await archived(ledger, name)
    (group,) = await ledger.settle_groups(10**8)
    fence = await ledger.take_lease("p", "me", 0, 10**9)
    assert fence is not None
    calls = chain_of(2, "a")
    chain, receipts = seal(calls)
    kept = {"a": Archived(episode_id="a", chain=chain, calls=calls, receipts=decode_receipts(receipts))}
    rows = rows_of(calls, RunSettings(run="default"), "p")
    credit = tuple(CallCredit(episode_id="a", call_id=row.call_id, advantage=0.5) for row in rows)
    one = await ledger.take(batch(group, fence, credit=credit))
    manifest = manifest_of(one, "dapo", [(row, 0.5) for row in rows], kept, Checked(context=4, sampled=4), Coverage())
    await ledger.mark_trained(replace(one, manifest=encode_manifest(manifest)))
    assert verify(await ledger.stored_batch(one.batch_id)).shares.sampled == 4
    clock.at_ms = 5_000_000
    await ledger.shred_tenant("default")
    finding = verify(await ledger.stored_batch(one.batch_id))
    assert (finding.faults, finding.gone) == ((), {"payload shredded at 1970-01-01T01:23:20Z": 4})
    with pytest.raises(CorruptRecord, match="shredded"):
        await ledger.archived("a")
