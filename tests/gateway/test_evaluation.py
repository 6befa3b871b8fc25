"""Evaluation as a user does it: an eval run, greedy, pinned to a version, while newer versions are published."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest

from tests.fakes.gateways import RunningGateway
from tests.fakes.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.slow
EVAL = {"run": "held-out", "mode": "eval"}


async def published(gateway: RunningGateway, number: int) -> None:
    digest = gateway.adapter(f"new-{number}", b"weights" * number)
    answer = await gateway.publish(f"new-{number}", digest)
    assert (answer.status_code, answer.json()["version"]) == (201, number), answer.text


async def opened(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    return await gateway.open(run="held-out", policy="solver", **fields)


async def greedy(gateway: RunningGateway, episode: dict[str, Any]) -> str:
    """One call at temperature 0; the version that answered. Asked again, as clients do, where a store is too slow."""
    for _ in range(10):
        answer = await gateway.admin.post(
            "/v1/chat/completions",
            headers={"Authorization": f"Bearer {episode['api_key']}"},
            json={"model": "solver", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "top_p": 0.5},
            timeout=60,
        )
        if answer.status_code != 503:
            break
        await asyncio.sleep(0.5)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-hone-version"])


async def test_a_greedy_episode_keeps_its_version_has_no_group_and_is_never_trained(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    assert (await gateway.admin.post("/v1/runs", json={**EVAL, "group_size": 1})).status_code == 201
    await published(gateway, 1)
    pinned = {version: await opened(gateway, version=version) for version in (0, 1)}
    assert [episode["versions"] for episode in pinned.values()] == [{"solver": 0}, {"solver": 1}]
    assert [episode["group_id"] for episode in pinned.values()] == [None, None]
    for number in (2, 3, 4):
        assert [await greedy(gateway, episode) for episode in pinned.values()] == ["0", "1"]
        await published(gateway, number)
    assert [await greedy(gateway, episode) for episode in pinned.values()] == ["0", "1"]
    assert {call.body["temperature"] for call in engine.calls} == {0}
    assert {call.body["top_p"] for call in engine.calls} == {0.5}
    for number, episode in pinned.items():
        body = {"episode_id": episode["episode_id"], "reward": float(number)}
        assert (await gateway.admin.post("/v1/reward", json=body)).status_code == 201
        told = await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
        assert (told["reward"], told["num_excluded"], told["versions"]) == (number, 0, {"solver": number})
        timeline = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
        assert {call["sampling"]["temperature"] for call in timeline["calls"]} == {0}
    assert (await gateway.admin.get("/v1/groups")).json()["data"] == []


async def test_a_retired_version_is_served_as_long_as_its_files_are_there(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    assert (await gateway.admin.post("/v1/runs", json=EVAL)).status_code == 201
    for number in (1, 2):
        await published(gateway, number)
    old = next(version for version in await versions(gateway) if version["version"] == 1)
    async with asyncio.timeout(20):
        while {version["version"]: version["state"] for version in await versions(gateway)}[1] != "retired":
            await asyncio.sleep(0.02)
    assert old["folder"] not in engine.models
    assert await greedy(gateway, await opened(gateway, version=1)) == "1"
    body = {"task": "t", "run": "held-out", "policy": "solver"}
    unknown = await gateway.admin.post("/v1/episodes", json={**body, "version": 9})
    assert (unknown.status_code, "9" in unknown.json()["error"]["message"]) == (404, True)
    shutil.rmtree(gateway.settings.stores.adapters_dir / old["folder"])
    gone = await gateway.admin.post("/v1/episodes", json={**body, "version": 1})
    assert gone.status_code == 404
    assert "files" in gone.json()["error"]["message"]


async def test_a_version_that_was_rolled_back_can_still_be_looked_at(gateway: RunningGateway) -> None:
    assert (await gateway.admin.post("/v1/runs", json=EVAL)).status_code == 201
    for number in (1, 2):
        await published(gateway, number)
    rolled = await gateway.admin.post("/v1/policies/solver/rollback", json={"version": 1})
    assert rolled.status_code == 200
    assert await greedy(gateway, await opened(gateway, version=2)) == "2"
    assert await greedy(gateway, await opened(gateway)) == "1"


async def versions(gateway: RunningGateway) -> list[dict[str, Any]]:
    return (await gateway.admin.get("/v1/policies")).json()["data"][0]["versions"]
