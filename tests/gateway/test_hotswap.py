"""Versions in and out of engines, on a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save

from gateway.engine_api import EngineApi
from gateway.settings import load
from gateway.startup import open_services
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.running import running_door
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.clock import SystemClock
from tracker.errors import SettingsError, Unavailable
from tracker.memory_store import MemoryStore
from tracker.store import Routing

pytestmark = pytest.mark.slow

LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"


def loads(engine: ScriptedEngine, path: str = LOAD) -> list[str]:
    return [str(seen.body["lora_name"]) for seen in engine.received if seen.path == path]


async def policy(gateway: RunningGateway) -> dict[str, Any]:
    return (await gateway.admin.get("/v1/policies")).json()["data"][0]


async def test_a_published_version_is_loaded_once_and_gets_the_next_episode(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    digest = gateway.adapter("mine")
    answer = await gateway.publish("mine", digest)
    assert answer.status_code == 201
    assert answer.json()["version"] == 1
    assert answer.json()["state"] == "active"
    assert "weak" in answer.json()["detail"]
    name = f"solver@1-{digest[:8]}"
    episode = await gateway.open()
    assert episode["versions"] == {"solver": 1}
    for _ in range(5):
        called = await gateway.chat(episode)
        assert called.headers["x-hone-version"] == "1"
    assert {str(call.body["model"]) for call in engine.calls} == {name}
    assert loads(engine) == [name]
    assert engine.models[name]["root"] == str(gateway.settings.stores.adapters_dir / name)


async def test_an_episode_keeps_its_version_and_an_unpinned_one_is_retired(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    first = gateway.adapter("a", b"a")
    await gateway.publish("a", first)
    episode = await gateway.open()
    await gateway.chat(episode)
    await gateway.publish("b", gateway.adapter("b", b"b"))
    assert (await gateway.chat(episode)).headers["x-hone-version"] == "1"
    assert loads(engine, UNLOAD) == []
    await gateway.admin.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": 1})
    await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
    while not loads(engine, UNLOAD):
        await gateway.admin.get("/health/live")
    assert loads(engine, UNLOAD) == [f"solver@1-{first[:8]}"]
    while (await policy(gateway))["versions"][0]["state"] != "retired":
        await gateway.admin.get("/health/live")


async def test_a_failed_load_changes_nothing_and_tells_the_reason(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.load_status = 400
    answer = await gateway.publish("mine", gateway.adapter("mine"))
    assert answer.status_code == 409
    assert "did not load" in answer.json()["error"]["message"]
    shown = await policy(gateway)
    assert shown["active"] == 0
    assert shown["versions"][0]["state"] == "failed"
    assert (await gateway.open())["versions"] == {"solver": 0}
    engine.load_status = 200
    again = await gateway.publish("mine", gateway.adapter("other", b"other"))
    assert again.status_code == 409, "another folder's digest"
    good = await gateway.publish("mine", gateway.adapter("mine2"))
    assert good.json()["version"] == 2


async def scores_of(engine: ScriptedEngine, name: str) -> dict[int, float]:
    """What the engine would answer under a name."""
    engine.models[name] = {"id": name, "object": "model"}
    async with httpx.AsyncClient() as http:
        top = await EngineApi(http, None).score(engine.url, name, [1, 2], 1.0)
    del engine.models[name]
    return {int(token.removeprefix("token_id:")): value for token, value in top.items()}


@pytest.mark.parametrize(("shift", "status"), [(0.0, 201), (5.0, 409)])
async def test_a_probe_tells_the_version_from_the_one_before(
    gateway: RunningGateway, engine: ScriptedEngine, shift: float, status: int
) -> None:
    digest = gateway.adapter("mine")
    token, value = next(iter((await scores_of(engine, f"solver@1-{digest[:8]}")).items()))
    logprob = value - shift
    point = {"prompt_ids": [1, 2], "token_id": token, "logprob": logprob, "previous": value - 2, "base": value - 2}
    answer = await gateway.publish("mine", digest, probe={"points": [point], "noise": 0.01})
    assert answer.status_code == status, answer.text
    assert (await policy(gateway))["active"] == (1 if status == 201 else 0)
    assert (loads(engine, UNLOAD) == []) is (status == 201)


@pytest.mark.parametrize(("size", "serves", "status"), [(0.5, "base", 409), (1e-6, "base", 201), (0.5, None, 201)])
async def test_without_a_probe_weights_that_are_no_small_change_must_be_seen(
    gateway: RunningGateway, engine: ScriptedEngine, size: float, serves: str | None, status: int
) -> None:
    engine.serves_only = serves
    weights = save({"base_model.model.x.lora_B.weight": torch.full((4, 2), size)})
    answer = await gateway.publish("mine", gateway.adapter("mine", weights))
    assert answer.status_code == status, answer.text
    if status == 409:
        assert "named for no layer" in answer.json()["error"]["message"]
        assert list(engine.models) == ["base"]


NO_ADAPTERS = ["../x", "a/b", "", "/etc", ".hidden", "no-such-folder", "a" * 600, "link", "extra", "linked-file"]


async def test_a_folder_that_is_no_adapter_is_refused(gateway: RunningGateway) -> None:
    root = gateway.settings.stores.adapters_dir
    digest = gateway.adapter("real")
    (root / "link").symlink_to(root / "real")
    gateway.adapter("extra")
    (root / "extra" / "pickle.bin").write_bytes(b"")
    gateway.adapter("linked-file")
    (root / "linked-file" / "adapter_model.safetensors").unlink()
    (root / "linked-file" / "adapter_model.safetensors").symlink_to(root / "real" / "adapter_model.safetensors")
    for folder in NO_ADAPTERS:
        answer = await gateway.publish(folder, digest)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "folder"
    assert (await policy(gateway))["versions"] == []


async def test_a_wrong_digest_is_refused(gateway: RunningGateway) -> None:
    gateway.adapter("mine")
    answer = await gateway.publish("mine", "0" * 64)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "digest_mismatch"


async def test_a_rollback_withdraws_later_versions_and_refuses_their_epoch(gateway: RunningGateway) -> None:
    for name in ("a", "b"):
        assert (await gateway.publish(name, gateway.adapter(name, name.encode()), epoch=0)).status_code == 201
    episode = await gateway.open()
    assert (await gateway.chat(episode)).headers["x-hone-version"] == "2"
    answer = await gateway.admin.post("/v1/policies/solver/rollback", json={"version": 1})
    assert answer.json() == {"policy": "solver", "version": 1, "state": "active", "epoch": 1}
    assert (await gateway.chat(episode)).headers["x-hone-version"] == "1"
    shown = await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}")
    assert [event["kind"] for event in shown.json()["events"]] == ["repinned"]
    late = await gateway.publish("c", gateway.adapter("c", b"c"), epoch=0)
    assert late.status_code == 409
    assert late.json()["error"]["code"] == "stale_epoch"
    withdrawn = await gateway.admin.post("/v1/policies/solver/rollback", json={"version": 2})
    assert withdrawn.status_code == 409
    fresh = await gateway.publish("d", gateway.adapter("d", b"d"), epoch=1)
    assert fresh.json()["version"] == 3
    assert (await gateway.admin.post("/v1/policies/solver/rollback", json={"version": 0})).json()["epoch"] == 2
    assert (await gateway.chat(await gateway.open())).headers["x-hone-version"] == "0"


class Silent(MemoryStore):
    """An episode store that does not answer for a while."""

    is_away = False

    async def get_routing(self, policy: str) -> Routing:
        if self.is_away:
            raise Unavailable("Redis cannot be reached.")
        return await super().get_routing(policy)


async def test_what_was_decided_while_the_episode_store_is_away_is_done_and_routed_later(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    store = Silent(SystemClock())
    async with running_door(engine, tmp_path, store=store) as door:
        await store.set_routing("solver", Routing(active=7, oldest=5))
        store.is_away = True
        assert (await door.services.swap.rollback("solver", 0)).epoch == 1
        store.is_away = False
        await door.services.swap.keep_up()
        assert (await store.get_routing("solver")).active == 0


async def test_an_engine_that_lost_its_adapters_gets_them_back_before_calls(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    digest = gateway.adapter("mine")
    await gateway.publish("mine", digest)
    name = f"solver@1-{digest[:8]}"
    del engine.models[name]
    while name not in engine.models:
        await gateway.admin.get("/health/live")
    assert (await gateway.chat(await gateway.open())).status_code == 200
    assert loads(engine) == [name, name]


async def test_a_folder_under_the_name_of_its_version_is_published_as_it_lies(gateway: RunningGateway) -> None:
    digest = gateway.adapter("mine")
    adapters = gateway.settings.stores.adapters_dir
    name = f"solver@1-{digest[:8]}"
    (adapters / "mine").rename(adapters / name)
    answer = await gateway.publish(name, digest)
    assert (answer.status_code, answer.json()["version"]) == (201, 1)
    assert (await gateway.publish(name, digest)).json()["version"] == 1


async def test_a_foreign_folder_under_the_name_of_a_version_is_in_the_way(gateway: RunningGateway) -> None:
    digest = gateway.adapter("mine")
    gateway.adapter(f"solver@1-{digest[:8]}", b"else")
    answer = await gateway.publish("mine", digest)
    assert answer.status_code == 409
    assert "move it away" in answer.json()["error"]["message"]
    assert (await gateway.publish("mine", digest)).json()["version"] == 2


async def test_publishing_the_same_folder_again_answers_the_same_version(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    digest = gateway.adapter("mine")
    name = f"solver@1-{digest[:8]}"
    await gateway.publish("mine", digest)
    again = await gateway.publish(name, digest)
    assert (again.status_code, again.json()["version"]) == (201, 1)
    assert loads(engine) == [name]


async def test_an_engine_that_ignores_the_temperature_is_refused_at_start(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.processed_logprobs = False
    settings = load(
        {"HONE_DATA_DIR": str(tmp_path), "HONE_POLICIES": "solver=base", "HONE_ENGINES": engine.url}, tmp_path
    )
    with pytest.raises(SettingsError, match="processed_logprobs"):
        async with open_services(settings):
            pass


async def test_an_engine_that_is_down_keeps_readiness_red_until_it_comes(tmp_path: Path) -> None:
    async with ScriptedEngine() as gone:
        port = int(gone.url.rpartition(":")[2])
    async with running_gateway(gone.url, tmp_path) as gateway:
        answer = await gateway.admin.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json()["engines"][0]["fitness"] == "down"
        assert (await gateway.chat(await gateway.open())).status_code == 502
        async with ScriptedEngine(port=port):
            await gateway.until("/health/ready", status="ready")
            assert (await gateway.chat(await gateway.open())).status_code == 200
