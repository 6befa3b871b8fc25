"""`hone tenants` and `hone lineage` on a data folder: what they do, and what they leave in the audit log."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, select
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.tracker.building import chain_of
from tracker import tables
from tracker.clock import SystemClock
from tracker.codec import encode_calls
from tracker.errors import Gone, NotFound
from tracker.ledger import SqlLedger
from tracker.receipts import seal
from tracker.sealing import MasterKeys
from tracker.types import EpisodeHead
from tracker.vault import Vault

pytestmark = pytest.mark.slow
T = TypeVar("T")
OLD, NEW = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))


def with_ledger(folder: Path, keys: str, work: Callable[[SqlLedger], Awaitable[T]]) -> T:
    async def run() -> T:
        vault = Vault(MasterKeys.parsed(keys, "the test"))
        ledger = await SqlLedger.connect(f"sqlite:///{folder}/hone.db", SystemClock(), vault)
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    return asyncio.run(run())


async def archive(ledger: SqlLedger) -> None:
    head = EpisodeHead(episode_id="e", tenant="acme", task="t", created_ms=SystemClock().now_ms() - 10)
    await ledger.create_episode(head, None, "")
    row = replace(await ledger.get_episode("acme", "e"), num_calls=2, archived_ms=1)
    calls = chain_of(2)
    assert await ledger.archive_episode(row, encode_calls(calls), *seal(calls))


def hone(folder: Path, keys: str, *arguments: str, typed: str = "") -> Result:
    env = {"HONE_DATA_DIR": str(folder), "HONE_ENCRYPTION_KEY": keys}
    return CliRunner().invoke(app, list(arguments), env=env, input=typed)


def test_a_tenant_is_shredded_only_when_that_is_really_meant(tmp_path: Path) -> None:
    with_ledger(tmp_path, OLD, archive)
    assert hone(tmp_path, OLD, "tenants", "shred", "acme", typed="n\n").exit_code == 1
    assert with_ledger(tmp_path, OLD, lambda ledger: ledger.get_timeline("e")) == encode_calls(chain_of(2))
    assert hone(tmp_path, OLD, "tenants", "shred", "acme", "--yes").output == "1 keys of acme are shredded.\n"
    with pytest.raises(Gone, match="shredded"):
        with_ledger(tmp_path, OLD, lambda ledger: ledger.get_timeline("e"))
    assert isinstance(hone(tmp_path, OLD, "tenants", "shred", "nobody", "--yes").exception, NotFound)
    acts, _ = with_ledger(tmp_path, OLD, lambda ledger: ledger.list_acts("acme", 5, None))
    assert [(act.act, act.key_id) for act in acts] == [("tenant.shred", "cli")]


def test_a_wrapped_key_is_nowhere_in_the_files_once_it_was_shredded(tmp_path: Path) -> None:
    with_ledger(tmp_path, OLD, archive)
    (wrapped,) = with_ledger(tmp_path, OLD, lambda ledger: ledger.read(wrapped_keys))
    assert wrapped in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    hone(tmp_path, OLD, "tenants", "shred", "acme", "--yes")
    assert wrapped not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def wrapped_keys(connection: Connection) -> list[bytes]:
    return list(connection.execute(select(tables.tenant_keys.c.wrapped)).scalars())


def test_a_rotated_key_reads_what_was_sealed_before(tmp_path: Path) -> None:
    with_ledger(tmp_path, OLD, archive)
    assert hone(tmp_path, f"{NEW},{OLD}", "tenants", "rewrap").output == "1 keys are wrapped anew.\n"
    assert with_ledger(tmp_path, NEW, lambda ledger: ledger.get_timeline("e")) == encode_calls(chain_of(2))
    acts, _ = with_ledger(tmp_path, NEW, lambda ledger: ledger.list_acts("default", 5, None))
    assert [act.act for act in acts] == ["tenant.rewrap"]


def test_an_episodes_lineage_is_told_in_words_and_as_json(tmp_path: Path) -> None:
    with_ledger(tmp_path, OLD, archive)
    told = hone(tmp_path, OLD, "lineage", "e", "--tenant", "acme")
    assert told.output == "e: no version was trained on it\n"
    shown = json.loads(hone(tmp_path, OLD, "lineage", "e", "--tenant", "acme", "--json").output)
    assert (shown["batches"], shown["versions"], shown["is_deleted"]) == ([], {}, False)
    assert isinstance(hone(tmp_path, OLD, "lineage", "e").exception, NotFound)
