"""Keys over HTTP and on the command line: made, limited, rotated, revoked, counted, on several gateways at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.gateways import PATIENCE_S, RunningGateway, running_gateway
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.types import Scope

pytestmark = pytest.mark.slow
Json = dict[str, Any]
BODY: Json = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def two_gateways(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    env = {"HONE_REDIS_URL": redis_url}
    async with running_gateway(engine, tmp_path, env) as first, running_gateway(engine, tmp_path, env) as second:
        yield first, second


async def make(gateway: RunningGateway, *scopes: str, **fields: Any) -> Json:
    answer = await gateway.admin.post("/v1/keys", json={"scopes": list(scopes) or ["agent"], **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def call(gateway: RunningGateway, key: str, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    """One call as an agent with this key makes it."""
    return await gateway.admin.post(path, headers={"Authorization": f"Bearer {key}"}, json={**BODY, **fields})


async def until(asked: Callable[[], Awaitable[httpx.Response]], status: int) -> httpx.Response:
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await asked()).status_code != status:
            await asyncio.sleep(0.05)
    return answer


async def test_a_key_is_told_once_and_listed_without_its_secret(gateway: RunningGateway) -> None:
    made = await make(gateway, "agent", "reward", label="a driver", expires_in_s=3600, token_budget=10**6)
    assert made["scopes"] == ["agent", "reward"]
    assert made["expires_ms"] - made["created_ms"] == 3_600_000
    assert (await call(gateway, made["key"])).status_code == 200
    listed = (await gateway.admin.get("/v1/keys?limit=1")).json()
    [shown] = listed["data"]
    assert (shown["key_id"], shown["label"], shown["token_budget"]) == (made["key_id"], "a driver", 10**6)
    assert (shown["usage"]["calls"], shown["usage"]["today"]["calls"]) == (1, 1)
    assert shown["usage"]["prompt_tokens"] > 0
    assert shown["usage"]["sampled_tokens"] > 0
    assert {"key", "digest"}.isdisjoint(shown)
    assert listed["next_cursor"] is not None
    text = (await gateway.admin.get("/v1/keys")).text + (await gateway.admin.get("/v1/audit")).text
    assert made["key"] not in text


async def test_keys_are_for_administrators_of_their_own_tenant(gateway: RunningGateway) -> None:
    made = await make(gateway)
    async with await gateway.client(Scope.ADMIN, tenant="acme") as foreign:
        for answer in (
            await foreign.delete(f"/v1/keys/{made['key_id']}"),
            await foreign.post(f"/v1/keys/{made['key_id']}/rotate"),
            await foreign.patch(f"/v1/keys/{made['key_id']}", json={"token_budget": 1}),
        ):
            assert answer.status_code == 404
        own = (await foreign.post("/v1/keys", json={"scopes": ["read"]})).json()
        assert own["tenant"] == "acme"
        assert made["key_id"] not in (await foreign.get("/v1/keys")).text
    every_other = tuple(scope for scope in Scope if scope is not Scope.ADMIN)
    async with await gateway.client(*every_other) as client:
        assert (await client.post("/v1/keys", json={"scopes": ["agent"]})).status_code == 403
        assert (await client.post(f"/v1/keys/{made['key_id']}/rotate")).status_code == 403
        assert (await client.patch(f"/v1/keys/{made['key_id']}", json={})).status_code == 403
        assert (await client.delete(f"/v1/keys/{made['key_id']}")).status_code == 403
        assert (await client.get("/v1/audit")).status_code == 403
        assert (await client.get("/v1/keys")).status_code == 200
    session = (await gateway.open())["api_key"]
    headers = {"Authorization": f"Bearer {session}"}
    assert (await gateway.admin.get("/v1/keys", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"scopes": []},
        {"scopes": ["root"]},
        {"scopes": ["agent"], "tenant": "acme"},
        {"scopes": ["agent"], "key_id": "mine"},
        {"scopes": ["agent"], "requests_per_minute": 0},
        {"scopes": ["agent"], "max_concurrent": 1.5},
        {"scopes": ["agent"], "token_budget": "many"},
        {"scopes": ["agent"], "expires_in_s": -1},
        {},
    ],
)
async def test_what_makes_no_key_is_refused(gateway: RunningGateway, fields: Json) -> None:
    answer = await gateway.admin.post("/v1/keys", json=fields)
    assert answer.status_code == 400, answer.text


async def test_no_request_changes_the_scopes_of_a_key(gateway: RunningGateway) -> None:
    made = await make(gateway)
    for fields in ({"scopes": ["admin"]}, {"tenant": "acme"}, {"revoked_ms": None}):
        answer = await gateway.admin.patch(f"/v1/keys/{made['key_id']}", json=fields)
        assert answer.status_code == 400
    rotated = await gateway.admin.post(f"/v1/keys/{made['key_id']}/rotate", json={"scopes": ["admin"]})
    assert rotated.status_code == 400


async def test_a_revocation_holds_on_every_gateway_and_for_the_episodes_that_the_key_opened(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    async with two_gateways(engine, tmp_path, redis_url) as (first, second):
        made = await make(first)
        opened = await first.admin.post(
            "/v1/episodes", headers={"Authorization": f"Bearer {made['key']}"}, json={"task": "t"}
        )
        session = opened.json()["api_key"]
        for gateway in (first, second):
            for key in (made["key"], session):
                assert (await call(gateway, key)).status_code == 200
        assert (await first.admin.delete(f"/v1/keys/{made['key_id']}")).json()["revoked_ms"] is not None
        for key in (made["key"], session):
            assert (await call(first, key)).status_code == 401
            refused = await until(lambda key=key: call(second, key), 401)
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await first.admin.delete(f"/v1/keys/{made['key_id']}")).status_code == 200


async def test_after_a_rotation_both_secrets_work_until_the_grace_is_over(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    async with two_gateways(engine, tmp_path, redis_url) as (first, second):
        made = await make(first)
        path = f"/v1/keys/{made['key_id']}/rotate"
        second_secret = (await first.admin.post(path, json={"grace_s": 3600})).json()["key"]
        for gateway in (first, second):
            for key in (made["key"], second_secret):
                assert (await call(gateway, key)).status_code == 200
        third_secret = (await first.admin.post(path)).json()["key"]
        for old in (made["key"], second_secret):
            assert (await call(first, old)).status_code == 401
            await until(lambda old=old: call(second, old), 401)
        assert (await call(second, third_secret)).status_code == 200
        usage = next(
            key["usage"]
            for key in (await first.admin.get("/v1/keys")).json()["data"]
            if key["key_id"] == made["key_id"]
        )
        assert usage["calls"] > 0
        await first.admin.delete(f"/v1/keys/{made['key_id']}")
        assert (await first.admin.post(path)).status_code == 409


async def test_a_rate_holds_over_all_gateways_and_dialects_say_it_their_own_way(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    async with two_gateways(engine, tmp_path, redis_url) as (first, second):
        made = await make(first, requests_per_minute=4)
        answers = await asyncio.gather(*(call(gateway, made["key"]) for gateway in (first, second) * 4))
        assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 4
        refused = next(answer for answer in answers if answer.status_code == 429)
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")
        assert "requests_per_minute" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        told = await call(second, made["key"], "/v1/messages", max_tokens=5)
        assert told.status_code == 429
        assert told.json()["error"]["type"] == "rate_limit_error"
        assert told.json()["type"] == "error"
        listed = (await first.admin.get("/v1/episodes?limit=200")).json()["data"]
        assert len(listed) == 4  # a refused call opens no episode


async def test_calls_in_flight_hold_their_places_on_every_gateway_and_give_them_back(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    async with two_gateways(engine, tmp_path, redis_url) as (first, second):
        made = await make(first, max_concurrent=1)
        opened = await first.admin.post(
            "/v1/episodes", headers={"Authorization": f"Bearer {made['key']}"}, json={"task": "t"}
        )
        session = opened.json()["api_key"]
        gate = asyncio.Event()
        engine.script(Script(choices=(Answer(ids=(3,), texts=("a",)),), gate=gate))
        held = asyncio.create_task(call(first, made["key"]))
        async with asyncio.timeout(PATIENCE_S):
            while not engine.calls:
                await asyncio.sleep(0.01)
        for key in (made["key"], session):  # a session key counts against the key that opened its episode
            refused = await call(second, key)
            assert refused.status_code == 429
            assert "max_concurrent" in refused.json()["error"]["message"]
            assert refused.headers["retry-after"] == "1"
        gate.set()
        assert (await held).status_code == 200
        for n in range(6):  # one after the other, each finds its place free at once
            assert (await call((first, second)[n % 2], session, stream=n % 3 == 0)).status_code == 200


async def test_a_client_that_leaves_frees_its_place(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    made = await make(gateway, max_concurrent=1)
    engine.script(Script(gate=asyncio.Event()))
    leaving = asyncio.create_task(call(gateway, made["key"]))
    async with asyncio.timeout(PATIENCE_S):
        while not engine.calls:
            await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.wait([leaving])
    await until(lambda: call(gateway, made["key"]), 200)


async def test_a_budget_is_used_up_and_can_be_raised(gateway: RunningGateway) -> None:
    made = await make(gateway, token_budget=1)
    assert (await call(gateway, made["key"])).status_code == 200
    refused = await call(gateway, made["key"])
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "budget_exceeded")
    assert "token_budget" in error["message"]
    assert "retry-after" not in refused.headers
    assert refused.headers["x-should-retry"] == "false"
    raised = await gateway.admin.patch(f"/v1/keys/{made['key_id']}", json={"token_budget": 10**9})
    assert raised.json()["token_budget"] == 10**9
    assert (await call(gateway, made["key"])).status_code == 200
    daily = await gateway.admin.patch(
        f"/v1/keys/{made['key_id']}", json={"token_budget": None, "token_budget_per_day": 1}
    )
    assert (daily.json()["token_budget"], daily.json()["token_budget_per_day"]) == (None, 1)
    refused = await call(gateway, made["key"])
    assert refused.json()["error"]["code"] == "budget_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400


async def test_every_administrative_act_is_in_the_audit_log_also_one_that_was_refused(gateway: RunningGateway) -> None:
    made = await make(gateway, label="l", max_concurrent=2)
    await gateway.admin.patch(f"/v1/keys/{made['key_id']}", json={"max_concurrent": 3})
    rotated = (await gateway.admin.post(f"/v1/keys/{made['key_id']}/rotate", json={"grace_s": 5})).json()
    await gateway.admin.delete(f"/v1/keys/{made['key_id']}")
    await gateway.admin.delete("/v1/keys/nobody")
    await gateway.admin.post("/v1/runs", json={"run": "r", "group_size": 2})
    await gateway.admin.post("/v1/runs", json={"run": "r", "group_size": 4})
    episode = await gateway.open()
    await gateway.admin.delete(f"/v1/episodes/{episode['episode_id']}")
    await gateway.admin.post("/v1/policies/solver/rollback", json={"version": 7})
    await gateway.publish("adapter-1", gateway.adapter("adapter-1"))
    answer = await gateway.admin.get("/v1/audit")
    acts = {(act["act"], act["target"], act["outcome"]): act for act in answer.json()["data"]}
    key_id = made["key_id"]
    assert set(acts) >= {
        ("key.create", key_id, "ok"),
        ("key.limit", key_id, "ok"),
        ("key.rotate", key_id, "ok"),
        ("key.revoke", key_id, "ok"),
        ("key.revoke", "nobody", "not_found"),
        ("run.create", "r", "ok"),
        ("run.change", "r", "ok"),
        ("episode.delete", episode["episode_id"], "ok"),
        ("version.roll_back", "solver", "not_found"),
        ("version.publish", "solver", "ok"),
    }
    assert acts["key.create", key_id, "ok"]["detail"] == {"scopes": ["agent"], "label": "l", "max_concurrent": 2}
    assert acts["version.publish", "solver", "ok"]["detail"]["version"] == 1
    assert all(act["key_id"].startswith("k-all") for act in acts.values())
    for secret in (made["key"], rotated["key"]):
        assert secret not in answer.text
    page = (await gateway.admin.get("/v1/audit?limit=2")).json()
    rest = (await gateway.admin.get(f"/v1/audit?limit=200&cursor={page['next_cursor']}")).json()
    assert page["data"] + rest["data"] == answer.json()["data"]
