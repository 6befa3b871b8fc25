"""What is kept of an archived episode, and the episode without what is not kept any more.

Tokens, text and metadata are kept or removed each by itself. Removing leaves the call: who made it, when, how it ended,
why it is not trained; and beside it, untouched, the receipts and the chain it was sealed with, which hold digests only.
Pure. When something is removed is decided in `retention.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from tracker.types import Call, Choice, Reason, Retention

DAY_MS: Final = 86_400_000
EVENT: Final = "retention"
"""The kind of the event that tells a removal; its detail is what was removed."""


class Kept(enum.IntFlag):
    """What of an episode is still there, as `episodes.kept` counts it."""

    TOKENS = 1
    TEXT = 2
    METADATA = 4
    ALL = 7


_DAYS: Final = {Kept.TOKENS: "tokens_days", Kept.TEXT: "text_days", Kept.METADATA: "metadata_days"}


def words(kept: int) -> tuple[str, ...]:
    """What is not kept, by name.

    >>> words(Kept.TEXT | Kept.METADATA)
    ('tokens',)
    """
    return tuple(str(part.name).lower() for part in _DAYS if not part & kept)


def removed_line(at_ms: int | None) -> str:
    """What is said in the place of tokens that retention removed.

    >>> removed_line(0)
    'tokens removed by retention at 1970-01-01T00:00:00Z'
    """
    if at_ms is None:
        return "tokens removed by retention"
    at = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    return f"tokens removed by retention at {at}"


def cutoffs(retention: Retention, now_ms: int) -> dict[Kept, int]:
    """What a run removes, and the archive time up to which it does now."""
    days = {part: getattr(retention, name) for part, name in _DAYS.items()}
    return {part: now_ms - int(number * DAY_MS) for part, number in days.items() if number is not None}


def due(retention: Retention, archived_ms: int, kept: int, now_ms: int) -> Kept:
    """What of an episode is to be removed now."""
    found = Kept(0)
    for part, until_ms in cutoffs(retention, now_ms).items():
        if archived_ms <= until_ms and part & kept:
            found |= part
    return found


def without(calls: Iterable[Call], gone: Kept) -> tuple[Call, ...]:
    """The calls without tokens or text. A choice that could have been trained says why it cannot be any more."""
    kept = tuple(calls)
    if Kept.TOKENS & gone:
        kept = tuple(_without_tokens(call) for call in kept)
    return tuple(_without_text(call) for call in kept) if Kept.TEXT & gone else kept


def _without_tokens(call: Call) -> Call:
    return replace(call, prompt_ids=(), choices=tuple(_emptied(choice) for choice in call.choices))


def _emptied(choice: Choice) -> Choice:
    return replace(choice, sampled_ids=(), logprobs=(), reason=choice.reason or Reason.REMOVED)


def _without_text(call: Call) -> Call:
    """Words of a failure go too: an engine may have quoted the request in them."""
    choices = tuple(replace(choice, message=b"null") for choice in call.choices)
    return replace(call, messages=(), request=b"{}", detail="", choices=choices)
