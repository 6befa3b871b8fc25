"""The limits of keys as all workers hold them together: places for calls in flight, a rate, budgets in tokens.

A call of a key that has limits takes a place before anything else is written, and gives it back, with the tokens it
took, before the end of its answer is released. A place names the worker that holds it: one whose worker died, or whose
deadline has passed, counts no more. What was spent is kept beside the places, and never below what SQL has counted, so
that a store that lost it learns it again. Pure: the records and the protocol; the implementations are
`redis_quotas.py` and `memory_quotas.py`.
"""

from __future__ import annotations

import enum
from typing import Final, Protocol

from tracker.types import KeyLimits, Record

DAY_MS: Final = 86_400_000
MINUTE_MS: Final = 60_000
CALL_MS: Final = 1_000
"""A call in flight may end at any moment."""


class Limit(enum.StrEnum):
    """The limits of a key, by the names of their fields."""

    RATE = "requests_per_minute"
    CONCURRENT = "max_concurrent"
    BUDGET = "token_budget"
    DAILY = "token_budget_per_day"


class Quota(Record, frozen=True):
    """A key's limits, and what SQL knows of what it has spent of them."""

    key_id: str
    limits: KeyLimits
    spent: int = 0
    """Tokens in all."""
    spent_today: int = 0
    """Tokens on `day`."""
    day: int = 0
    """Counted from 1970-01-01, UTC."""


class Place(Record, frozen=True):
    """A call in flight, as the limits of its key count it."""

    key_id: str
    worker: str
    name: str
    """Unique: taking or giving back the same place again changes nothing."""
    deadline_ms: int
    """It counts no longer than this."""

    @property
    def member(self) -> str:
        """How it is stored."""
        return f"{self.worker} {self.name}"


class Refusal(Record, frozen=True):
    """Which limit is reached."""

    limit: Limit
    wait_ms: int | None = None
    """When it is worth another try; `None` where waiting does not help."""


class Quotas(Protocol):
    """What every worker shares. A store that cannot be reached raises `Unavailable`."""

    async def take_place(self, place: Place, quota: Quota, now_ms: int) -> Refusal | None:
        """Take a place; else the limit that refuses it, and then nothing has changed. The same place again is a
        no-op."""
        ...

    async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
        """The call has ended and took this much; False if the place is gone already, and then nothing is counted."""
        ...


def day_of(now_ms: int) -> int:
    """The day of a time, counted from 1970-01-01, UTC.

    >>> day_of(0), day_of(86_399_999), day_of(86_400_000)
    (0, 0, 1)
    """
    return now_ms // DAY_MS


def to_midnight_ms(now_ms: int) -> int:
    """How long the day of a time still lasts.

    >>> to_midnight_ms(86_399_999)
    1
    """
    return DAY_MS - now_ms % DAY_MS


def refusal(limit: Limit, rate_ms: int, now_ms: int) -> Refusal:
    """The refusal by a limit; `rate_ms` is when the rate allows the next call.

    >>> refusal(Limit.BUDGET, 0, 0).wait_ms is None
    True
    """
    match limit:
        case Limit.RATE:
            wait_ms = rate_ms
        case Limit.CONCURRENT:
            wait_ms = CALL_MS
        case Limit.DAILY:
            wait_ms = to_midnight_ms(now_ms)
        case Limit.BUDGET:
            wait_ms = None
    return Refusal(limit=limit, wait_ms=wait_ms)
