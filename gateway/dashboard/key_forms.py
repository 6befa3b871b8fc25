"""What the forms about keys ask for, and what a key's row shows. Pure: fields in, records out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.key_making import MAX_GRACE_S, MAX_LIFE_S, Wanted, check_limits, standing
from tracker.errors import BadRequest
from tracker.types import Key, KeyLimits, KeyUsage, Scope

MAX_LABEL_CHARS: Final = 512
DAY_S: Final = 86_400
HOUR_S: Final = 3_600
NAMES: Final[Mapping[str, str]] = {
    "requests_per_minute": "Calls a minute",
    "max_concurrent": "Calls at once",
    "token_budget": "Tokens in all",
    "token_budget_per_day": "Tokens a day",
}
"""Of each limit."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit of a key, and how much of it is used where that is counted."""

    field: str
    name: str
    limit: int | None
    used: int | None

    @property
    def share(self) -> float | None:
        """Of the limit that is used."""
        return None if self.limit is None or self.used is None else self.used / self.limit


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as a page shows it; its digest stays in the database."""

    key_id: str
    label: str
    scopes: tuple[str, ...]
    standing: str
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    in_all: KeyUsage
    today: KeyUsage
    limits: tuple[LimitRow, ...]

    @property
    def is_good(self) -> bool:
        """Whether it still opens anything."""
        return self.standing == "valid"


def key_row(key: Key, usage: tuple[KeyUsage, KeyUsage], now_ms: int) -> KeyRow:
    """A key with what calls with it took."""
    in_all, today = usage
    used = {"token_budget": in_all.tokens, "token_budget_per_day": today.tokens}
    return KeyRow(
        key_id=key.key_id,
        label=key.label,
        scopes=tuple(scope.value for scope in key.scopes),
        standing=standing(key, now_ms),
        created_ms=key.created_ms,
        expires_ms=key.expires_ms,
        revoked_ms=key.revoked_ms,
        in_all=in_all,
        today=today,
        limits=tuple(
            LimitRow(field, name, getattr(key.limits, field), used.get(field)) for field, name in NAMES.items()
        ),
    )


def wanted_of(form: Mapping[str, str], tenant: str) -> Wanted:
    """The key that a form asks for; raises `BadRequest`."""
    label = form.get("label", "").strip()
    if len(label) > MAX_LABEL_CHARS or "\x00" in label:
        raise BadRequest(f"A label is at most {MAX_LABEL_CHARS} characters.", param="label")
    days = _number(form, "expires_in_days", "The number of days")
    if days is not None and not 0 < days * DAY_S <= MAX_LIFE_S:
        raise BadRequest(f"A key lives for 1 to {MAX_LIFE_S // DAY_S} days, or for ever where the field is empty.")
    return Wanted(
        scopes=_scopes(form.get("scopes", "")),
        tenant=tenant,
        label=label,
        expires_in_s=None if days is None else days * DAY_S,
        limits=KeyLimits(**limits_of(form)),
    )


def limits_of(form: Mapping[str, str]) -> dict[str, int | None]:
    """Every limit, `None` where the field is empty; raises `BadRequest`.

    >>> limits_of({"token_budget": "1000"})["token_budget"], limits_of({"token_budget": " "})["token_budget"]
    (1000, None)
    """
    limits: dict[str, int | None] = {}
    for field, name in NAMES.items():
        text = form.get(field, "").strip().replace(",", "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise BadRequest(f"{name}: write a whole number, or leave the field empty for no limit.", param=field)
        limits[field] = int(text) if text else None
    check_limits(limits)
    return limits


def grace_of(form: Mapping[str, str]) -> float:
    """For how many seconds the old secret goes on; raises `BadRequest`."""
    hours = _number(form, "grace_hours", "The number of hours") or 0.0
    if not 0 <= hours * HOUR_S <= MAX_GRACE_S:
        raise BadRequest(f"The old key goes on for 0 to {MAX_GRACE_S // HOUR_S} hours.", param="grace_hours")
    return hours * HOUR_S


def _scopes(text: str) -> tuple[Scope, ...]:
    try:
        return tuple(Scope(name) for name in text.split(",") if name)
    except ValueError as error:
        raise BadRequest(f"There is no such scope; there are {', '.join(Scope)}.", param="scopes") from error


def _number(form: Mapping[str, str], field: str, name: str) -> float | None:
    text = form.get(field, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name} is a number.", param=field)
    return value
