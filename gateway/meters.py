"""What calls take of their keys: limits are held before anything is written, and usage is counted.

Each call has a meter, which says whose key it counts against: the one it was made with, or the one that opened its
episode where it was made with a session key. Entering it takes a place where that key has limits; `end` gives the place
back before the end of the answer is released, so that an agent's next call finds it free. Calls of keys without limits
cost no round trip. Usage is counted in this process and added to SQL every `FLUSH_S`; what a budget counts is also kept
in the episode store, and is never below what SQL knows. A place that could not be given back is given back later, and
counts no longer than its deadline or its worker live.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final, Self

import msgspec

from tracker.clock import Clock
from tracker.errors import BudgetExceeded, HoneError, TooManyRequests, Unavailable
from tracker.quotas import Limit, Place, Quota, Quotas, Refusal, day_of
from tracker.store import Ledger
from tracker.types import Call, KeyUsage, Record

LOG: Final = logging.getLogger("hone.meters")
FLUSH_S: Final = 2.0
"""How long a count waits for SQL; what a worker counted in this time is lost with it when it is killed."""
SETTLED: Final = 64
"""How many places that are owed are given back at once."""
GIVE_BACK_S: Final = 3.0
"""How long the end of an answer waits for the place to be given back."""


class Payer(Record, frozen=True):
    """Whose key a call counts against."""

    key_id: str
    """Empty where nobody knows: then it counts against none."""
    quota: Quota | None = None
    """`None` where the key has no limits."""


class Meters:
    """The meters of one process."""

    def __init__(self, quotas: Quotas, ledger: Ledger, clock: Clock, worker: str, lifetime_s: float) -> None:
        self._quotas = quotas
        self._ledger = ledger
        self._clock = clock
        self._worker = worker
        self._lifetime_ms = int(lifetime_s * 1000)
        """No call is in flight for longer."""
        self._counted: dict[tuple[str, int], list[int]] = {}
        """(key id, day) -> calls, prompt tokens, sampled tokens that SQL does not know of yet."""
        self._owed: list[tuple[Place, int]] = []
        """Places that could not be given back, with the tokens that their calls took."""
        self._turn = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()

    def meter(self, payer: Payer) -> Meter:
        """The meter of one call."""
        return Meter(self, payer)

    async def flush(self) -> None:
        """Give back what is owed, then add to SQL what was counted; what fails is kept for the next time.

        Afterwards SQL knows everything that was counted before, also where another flush was under way. It goes on if
        its caller is cancelled: what SQL commits all the same would be counted again.
        """
        task = asyncio.create_task(self._flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        await asyncio.shield(task)

    async def _flush(self) -> None:
        async with self._turn:
            await self._settle()
            await self._add_usage()

    async def _settle(self) -> None:
        """Give back what is owed, many at once: an outage leaves as many as calls were refused in it. Usage does not
        wait for all of them, nor for a store that is away."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FLUSH_S
        while self._owed and loop.time() < until_s:
            owed = self._owed[-SETTLED:]
            del self._owed[-SETTLED:]
            now_ms = self._clock.now_ms()
            live = [(place, taken) for place, taken in owed if taken or place.deadline_ms > now_ms]
            if not all(await asyncio.gather(*(self.give_back(place, taken) for place, taken in live))):
                break

    async def _add_usage(self) -> None:
        counted, self._counted = self._counted, {}
        if not counted:
            return
        try:
            await self._ledger.add_usage(
                {
                    name: KeyUsage(calls=calls, prompt_tokens=prompt, sampled_tokens=sampled)
                    for name, (calls, prompt, sampled) in counted.items()
                }
            )
        except BaseException:
            for (key_id, day), counts in counted.items():
                self._add(key_id, day, counts)
            raise

    async def close(self) -> None:
        """Flush for the last time."""
        try:
            await self.flush()
        except HoneError as error:
            LOG.warning("the last usage of keys could not be counted: %s", error.message)

    def count(self, key_id: str, prompt_tokens: int, sampled_tokens: int) -> None:
        """Count one call that has ended."""
        self._add(key_id, day_of(self._clock.now_ms()), (1, prompt_tokens, sampled_tokens))

    async def take(self, quota: Quota) -> Place:
        """A place for a call; raises what refuses it."""
        now_ms = self._clock.now_ms()
        place = Place(
            key_id=quota.key_id,
            worker=self._worker,
            name=secrets.token_hex(8),
            deadline_ms=now_ms + self._lifetime_ms,
        )
        try:
            refusal = await self._quotas.take_place(place, quota, now_ms)
        except (Unavailable, asyncio.CancelledError):
            self._owed.append((place, 0))  # it may have been taken
            raise
        if refusal is not None:
            raise refused(refusal, quota)
        return place

    async def give_back(self, place: Place, num_tokens: int) -> bool:
        """Give a place back soon, or later where the store is away; whether it is done."""
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self._quotas.give_back(place, num_tokens, self._clock.now_ms())
        except (Unavailable, TimeoutError, asyncio.CancelledError) as error:
            self._owed.append((place, num_tokens))
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        return True

    def _add(self, key_id: str, day: int, counts: tuple[int, int, int] | list[int]) -> None:
        sums = self._counted.setdefault((key_id, day), [0, 0, 0])
        for n, count in enumerate(counts):
            sums[n] += count


