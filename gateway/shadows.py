"""Copies of calls for a version that answers nobody: what it would have said, compared with what was said.

The rule: a copy is made when the agent has its answer, and changes nothing that anybody else sees: no record, no
timeline, no key's budget. Few are made at a time; one that comes when all places are taken is dropped, and counted.
What is kept is sums: how likely the shadow finds tokens that the agent got, how long it goes on the same way, lengths
and ends. Which version is a shadow is in SQL, looked at in the background, so a call asks nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

from gateway.engine_api import EngineApi
from gateway.engines import EnginePool
from gateway.lookups import VersionBook
from gateway.metrics import Metrics
from gateway.scoring import TOKEN_ID
from tracker.arms import is_canary
from tracker.errors import HoneError
from tracker.store import Ledger
from tracker.trials import Shadow
from tracker.types import Call, CallState, Choice

LOG: Final = logging.getLogger("hone.shadows")
LOOK_S: Final = 2.0
"""Between two looks at which versions are shadows, and between two additions to SQL."""
MAX_COPIES: Final = 4
"""At a time, in each process."""
NUM_POINTS: Final = 4
"""Tokens of an answer that the shadow is asked to score."""
MAX_TOKENS: Final = 1_024
"""Of a copied answer, whatever the agent's limit was."""
Pair = tuple[str, int, int]
"""Policy, version of the shadow, version that it is compared with."""


class Shadows:
    """The copies of one process."""

    def __init__(self, ledger: Ledger, engines: EnginePool, versions: VersionBook, metrics: Metrics) -> None:
        self._ledger = ledger
        self._engines = engines
        self._versions = versions
        self._metrics = metrics
        self._salt = secrets.token_hex(16)
        self._shadows: dict[str, Shadow] = {}
        self._sums: dict[Pair, dict[str, float]] = {}
        self._copies: set[asyncio.Task[None]] = set()

    @property
    def num_copies(self) -> int:
        """Copies that are under way."""
        return len(self._copies)

    async def look(self) -> None:
        """See which versions are shadows, and add what was found to SQL."""
        self._shadows = {shadow.policy: shadow for shadow in await self._ledger.list_shadows()}
        await self._flush()

    async def close(self) -> None:
        """End the copies that are under way."""
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def note(self, call: Call) -> None:
        """Take a call whose answer the agent has; it is copied, dropped, or not drawn."""
        if not self._shadows or call.policy is None:
            return
        shadow = self._shadows.get(call.policy)
        if shadow is None or not self._is_fit(call, shadow) or not is_canary(self._salt, call.call_id, shadow.share):
            return
        if len(self._copies) >= MAX_COPIES:
            self._add((shadow.policy, shadow.version, call.version), {"num_dropped": 1.0})
            self._metrics.shadow_calls.of(shadow.policy, "dropped").inc()
            return
        copy = asyncio.create_task(self._copy(call, call.choices[0], shadow), name=f"shadow of {call.call_id}")
        self._copies.add(copy)
        copy.add_done_callback(self._forget)

    def _forget(self, copy: asyncio.Task[None]) -> None:
        """A copy has ended; a bug that ended it is told, and the next one is made."""
        self._copies.discard(copy)
        if not copy.cancelled() and (error := copy.exception()) is not None:
            LOG.error("%s failed", copy.get_name(), exc_info=error)

    def _is_fit(self, call: Call, shadow: Shadow) -> bool:
        """Whether a copy can be compared: another version's whole answer, from a distribution that has scores."""
        return (
            call.version != shadow.version
            and call.state is CallState.COMPLETED
            and bool(call.prompt_ids)
            and bool(call.choices)
            and 0 < len(call.choices[0].sampled_ids) == len(call.choices[0].logprobs)
            and call.sampling.is_policy_distribution()
        )

    async def _copy(self, call: Call, choice: Choice, shadow: Shadow) -> None:
        pair = (shadow.policy, shadow.version, call.version)
        try:
            numbers = await self._compared(call, choice, shadow)
        except HoneError as error:
            LOG.info("a copy for version %s of %s failed: %s", shadow.version, shadow.policy, error.message)
            self._add(pair, {"num_failed": 1.0})
            self._metrics.shadow_calls.of(shadow.policy, "failed").inc()
        else:
            self._add(pair, numbers)
            self._metrics.shadow_calls.of(shadow.policy, "compared").inc()

    async def _compared(self, call: Call, choice: Choice, shadow: Shadow) -> dict[str, float]:
        """What the shadow says, and how likely it finds what was said."""
        serving = await self._versions.serving(shadow.policy, shadow.version)
        placement = await self._engines.place(serving, None)
        api, where = self._engines.api, (placement.engine, placement.model)
        limit = min(call.sampling.max_tokens or MAX_TOKENS, MAX_TOKENS)
        self._engines.begin(placement)
        try:
            said = await api.go_on(*where, call.prompt_ids, call.sampling, limit)
            gaps = [await self._gap(api, where, call, choice, place) for place in places(len(choice.sampled_ids))]
        finally:
            self._engines.end(placement)
        pairs = zip(said.ids, choice.sampled_ids, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        known = [gap for gap in gaps if gap is not None]
        return {
            "num_calls": 1.0,
            "num_scored": float(len(known)),
            "gap": sum(known),
            "agreement": same / len(choice.sampled_ids),
            "tokens": float(len(said.ids)),
            "tokens_against": float(len(choice.sampled_ids)),
            "truncated": float(said.finish_reason == "length"),
            "truncated_against": float(choice.truncated),
        }

    async def _gap(
        self, api: EngineApi, where: tuple[str, str], call: Call, choice: Choice, place: int
    ) -> float | None:
        """By how many nats the shadow gives a token less than the version that sampled it."""
        prompt = [*call.prompt_ids, *choice.sampled_ids[:place]]
        scores = await api.score(*where, prompt, call.sampling.temperature)
        return gap(scores, choice.sampled_ids[place], choice.logprobs[place])

    def _add(self, pair: Pair, numbers: Mapping[str, float]) -> None:
        sums = self._sums.setdefault(pair, defaultdict(float))
        for name, number in numbers.items():
            sums[name] += number

    async def _flush(self) -> None:
        while self._sums:
            pair, numbers = self._sums.popitem()
            await self._ledger.add_tally(*pair, numbers)


def places(num_tokens: int) -> Sequence[int]:
    """Which tokens of an answer are scored: a few, spread over all of it.

    >>> places(2), places(9)
    ([0, 1], [0, 3, 5, 8])
    """
    wanted = min(num_tokens, NUM_POINTS)
    return [round(number * (num_tokens - 1) / max(1, wanted - 1)) for number in range(wanted)]


def gap(scores: Mapping[str, float], token_id: int, logprob: float) -> float | None:
    """The difference of the log-probabilities; of a token that is not among the likeliest, the least it can be."""
    if not scores:
        return None
    return logprob - scores.get(f"{TOKEN_ID}{token_id}", min(scores.values()))
