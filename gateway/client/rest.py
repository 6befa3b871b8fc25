"""The requests of a driver over REST: what the gateway answers, as parsed JSON, and its refusals as errors of the tree.

A refused connection, a 429 and a 503 are waited out for a while, since a gateway that restarts or is busy refuses work
rather than losing it: as long as `Retry-After` says, where it does. One that waits for the trainer is given the time of
long steps. A wait that would be longer than the patience is not begun, and one that is begun is logged as a warning,
which Python shows where no logging is set up. Everything that is sent twice for it is sent under an idempotency key, or
is the same when it is done twice. Model calls are not made here: that is the agent's part, with whatever client it
likes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self, cast

import httpx

from tracker.errors import (
    BadRequest,
    BudgetExceeded,
    Conflict,
    Forbidden,
    Gone,
    HoneError,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unprocessable,
    UpstreamFailed,
)
from tracker.types import Scope

PATIENCE_S: Final = 60.0
"""How long a request is tried again while the gateway cannot take it."""
TRAINER_PATIENCE_S: Final = 1800.0
"""How long it is tried again while what is in flight has to be trained first."""
RETRY_S: Final = 0.5
REQUEST_S: Final = 30.0
TOO_STALE: Final = "too_stale"
BUSY: Final = frozenset({429, 503})
PAGE: Final = "200"
KINDS: Final[Mapping[int, type[HoneError]]] = {
    kind.status: kind
    for kind in (BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Gone, TooLarge, Unprocessable)
}

Json = dict[str, Any]
LOG: Final = logging.getLogger("hone.client")


class Client:
    """One gateway, by one key or by a key of each scope. Use it as an async context manager."""

    def __init__(
        self, base_url: str, api_key: str | Mapping[Scope, str], *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._keys = dict.fromkeys(Scope, api_key) if isinstance(api_key, str) else api_key
        self._told_of: set[str] = set()
        """For what requests wait at the moment: it is told once, however many do. For the trainer they may do so often,
        and that is told once for all."""
        self._http = httpx.AsyncClient(base_url=base_url, timeout=REQUEST_S, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def create_run(self, run: str, **settings: object) -> Json:
        """Create or change a run."""
        return await self._request(Scope.ADMIN, "POST", "/v1/runs", {"run": run, **settings})

    async def run(self, run: str) -> Json:
        """A run's settings, and what of it was trained."""
        return await self._get(f"/v1/runs/{run}")

    async def start_episode(self, task: str, *, idempotency_key: str, **fields: object) -> Json:
        """Start an attempt at a task: its id and the environment for the agent."""
        body = {"task": task, "idempotency_key": idempotency_key, **fields}
        return await self._request(Scope.AGENT, "POST", "/v1/episodes", body)

    async def reward(
        self, episode_id: str, value: float | None, *, idempotency_key: str | None = None, **fields: object
    ) -> Json:
        """Score the episode; this ends it, unless `final=False`."""
        return await self._reward({"episode_id": episode_id, **fields}, value, idempotency_key)

    async def reward_call(
        self, call_id: str, value: float | None, *, idempotency_key: str | None = None, **fields: object
    ) -> Json:
        """Score one call: the id of its answer is its own."""
        return await self._reward({"call_id": call_id, **fields}, value, idempotency_key)

    async def finish(self, episode_id: str, status: str) -> Json:
        """End the episode without a score."""
        return await self._request(Scope.AGENT, "POST", f"/v1/episodes/{episode_id}/finish", {"status": status})

    async def episode(self, episode_id: str) -> Json:
        return await self._get(f"/v1/episodes/{episode_id}")

    async def samples(self, episode_id: str) -> Json:
        return await self._get(f"/v1/episodes/{episode_id}/samples")

    async def timeline(self, episode_id: str) -> Json:
        return await self._get(f"/v1/episodes/{episode_id}/timeline")

    async def engines(self) -> list[Json]:
        return [item async for item in self.pages("/v1/engines")]

    async def policies(self) -> list[Json]:
        return [item async for item in self.pages("/v1/policies")]

    def episodes(self, run: str) -> AsyncIterator[Json]:
        """All episodes of a run, newest first."""
        return self.pages("/v1/episodes", run=run)

    def groups(self, run: str) -> AsyncIterator[Json]:
        return self.pages("/v1/groups", run=run)

    async def recent_groups(self, limit: int = 50) -> list[Json]:
        """The newest groups of all runs."""
        return cast("list[Json]", (await self._get("/v1/groups", {"limit": str(limit)}))["data"])

    def batches(self) -> AsyncIterator[Json]:
        return self.pages("/v1/batches")

    async def pages(self, path: str, **query: str | None) -> AsyncIterator[Json]:
        """Everything in a list, page after page; a filter that is `None` is none."""
        wanted = {name: value for name, value in query.items() if value is not None}
        cursor: str | None = None
        while True:
            page = await self._get(path, {**wanted, "limit": PAGE} | ({"cursor": cursor} if cursor else {}))
            for item in page["data"]:
                yield item
            cursor = page.get("next_cursor")
            if not cursor:
                return

    async def _reward(self, fields: Json, value: float | None, idempotency_key: str | None) -> Json:
        if isinstance(value, float) and not math.isfinite(value):
            raise BadRequest(
                f"A reward is a finite number, or None for what cannot be scored, not {value}.", param="reward"
            )
        body = {**fields, "reward": value, "idempotency_key": idempotency_key or uuid.uuid4().hex}
        return await self._request(Scope.REWARD, "POST", "/v1/reward", body)

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        return await self._request(Scope.READ, "GET", path, params=params)

    async def _request(
        self, scope: Scope, method: str, path: str, body: Json | None = None, params: Mapping[str, str] | None = None
    ) -> Json:
        started = time.monotonic()
        headers = {"Authorization": f"Bearer {self._key(scope)}"}
        while True:
            try:
                answer = await self._http.request(method, path, json=body, params=params, headers=headers)
            except httpx.TransportError as error:
                told = f"{method} {path}: the gateway cannot be reached at {self._http.base_url} ({error})."
                refused, patience_s, pause_s = Unavailable(told), PATIENCE_S, RETRY_S
            else:
                if answer.is_success:
                    self._told_of &= {TOO_STALE}
                    return _parsed(answer)
                refused = error_of(answer)
                patience_s, pause_s = _patience(answer)
            if time.monotonic() - started + pause_s > patience_s:
                raise refused
            if refused.code not in self._told_of:
                LOG.warning("%s It is tried again for up to %d s.", refused.message, patience_s)
            self._told_of.add(refused.code)
            await asyncio.sleep(pause_s)

    def _key(self, scope: Scope) -> str:
        """The key for what asks for this scope; `admin` implies the others."""
        key = self._keys.get(scope) or self._keys.get(Scope.ADMIN)
        if key is None:
            raise Unauthorized(f"There is no key with the scope {scope} among those that were given.")
        return key


