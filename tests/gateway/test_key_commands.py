"""`hone keys` on a data folder: every command, and what each leaves in the audit log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.auth import digest
from gateway.cli import app
from tracker.clock import SystemClock
from tracker.errors import BadRequest, HoneError
from tracker.ledger import SqlLedger
from tracker.sql import open_engine, upgrade
from tracker.types import Act, Key, KeyUsage

pytestmark = pytest.mark.slow
Json = dict[str, Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "data").mkdir()
    made = f"sqlite:///{tmp_path}/data/hone.db"
    asyncio.run(upgrade(made))
    return made


def hone(url: str, *arguments: str) -> str:
    """What `hone keys` prints."""
    env = {"HONE_DATA_DIR": str(Path(url.removeprefix("sqlite:///")).parent), "HONE_DATABASE_URL": url}
    ran = CliRunner().invoke(app, ["keys", *arguments], env=env)
    if isinstance(ran.exception, HoneError):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def told(url: str, *arguments: str) -> Json:
    return json.loads(hone(url, *arguments, "--json"))


def read(url: str, key: str) -> tuple[Key | None, list[Act]]:
    """What the database holds of a key, and the audit log of its tenant."""

    async def ask() -> tuple[Key | None, list[Act]]:
        ledger = SqlLedger(open_engine(url), SystemClock())
        try:
            acts, _ = await ledger.list_acts("acme", 50, None)
            found = await ledger.find_key(digest(key))
            if found is not None:
                await ledger.add_usage({(found.key_id, 0): KeyUsage(calls=2, prompt_tokens=5, sampled_tokens=4)})
            return found, acts
        finally:
            await ledger.close()

    return asyncio.run(ask())


def test_a_key_is_made_limited_rotated_and_revoked(url: str) -> None:
    limits = (
        "--requests-per-minute",
        "6",
        "--max-concurrent",
        "2",
        "--token-budget",
        "9",
        "--token-budget-per-day",
        "8",
    )
    scopes = ("--scope", "agent", "--scope", "reward", "--tenant", "acme", "--label", "driver")
    made = told(url, "create", *scopes, *limits, "--expires-in-s", "60")
    assert made["expires_ms"] - made["created_ms"] == 60_000
    assert (made["requests_per_minute"], made["token_budget_per_day"]) == (6, 8)
    key_id = made["key_id"]
    changed = told(url, "limit", key_id, "--tenant", "acme", "--max-concurrent", "0", "--token-budget", "7")
    assert (changed["max_concurrent"], changed["token_budget"], changed["requests_per_minute"]) == (None, 7, 6)
    rotated = told(url, "rotate", key_id, "--tenant", "acme", "--grace-s", "30")
    assert rotated["key"] != made["key"]
    assert rotated["old_until_ms"] - made["created_ms"] >= 30_000
    found, _ = read(url, rotated["key"])
    assert found is not None
    assert found.key_id == key_id
    listed = told(url, "list", "--tenant", "acme")
    assert (listed["usage"]["calls"], listed["usage"]["prompt_tokens"]) == (2, 5)
    assert "digest" not in listed
    head, _, row = hone(url, "list", "--tenant", "acme").splitlines()
    assert (head.split()[:6], row.split()[2:7]) == (
        ["key_id", "standing", "scopes", "calls", "tokens", "today"],
        ["agent,", "reward", "2", "9", "0"],
    )
    assert told(url, "show", key_id, "--tenant", "acme") == listed
    assert "token_budget" in hone(url, "show", key_id, "--tenant", "acme")
    assert told(url, "revoke", key_id, "--tenant", "acme")["revoked_ms"] is not None
    with pytest.raises(HoneError, match="was revoked"):
        hone(url, "rotate", key_id, "--tenant", "acme")
    with pytest.raises(HoneError, match="There is no key"):
        hone(url, "revoke", key_id)
    _, acts = read(url, made["key"])
    assert [(act.act, act.outcome) for act in reversed(acts)] == [
        ("key.create", "ok"),
        ("key.limit", "ok"),
        ("key.rotate", "ok"),
        ("key.revoke", "ok"),
        ("key.rotate", "conflict"),
    ]
    assert {act.key_id for act in acts} == {"cli"}
    assert json.loads(acts[-1].detail)["label"] == "driver"
    assert not any(secret.encode() in act.detail for act in acts for secret in (made["key"], rotated["key"]))


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--scope", "agent", "--requests-per-minute", "1000000000"),
        ("create", "--scope", "agent", "--tenant", "a b"),
        ("create", "--scope", "agent", "--expires-days", "1", "--expires-in-s", "4"),
        ("create", "--scope", "agent", "--expires-in-s", "1e300"),
        ("rotate", "key-1", "--grace-s", "1e9"),
        ("limit", "key-1", "--token-budget", "9" * 17),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(url: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(HoneError):
        hone(url, *arguments)
    assert hone(url, "list") == ""


def test_a_limit_that_is_not_named_is_asked_for(url: str) -> None:
    key_id = told(url, "create", "--scope", "agent", "--tenant", "acme")["key_id"]
    with pytest.raises(BadRequest, match="--requests-per-minute"):
        hone(url, "limit", key_id, "--tenant", "acme")
    assert [act.act for act in read(url, "")[1]] == ["key.create"]
