"""Whoever tries keys at a gateway is slowed, at every door alike; whoever has one is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.guesses import MAX_OF_ADDRESS
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.types import Scope

pytestmark = pytest.mark.slow
CHAT = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
NUM_MORE = 6


@pytest.fixture
async def gateway(tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    async with ScriptedEngine() as engine, running_gateway(engine, tmp_path, {"HONE_REDIS_URL": redis_url}) as running:
        yield running


async def asked(client: httpx.AsyncClient, number: int) -> httpx.Response:
    """One request with a key of its own that nobody has, at one door or another."""
    key = {"Authorization": f"Bearer hone-sk-{number:043}"}
    if number % 3 == 0:
        return await client.get("/v1/runs", headers=key)
    path = "/v1/chat/completions" if number % 3 == 1 else "/v1/messages"
    return await client.post(path, json={**CHAT, "max_tokens": 9}, headers=key)


async def test_an_address_that_tries_many_keys_is_told_to_wait_and_good_keys_go_on(gateway: RunningGateway) -> None:
    agent = await gateway.client(Scope.AGENT)
    assert (await agent.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert (await gateway.admin.get("/v1/runs")).status_code == 200
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as stranger:
        told = [await asked(stranger, number) for number in range(MAX_OF_ADDRESS + NUM_MORE)]
        again = await asked(stranger, 0)
    assert [answer.status_code for answer in told] == [401] * MAX_OF_ADDRESS + [429] * NUM_MORE
    for answer in told[MAX_OF_ADDRESS:]:
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert "from this address" in answer.json()["error"]["message"]
    assert again.status_code == 401  # it is known that there is none
    assert (await agent.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert (await gateway.admin.get("/v1/runs")).status_code == 200
    await agent.aclose()
