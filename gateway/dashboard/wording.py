"""How times, numbers and words stand on a page. Pure: the filters of every template.

>>> when(1_700_000_000_000), number(0.123456), number(12_345), number(None), lasted(93_500)
('2023-11-14 22:13:20', '0.123', '12,345', '–', '1 min 34 s')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

NOTHING: Final = "–"
MAX_MS: Final = 253_402_300_799_000
"""The last millisecond that a date can name; more stands as a number."""
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "ready", "trained", "active", "valid", "archived", "true"), "good"),
    **dict.fromkeys(("failed", "down", "refused", "revoked", "withdrawn", "lost", "infra_error", "not ready"), "bad"),
    **dict.fromkeys(("skipped", "expired", "cancelled", "dropped", "aborted", "late"), "warn"),
    **dict.fromkeys(("open", "taken", "finishing", "sealed", "reserved", "loading", "swapping"), "info"),
}
"""The colour of a word that tells a state; another word is plain."""


def when(ms: int | None) -> str:
    """A moment, in UTC."""
    if ms is None:
        return NOTHING
    if not 0 <= ms <= MAX_MS:
        return str(ms)
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(ms: int | None) -> str:
    """The same for programs; empty where it is none."""
    if ms is None or not 0 <= ms <= MAX_MS:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def number(value: float | None, digits: int = 3) -> str:
    """A number as people read it: whole ones with separators, others to so many significant digits."""
    if value is None:
        return NOTHING
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def fixed(value: float | None, digits: int = 3) -> str:
    """A number with so many digits behind the point, as a column of them wants it.

    >>> fixed(0.5), fixed(-1, 2), fixed(None)
    ('0.500', '−1.00', '–')
    """
    if value is None:
        return NOTHING
    return f"{value:.{digits}f}".replace("-", "−")


def percent(share: float | None, digits: int = 0) -> str:
    """A share of one.

    >>> percent(0.256), percent(None)
    ('26 %', '–')
    """
    return NOTHING if share is None else f"{100 * share:.{digits}f} %"


def lasted(ms: float | None) -> str:
    """A length of time.

    >>> lasted(12), lasted(1_500), lasted(7_300_000), lasted(200_000_000)
    ('12 ms', '1.5 s', '2 h 1 min', '2 d 7 h')
    """
    if ms is None:
        return NOTHING
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = round(ms / 1000)
    if seconds < 60:
        return f"{ms / 1000:.3g} s"
    for large, small, unit, smaller in ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "min"), (60, 1, "min", "s")):
        if seconds >= large:
            rest = seconds % large // small
            return f"{seconds // large} {unit} {rest} {smaller}" if rest else f"{seconds // large} {unit}"
    return f"{seconds} s"


def size(num_bytes: float | None) -> str:
    """How much memory or disk.

    >>> size(512), size(3_145_728)
    ('512 B', '3.0 MiB')
    """
    if num_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def words(name: object) -> str:
    """A name of our own as words.

    >>> words("too_few_scored")
    'too few scored'
    """
    return str(name).replace("_", " ")


def kind(state: object) -> str:
    """The colour of a state."""
    return KINDS.get(str(state).lower(), "plain")


def segment(text: object) -> str:
    """A part of one of our own paths."""
    return quote(str(text), safe="", errors="replace")


def pretty(value: Any) -> str:
    """JSON to be read, of a value or of stored bytes; what is none stands as it is."""
    if isinstance(value, bytes | bytearray | str):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        try:
            return msgspec.json.format(raw, indent=2).decode("utf-8", "replace")
        except msgspec.MsgspecError:
            return raw.decode("utf-8", "replace")
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8", "replace")


def shown_token(text: str) -> str:
    r"""The text of a token with what one does not see made visible.

    >>> shown_token(" a\n"), shown_token(""), shown_token("\x00\u202e")
    (' a⏎\n', '∅', '␀<U+202E>')
    """
    return "".join(_visible(character) for character in text) or "∅"


def _visible(character: str) -> str:
    if character in "\n\t":
        return {"\n": "⏎\n", "\t": "⇥\t"}[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    return character if character.isprintable() else f"<U+{ord(character):04X}>"


FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "when": when,
    "iso": iso,
    "number": number,
    "fixed": fixed,
    "percent": percent,
    "lasted": lasted,
    "size": size,
    "words": words,
    "kind": kind,
    "segment": segment,
    "pretty": pretty,
    "shown_token": shown_token,
}
