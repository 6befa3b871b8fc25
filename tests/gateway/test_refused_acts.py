"""What a key may not do is written down, and not without end."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute

from gateway.dashboard.routes import ROUTERS
from gateway.refused_acts import ACTS, MAX_A_MINUTE, MAX_TENANTS, WINDOW_MS, RefusedActs
from gateway.routes import data, episodes, keys, policies, releases, runs
from tests.fakes.gateways import RunningGateway
from tracker.types import Scope

REST = {where: name for where, name in ACTS.items() if where[1].startswith("/v1/")}


def test_every_act_that_is_named_is_a_route() -> None:
    modules = (data, episodes, keys, policies, releases, runs)
    listed = [*(module.router for module in modules), *ROUTERS]
    routes = [route for router in listed for route in router.routes if isinstance(route, APIRoute)]
    assert {(method, route.path) for route in routes for method in route.methods} >= set(ACTS)


def test_of_each_tenant_so_many_refusals_are_written_in_a_minute() -> None:
    acts = RefusedActs()
    assert [acts.is_told("one", 0) for _ in range(MAX_A_MINUTE + 2)] == [True] * MAX_A_MINUTE + [False] * 2
    assert acts.is_told("two", 0)
    assert not acts.is_told("one", WINDOW_MS - 1)
    assert acts.is_told("one", WINDOW_MS)
    assert acts.is_told("one", 0)  # a clock that was set back


def test_only_so_many_tenants_are_remembered() -> None:
    acts = RefusedActs()
    for number in range(MAX_TENANTS + 50):
        acts.is_told(str(number), 0)
    assert len(acts._told) == MAX_TENANTS


@pytest.mark.slow
async def test_every_act_that_a_key_may_not_do_is_in_the_audit_log_of_its_tenant(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    others = [scope for scope in Scope if scope not in (Scope.ADMIN, Scope.TRAINER)]
    async with await gateway.client(*others) as client:
        for method, path in REST:
            asked = path.replace("{", "").replace("}", "")
            assert (await client.request(method, asked, json={})).status_code == 403, path
        assert (await client.get("/v1/audit")).status_code == 403
        assert (await client.post("/v1/policies/solver/parity", json={})).status_code == 403
    stranger = {"Authorization": f"Bearer {episode['api_key']}"}  # a session key, which an agent has
    assert (await gateway.admin.post("/v1/keys", json={"scopes": ["admin"]}, headers=stranger)).status_code == 403
    acts = (await gateway.admin.get("/v1/audit?limit=200")).json()["data"]
    told = [(act["act"], act["target"], act["outcome"]) for act in acts if act["outcome"] == "insufficient_scope"]
    expected = {(name, path.partition("{")[2].partition("}")[0]) for (_, path), name in REST.items()}
    expected.add(("POST /v1/policies/{name}/parity", "solver"))
    assert set(told) == {(act, target, "insufficient_scope") for act, target in expected}
    assert [act["key_id"] for act in acts if act["key_id"].startswith("session:")] == [
        f"session:{episode['episode_id']}"
    ]
    async with await gateway.client(Scope.AGENT) as client:  # what a database may not hold is left out
        assert (await client.delete("/v1/keys/a%C2%ADbc")).status_code == 403
    newest = (await gateway.admin.get("/v1/audit?limit=1")).json()["data"]
    assert [(act["act"], act["target"]) for act in newest] == [("key.revoke", "abc")]
    async with await gateway.client(Scope.ADMIN, tenant="other") as other:
        assert (await other.get("/v1/audit")).json()["data"] == []


@pytest.mark.slow
async def test_a_form_of_the_dashboard_that_a_reader_may_not_send_is_in_the_audit_log(gateway: RunningGateway) -> None:
    async with await gateway.client(Scope.READ) as client:
        key = client.headers.pop("authorization").removeprefix("Bearer ")
        assert (await client.post("/dashboard/login", data={"key": key})).status_code == 303
        page = await client.get("/dashboard/keys")
        found = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert found is not None, page.text[:500]
        asked = {"csrf": found[1], "scopes": "admin"}
        assert (await client.post("/dashboard/keys", data=asked)).status_code == 403
    [act, *_] = (await gateway.admin.get("/v1/audit")).json()["data"]
    assert (act["act"], act["outcome"]) == ("key.create", "insufficient_scope")
