"""A small REST client of a gateway, for drivers: episodes, rewards, runs and what they became.

It returns what the contract says as parsed JSON and raises `RequestFailed` with the gateway's own message on any other
answer. A refused connection, a 429 and a 503 are waited out for a while, since a gateway that restarts refuses work
rather than losing it; one that waits for the trainer says how soon to ask again, and is given the time of long steps.
Model calls are not made here: that is the agent's part, with whatever client it likes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self, cast

import httpx

from tracker.errors import HoneError

PATIENCE_S: Final = 60.0
"""How long a request is tried again while the gateway cannot take it."""
TRAINER_PATIENCE_S: Final = 1800.0
"""How long it is tried again while what is in flight has to be trained first."""
RETRY_S: Final = 0.5
TOO_STALE: Final = "too_stale"
BUSY: Final = frozenset({429, 503})

Json = dict[str, Any]


class RequestFailed(HoneError):
    """The gateway answered with an error; `status` and the message are its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """One key at one gateway. Use it as an async context manager."""

    def __init__(self, base_url: str, api_key: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=30.0,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def create_run(self, run: str, **settings: object) -> Json:
        """Create or change a run."""
        return await self._request("POST", "/v1/runs", {"run": run, **settings})

    async def run(self, run: str) -> Json:
        """A run's settings, and what of it was trained."""
        return await self._request("GET", f"/v1/runs/{run}")

    async def start_episode(self, task: str, *, idempotency_key: str, **fields: object) -> Json:
        """Start an attempt at a task: its id and the environment for the agent."""
        return await self._request("POST", "/v1/episodes", {"task": task, "idempotency_key": idempotency_key, **fields})

    async def reward(self, episode_id: str, value: float | None, *, idempotency_key: str) -> Json:
        """Score the episode; this ends it."""
        body = {"episode_id": episode_id, "reward": value, "idempotency_key": idempotency_key}
        return await self._request("POST", "/v1/reward", body)

    async def reward_call(self, call_id: str, value: float | None, *, idempotency_key: str) -> Json:
        """Score one call: the id of its answer is its own."""
        body = {"call_id": call_id, "reward": value, "idempotency_key": idempotency_key}
        return await self._request("POST", "/v1/reward", body)

    async def finish(self, episode_id: str, status: str) -> Json:
        """End the episode without a score."""
        return await self._request("POST", f"/v1/episodes/{episode_id}/finish", {"status": status})

    async def episode(self, episode_id: str) -> Json:
        return await self._request("GET", f"/v1/episodes/{episode_id}")

    async def samples(self, episode_id: str) -> Json:
        return await self._request("GET", f"/v1/episodes/{episode_id}/samples")

    async def timeline(self, episode_id: str) -> Json:
        return await self._request("GET", f"/v1/episodes/{episode_id}/timeline")

    async def engines(self) -> list[Json]:
        return [item async for item in self._pages("/v1/engines", {})]

    async def policies(self) -> list[Json]:
        return [item async for item in self._pages("/v1/policies", {})]

    def episodes(self, run: str) -> AsyncIterator[Json]:
        """All episodes of a run, newest first."""
        return self._pages("/v1/episodes", {"run": run})

    def groups(self, run: str) -> AsyncIterator[Json]:
        return self._pages("/v1/groups", {"run": run})

    async def recent_groups(self, limit: int = 50) -> list[Json]:
        """The newest groups of all runs."""
        return cast("list[Json]", (await self._request("GET", "/v1/groups", params={"limit": str(limit)}))["data"])

    def batches(self) -> AsyncIterator[Json]:
        return self._pages("/v1/batches", {})

    async def _pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Json]:
        cursor: str | None = None
        while True:
            params = {**query, "limit": "200"} | ({"cursor": cursor} if cursor else {})
            page = await self._request("GET", path, params=params)
            for item in page["data"]:
                yield item
            cursor = page.get("next_cursor")
            if not cursor:
                return

    async def _request(
        self, method: str, path: str, body: Json | None = None, params: Mapping[str, str] | None = None
    ) -> Json:
        started = time.monotonic()
        while True:
            pause_s = RETRY_S
            try:
                answer = await self._http.request(method, path, json=body, params=params)
            except httpx.TransportError as error:
                if time.monotonic() > started + PATIENCE_S:
                    raise RequestFailed(503, f"{method} {path}: the gateway cannot be reached ({error}).") from error
            else:
                if answer.is_success:
                    return cast("Json", answer.json())
                patience_s, pause_s = _patience(answer)
                if time.monotonic() > started + patience_s:
                    raise RequestFailed(answer.status_code, f"{method} {path}: {_told(answer, 'message')}")
            await asyncio.sleep(pause_s)


def _patience(answer: httpx.Response) -> tuple[float, float]:
    """For how long the request is tried again after this refusal (below 0: not at all), and the pause before it is."""
    if answer.status_code not in BUSY:
        return -1.0, 0.0
    if _told(answer, "code") == TOO_STALE:
        return TRAINER_PATIENCE_S, float(answer.headers.get("retry-after", RETRY_S))
    return PATIENCE_S, RETRY_S


def _told(answer: httpx.Response, field: str) -> str:
    """What the gateway's error says there, or what stands in its place."""
    try:
        return str(answer.json()["error"][field])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]
