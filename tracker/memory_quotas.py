"""The limits of keys in this process's memory: the promises of `quotas.py`, written as plainly as they can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tracker.quotas import MINUTE_MS, Limit, Place, Quota, Refusal, day_of, refusal


@dataclass(slots=True)
class _Held:
    """What is held of one key."""

    places: dict[str, Place] = field(default_factory=dict[str, Place])
    window: deque[int] = field(default_factory=deque[int])
    """When its last calls came."""
    spent: int = 0
    today: int = 0
    day: int = -1
    """-1: nothing was ever spent here under a budget."""


class MemoryQuotas:
    """`Quotas` that live as long as the process."""

    def __init__(self, is_dead: Callable[[str, int], bool]) -> None:
        self._is_dead = is_dead
        """Whether a worker is, at a time."""
        self._held: dict[str, _Held] = {}

    async def take_place(self, place: Place, quota: Quota, now_ms: int) -> Refusal | None:
        held = self._held.setdefault(place.key_id, _Held())
        if place.member in held.places:
            return None
        self._learn(held, quota, now_ms)
        self._drop(held, quota, now_ms)
        limit = _reached(held, quota, now_ms)
        if limit is not None:
            return refusal(limit, min(MINUTE_MS, MINUTE_MS - (now_ms - held.window[0])) if held.window else 0, now_ms)
        held.places[place.member] = place
        held.window.append(now_ms)
        return None

    async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
        held = self._held.get(place.key_id)
        if held is None or held.places.pop(place.member, None) is None:
            return False
        if held.day >= 0:
            held.spent += num_tokens
            held.today = num_tokens + (held.today if held.day - day_of(now_ms) in (0, 1) else 0)
            held.day = max(held.day, day_of(now_ms))
        return True

    def _learn(self, held: _Held, quota: Quota, now_ms: int) -> None:
        """The tally is never below what SQL has counted, and there only where there is a budget."""
        if quota.limits.token_budget is None and quota.limits.token_budget_per_day is None:
            return
        day = day_of(now_ms)
        day = held.day if held.day == day + 1 else day
        held.spent = max(held.spent, quota.spent)
        held.today = max(held.today if held.day == day else 0, quota.spent_today if quota.day == day else 0)
        held.day = day

    def _drop(self, held: _Held, quota: Quota, now_ms: int) -> None:
        """A place whose time is up counts no more, nor, where there seems to be none left, one of a dead worker."""
        held.places = {member: place for member, place in held.places.items() if place.deadline_ms > now_ms}
        most = quota.limits.max_concurrent
        if most is not None and len(held.places) >= most:
            alive = {member: place for member, place in held.places.items() if not self._is_dead(place.worker, now_ms)}
            held.places = alive


def _reached(held: _Held, quota: Quota, now_ms: int) -> Limit | None:
    limits = quota.limits
    if limits.token_budget is not None and held.spent >= limits.token_budget:
        return Limit.BUDGET
    if limits.token_budget_per_day is not None and held.today >= limits.token_budget_per_day:
        return Limit.DAILY
    if limits.max_concurrent is not None and len(held.places) >= limits.max_concurrent:
        return Limit.CONCURRENT
    if limits.requests_per_minute is None:
        held.window.clear()
        return None
    while len(held.window) > limits.requests_per_minute:
        held.window.popleft()
    if len(held.window) == limits.requests_per_minute:
        if abs(now_ms - held.window[0]) < MINUTE_MS:
            return Limit.RATE
        held.window.popleft()
    return None
