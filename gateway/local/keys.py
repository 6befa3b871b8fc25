"""One key of each kind for a gateway on this machine, kept in a file that only its owner can read.

The ledger holds digests only, so the keys themselves would be lost with the terminal. A key in the file that the
ledger no longer knows, or that is good no more (revoked, expired, or rotated), is replaced.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gateway.auditing import act_of_desk
from gateway.auth import digest
from gateway.key_making import VALID, Wanted, made, standing, told_of
from tracker.clock import Clock
from tracker.store import Ledger
from tracker.types import DEFAULT, Scope

KEYS_FILE = "keys.json"


async def ensure_keys(ledger: Ledger, data_dir: Path, clock: Clock) -> dict[Scope, str]:
    """Scope -> key. Makes what is missing and writes `keys.json` (mode 600)."""
    path = data_dir / KEYS_FILE
    kept = msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if path.exists() else {}
    keys: dict[Scope, str] = {}
    for scope in Scope:
        key = kept.get(scope)
        keys[scope] = key if key and await _is_valid(ledger, key, clock) else await _add(ledger, scope, clock)
    _write(path, keys)
    return keys


async def _is_valid(ledger: Ledger, key: str, clock: Clock) -> bool:
    stored = await ledger.find_key(digest(key))
    return stored is not None and standing(stored, clock.now_ms()) == VALID


async def _add(ledger: Ledger, scope: Scope, clock: Clock) -> str:
    key, made_key = made(Wanted(scopes=(scope,), label=f"hone up: {scope}"), clock.now_ms())
    await ledger.add_key(made_key, act_of_desk(DEFAULT, "key.create", made_key.key_id, told_of(made_key)))
    return key


def _write(path: Path, keys: dict[Scope, str]) -> None:
    """Aside and renamed; never readable by others, not even for a moment."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
    aside.replace(path)
