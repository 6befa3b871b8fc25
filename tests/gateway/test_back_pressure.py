"""What would be too stale is refused in the caller's own form, and works once a step is done: nothing of it is lost."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.fakes.gateways import RunningGateway
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.clock import SystemClock
from tracker.types import Scope

pytestmark = pytest.mark.slow
WORDS: list[Any] = [{"role": "user", "content": "hi"}]


async def training(gateway: RunningGateway, run: str, **fields: Any) -> int:
    """A trainer holds the lease, and one group may be in flight; the lease's fence."""
    settings = {"run": run, "group_size": 2, "groups_per_step": 1, "staleness": 0}
    assert (await gateway.admin.post("/v1/runs", json=settings | fields)).is_success
    fence = await gateway.ledger.take_lease("solver", "trainer", SystemClock().now_ms(), 600_000)
    assert fence is not None
    return fence


async def test_an_episode_that_would_be_too_stale_is_refused_until_there_is_room(gateway: RunningGateway) -> None:
    await training(gateway, "r")
    first = await gateway.open(run="r", task="a", idempotency_key="first")
    body = {"run": "r", "task": "b", "idempotency_key": "second"}
    refused = await gateway.admin.post("/v1/episodes", json=body)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "too_stale")
    assert "'r'" in error["message"]
    assert "2 each" in error["message"]
    other = await gateway.open(run="r", task="a")
    assert other["group_id"] == first["group_id"], "a place of an open round"
    assert (await gateway.open(run="r", task="a", idempotency_key="first"))["episode_id"] == first["episode_id"]
    assert (await gateway.chat(first)).status_code == 200, "an open episode goes on"
    for episode in (first, other):
        path = f"/v1/episodes/{episode['episode_id']}/finish"
        assert (await gateway.admin.post(path, json={"status": "cancelled"})).is_success
    assert (await gateway.admin.post("/v1/episodes", json=body)).status_code == 201


async def test_agents_that_know_nothing_are_refused_in_their_own_form(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    fence = await training(gateway, "default")
    async with await gateway.client(Scope.AGENT, Scope.REWARD) as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
        for _ in range(2):
            await rewarded(client)
        num_calls = len(engine.calls)
        speaker = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.RateLimitError) as told:
            await speaker.chat.completions.create(model="solver", messages=WORDS, stream=True)
        assert told.value.code == "too_stale"
        assert int(told.value.response.headers["retry-after"]) > 0
        claude = anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key, max_retries=0)
        with pytest.raises(anthropic.RateLimitError) as told_so:
            await claude.messages.create(model="solver", messages=WORDS, max_tokens=5)
        assert told_so.value.response.json()["error"]["type"] == "rate_limit_error"
        assert len(engine.calls) == num_calls, "no engine was asked"
        await gateway.ledger.release_lease("solver", fence)
        await rewarded(client)
        await speaker.close()
        await claude.close()


async def rewarded(client: httpx.AsyncClient) -> None:
    """One zero-client attempt, and its reward."""
    answer = await client.post("/t/a/v1/chat/completions", json={"model": "solver", "messages": WORDS})
    assert answer.status_code == 200, answer.text
    body = {"call_id": answer.json()["id"], "reward": 1.0, "final": True}
    assert (await client.post("/v1/reward", json=body)).status_code == 201
