"""An engine under test, asked as the gateway asks it: the chat dialect writes, `Upstream` sends, `Capture` folds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.capture import Capture, EndTokens
from gateway.dialects.base import Asked, Dialect, Limits, Target
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.engine_api import EngineApi
from gateway.upstream import Answer, Upstream
from tests.fakes.gateways import RunningGateway
from tracker.types import Choice, Sampling

Json = dict[str, Any]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
NUM_TRIES = 10


@dataclass(slots=True)
class Answered:
    """One answer, as the gateway would record it and as the agent would see it."""

    capture: Capture
    events: list[Json] = field(default_factory=list)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.capture.choices(None, EndTokens())

    @property
    def first(self) -> Choice:
        return self.choices[0]

    @property
    def message(self) -> Any:
        return json.loads(self.first.message)


@dataclass(frozen=True, slots=True)
class Stand:
    """A running engine."""

    kind: str
    url: str
    key: str
    model: str
    """The base model's folder, which is its name too."""

    async def ask(self, body: Json, *, model: str | None = None, dialect: Dialect | None = None) -> Answered:
        """One call to its end."""
        spoken = dialect or (Completions() if "prompt" in body else Chat())
        asked = spoken.parse(json.dumps({"model": "solver", **body}).encode(), Limits())
        answered = Answered(Capture(asked))
        async with self.asking(asked, spoken, model) as events:
            async for event in events:
                answered.capture.feed(event)
                answered.events.append(event)
        assert answered.capture.is_finished, answered.events
        return answered

    @asynccontextmanager
    async def asking(
        self, asked: Asked, dialect: Dialect, model: str | None = None
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """Send a call; its events as they come. Leaving early is what a client that goes away does."""
        async with self.raw(asked, dialect, model) as answer:
            yield _objects(answer.batches())

    @asynccontextmanager
    async def raw(self, asked: Asked, dialect: Dialect, model: str | None = None) -> AsyncIterator[Answer]:
        """Send a call; its answer as it comes."""
        upstream = Upstream(self.key, 120.0)
        sampling = Sampling(
            temperature=asked.sampling.temperature if "temperature" in asked.given else 1.0,
            max_tokens=asked.sampling.max_tokens,
            seed=asked.sampling.seed,
        )
        body = dialect.engine_body(asked, Target(model=model or self.model, sampling=sampling))
        try:
            url = self.url + dialect.engine_path
            async with upstream.ask(url, body, "r", streams=asked.streams) as answer:
                yield answer
        finally:
            await upstream.close()

    @asynccontextmanager
    async def api(self) -> AsyncIterator[EngineApi]:
        async with httpx.AsyncClient(timeout=120) as http:
            yield EngineApi(http, self.key)

    async def score(self, prompt: list[int] | tuple[int, ...], model: str | None = None) -> dict[int, float]:
        """Log-probabilities of the likeliest next tokens, by id."""
        async with self.api() as api:
            top = await api.score(self.url, model or self.model, list(prompt), 1.0)
        return {int(token.removeprefix("token_id:")): value for token, value in top.items()}

    async def adapters(self) -> dict[str, str]:
        async with self.api() as api:
            return {card.id: card.root or "" for card in await api.list_models(self.url) if card.parent}

    async def unload_all(self) -> None:
        async with self.api() as api:
            for name in await self.adapters():
                await api.unload(self.url, name)

    async def num_running(self) -> int:
        """Requests that the engine is busy with."""
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.get(f"{self.url}/load", headers={"authorization": f"Bearer {self.key}"})
            return answer.json()["server_load"]


async def _objects(batches: Any) -> AsyncIterator[Json]:
    async with aclosing(batches) as closing:
        async for batch in closing:
            for event in batch:
                if event.data is not None and not event.is_done:
                    yield json.loads(event.data)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway before an engine, and the data folder it publishes from."""

    running: RunningGateway
    folder: Path

    @property
    def adapters_dir(self) -> Path:
        return self.running.settings.stores.adapters_dir

    async def publish(self, folder: str, digest: str, probe: Json | None = None) -> httpx.Response:
        body = {"folder": folder, "digest": digest, "probe": probe}
        return await self.running.admin.post("/v1/policies/solver/versions", json=body, timeout=120)

    async def active(self) -> int:
        return int((await self.running.admin.get("/v1/policies")).json()["data"][0]["active"])

    async def episode(self) -> Json:
        """An open one of a run that takes the agent's sampling."""
        answer = await self.running.admin.post("/v1/runs", json={"run": "eval", "mode": "eval"})
        assert answer.status_code in (200, 201, 409), answer.text
        return await self.running.open(run="eval")

    async def chat(self, episode: Json, body: Mapping[str, Any]) -> httpx.Response:
        """One call to its end; asked again, as clients do, while a store on a busy machine is too slow to record it."""
        headers = {"Authorization": f"Bearer {episode['api_key']}"}
        given = {"model": "solver", "messages": FRANCE, "temperature": 0, **body}
        for _ in range(NUM_TRIES):
            answer = await self.running.admin.post("/v1/chat/completions", headers=headers, json=given, timeout=120)
            if answer.status_code != 503:
                break
            await asyncio.sleep(0.5)
        return answer


async def until(holds: Any, within_s: float = 60.0) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.05)
