"""What is asked of a new key, and how a key is shown; the same over HTTP and on the command line.

A key is told once, when it is made or rotated. Nobody gives what he does not hold: a new key's scopes are among those
of whoever makes it, and its tenant is his.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.answers import plain
from gateway.auth import mint
from tracker.errors import BadRequest
from tracker.types import DEFAULT, ID_PATTERN, NO_LIMITS, Key, KeyLimits, KeyUsage, Record, Scope

MAX_LIMIT: Final = 10**15
"""More tokens than any key takes."""
MAX_RATE: Final = 100_000
MAX_CONCURRENT: Final = 10_000
MAX_LIFE_S: Final = 100 * 366 * 86_400
MAX_GRACE_S: Final = 30 * 86_400
VALID: Final = "valid"


class Wanted(Record, frozen=True):
    """A key that is to be made."""

    scopes: tuple[Scope, ...]
    tenant: str = DEFAULT
    label: str = ""
    expires_in_s: float | None = None
    limits: KeyLimits = NO_LIMITS


def made(wanted: Wanted, now_ms: int) -> tuple[str, Key]:
    """A new key, which is told this once, and what is stored of it."""
    if not wanted.scopes:
        raise BadRequest(f"Give the key a scope: {', '.join(Scope)}.", param="scopes")
    if not re.fullmatch(ID_PATTERN, wanted.tenant):
        raise BadRequest(f"A tenant's name matches {ID_PATTERN}.", param="tenant")
    life_s = wanted.expires_in_s
    if life_s is not None and not 0 <= life_s <= MAX_LIFE_S:
        raise BadRequest(f"A key lives from 0 to {MAX_LIFE_S} seconds, or for ever where that is left out.")
    check_limits(msgspec.structs.asdict(wanted.limits))
    secret, key_digest = mint()
    return secret, Key(
        key_id=f"key-{secrets.token_hex(8)}",
        digest=key_digest,
        tenant=wanted.tenant,
        scopes=tuple(dict.fromkeys(wanted.scopes)),
        label=wanted.label,
        created_ms=now_ms,
        expires_ms=None if life_s is None else now_ms + int(life_s * 1000),
        limits=wanted.limits,
    )


def check_limits(limits: Mapping[str, int | None]) -> None:
    """Raise `BadRequest` for a limit that is none."""
    tops = {"requests_per_minute": MAX_RATE, "max_concurrent": MAX_CONCURRENT}
    for name, limit in limits.items():
        top = tops.get(name, MAX_LIMIT)
        if limit is not None and not 1 <= limit <= top:
            raise BadRequest(f"{name} is a number from 1 to {top}, or absent for no limit.", param=name)


def told_of(key: Key) -> dict[str, Any]:
    """What the audit log keeps of a key that was made."""
    told = {
        "scopes": key.scopes,
        "label": key.label,
        "expires_ms": key.expires_ms,
        **msgspec.structs.asdict(key.limits),
    }
    return {name: value for name, value in told.items() if value not in (None, "")}


def key_view(key: Key, usage: tuple[KeyUsage, KeyUsage] | None = None) -> dict[str, Any]:
    """A key as people see it: the digest stays in the database."""
    shown = plain(key)
    del shown["digest"]
    shown |= shown.pop("limits")
    if usage is not None:
        in_all, today = usage
        shown["usage"] = {**plain(in_all), "today": plain(today)}
    return shown


def standing(key: Key, now_ms: int) -> str:
    """`valid`, `revoked` or `expired`."""
    if key.revoked_ms is not None:
        return "revoked"
    return "expired" if key.expires_ms is not None and key.expires_ms <= now_ms else VALID
