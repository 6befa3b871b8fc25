"""The text of token ids, as the engines of a policy tell it: a few requests for a page of them, remembered.

An engine turns ids into one text. So that each keeps its own, a separator stands between them, which is looked for in
the answer; where that does not come out even, or no engine tells, ids stay numbers. A tokenizer belongs to a policy's
base model, so versions share what is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from gateway.engines import EnginePool
from tracker.clock import Clock
from tracker.errors import UpstreamFailed

SEPARATOR: Final = "\n\u241e\n"
MAX_KEPT: Final = 300_000
"""Texts that are remembered, over all base models."""
TIME_S: Final = 2.0
PAUSE_MS: Final = 30_000
"""After an engine could not tell, before it is asked again."""


class Pieces:
    """What ids say."""

    def __init__(self, engines: EnginePool, clock: Clock) -> None:
        self._engines = engines
        self._clock = clock
        self._kept: dict[tuple[str, int], str] = {}
        self._separators: dict[str, tuple[tuple[int, ...], str]] = {}
        self._paused_until_ms: dict[str, int] = {}

    async def texts(self, policy: str, ids: Iterable[int]) -> dict[int, str]:
        """id -> its text, for those that are known or can be learned at once."""
        wanted = set(ids)
        place = next(((one.url, one.bases[policy]) for one in self._engines.ready() if policy in one.bases), None)
        if place is None:
            return {}
        url, model = place
        missing = sorted(token for token in wanted if (model, token) not in self._kept)
        if missing and self._clock.now_ms() >= self._paused_until_ms.get(model, 0):
            try:
                async with asyncio.timeout(TIME_S):
                    await self._learn(url, model, missing)
            except (UpstreamFailed, TimeoutError):
                self._paused_until_ms[model] = self._clock.now_ms() + PAUSE_MS
        return {token: self._kept[model, token] for token in wanted if (model, token) in self._kept}

    async def _learn(self, url: str, model: str, ids: list[int]) -> None:
        api = self._engines.api
        if model not in self._separators:
            body = {"model": model, "prompt": SEPARATOR, "add_special_tokens": False}
            between = await api.tokenize(url, body)
            self._separators[model] = between, await api.detokenize(url, model, between)
        between, told = self._separators[model]
        if SEPARATOR.strip() not in told:
            raise UpstreamFailed("The engine does not give a text back as it was.")
        joined = [token for one in ids for token in (*between, one)]
        texts = (await api.detokenize(url, model, [*joined, *between])).split(told)
        if len(texts) != len(ids) + 2:
            raise UpstreamFailed("The texts of these ids cannot be told apart.")
        if len(self._kept) + len(ids) > MAX_KEPT:
            self._kept.clear()
        self._kept.update(((model, token), text) for token, text in zip(ids, texts[1:-1], strict=True))