class Meter:
    """What one call takes. Used as a context around everything that the call does."""

    __slots__ = ("_has_ended", "_meters", "_payer", "_place", "_taken")

    def __init__(self, meters: Meters, payer: Payer) -> None:
        self._meters = meters
        self._payer = payer
        self._place: Place | None = None
        self._has_ended = False
        self._taken: tuple[int, int] | None = None

    async def __aenter__(self) -> Self:
        """Raises `TooManyRequests`, `BudgetExceeded`, or `Unavailable` where the limits cannot be asked about."""
        if self._payer.quota is not None:
            self._place = await self._meters.take(self._payer.quota)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.end()

    def take(self, prompt_tokens: int, sampled_tokens: int = 0) -> None:
        """Note what the call took."""
        self._taken = prompt_tokens, sampled_tokens

    async def end(self, call: Call | None = None) -> None:
        """Count the call, if it came to one, and give its place back; the first time only."""
        if self._has_ended:
            return
        self._has_ended = True
        if call is not None:
            self.take(*tokens_of(call))
        if self._taken is not None and self._payer.key_id:
            self._meters.count(self._payer.key_id, *self._taken)
        if self._place is not None:
            await self._meters.give_back(self._place, sum(self._taken or ()))


def tokens_of(call: Call) -> tuple[int, int]:
    """Prompt and sampled tokens of a call: its ids, or what was counted of a model that is no policy."""
    if call.usage is not None:
        return call.usage.prompt_tokens, call.usage.completion_tokens
    sampled = sum(len(choice.sampled_ids) for choice in call.choices)
    return len(call.prompt_ids), sampled or call.usage_completion_tokens or 0


def refused(refusal: Refusal, quota: Quota) -> HoneError:
    """The error that tells which limit is reached, and how it is raised."""
    limit, allowed = refusal.limit, msgspec.structs.asdict(quota.limits)[refusal.limit.value]
    wait_s = None if refusal.wait_ms is None else max(1, -(-refusal.wait_ms // 1000))
    raised = f"An administrator raises it: hone keys limit {quota.key_id} --{limit.value.replace('_', '-')} NUMBER."
    match limit:
        case Limit.RATE:
            told = f"The limit of this key is {allowed} calls in any minute"
        case Limit.CONCURRENT:
            told = f"The limit of this key is {allowed} in flight at once"
        case Limit.BUDGET:
            told = f"This key's budget of {allowed} tokens is used up"
        case Limit.DAILY:
            told = f"This key's budget of {allowed} tokens a day is used up until midnight UTC"
    message = f"{told} ({limit}). {raised}"
    if limit in (Limit.BUDGET, Limit.DAILY):
        return BudgetExceeded(message, retry_after_s=wait_s)
    return TooManyRequests(message, retry_after_s=wait_s or 1)