def error_of(answer: httpx.Response) -> HoneError:
    """A refusal as the error that the gateway raised: its status, code and parameter, and what was asked for."""
    status, code, param = answer.status_code, _told(answer, "code"), _told(answer, "param")
    request = answer.request
    message = f"{request.method} {request.url.path}: {_told(answer, 'message') or answer.text[:500]}"
    error: HoneError
    match status:
        case 429 if code == BudgetExceeded.code:
            error = BudgetExceeded(message, retry_after_s=_retry_after_s(answer))
        case 429:
            error = TooManyRequests(message, retry_after_s=_retry_after_s(answer) or 1, code=code)
        case 503:
            error = Unavailable(message, retry_after_s=_retry_after_s(answer) or 1, code=code)
        case 502 | 504:
            error = UpstreamFailed(message, status=status, code=code)
        case _:
            kind = KINDS.get(status, BadRequest if 400 <= status < 500 else HoneError)
            error = kind(message, param=param, code=code)
            error.status = status
    return error


def _patience(answer: httpx.Response) -> tuple[float, float]:
    """For how long the request is tried again after this refusal (below 0: not at all), and the pause before it is."""
    if answer.status_code not in BUSY:
        return -1.0, 0.0
    after_s, code = _retry_after_s(answer), _told(answer, "code")
    if after_s is None and code == BudgetExceeded.code:  # only a person can help
        return -1.0, 0.0
    return TRAINER_PATIENCE_S if code == TOO_STALE else PATIENCE_S, RETRY_S if after_s is None else float(after_s)


def _retry_after_s(answer: httpx.Response) -> int | None:
    """What `Retry-After` says; a proxy may write a date there, which says nothing here."""
    told = answer.headers.get("retry-after", "")
    return int(told) if told.isascii() and told.isdigit() else None


def _parsed(answer: httpx.Response) -> Json:
    try:
        return cast("Json", answer.json())
    except ValueError as error:
        told = f"{answer.request.url} answered no JSON: is a gateway there?"
        raise UpstreamFailed(told) from error


def _told(answer: httpx.Response, field: str) -> str | None:
    """What the gateway's error says there, if it is one."""
    try:
        told = answer.json()["error"][field]
    except (ValueError, KeyError, TypeError):
        return None
    return None if told is None else str(told)
