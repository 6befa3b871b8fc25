"""Answers that are continued: on another gateway, after their episode was archived, and not once it was deleted."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.desk import shred_tenant
from gateway.json_depth import MAX_DEPTH
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.slow

Json = dict[str, Any]


async def respond(gateway: RunningGateway, key: str | None, said: str, *, previous: str | None = None) -> Json:
    """Without a key the call is made with an ordinary one."""
    answered = await gateway.admin.post(
        "/v1/responses",
        headers={"Authorization": f"Bearer {key}"} if key else {},
        json={"model": "solver", "input": said, "previous_response_id": previous},
    )
    return json.loads(answered.content)


def words(engine: ScriptedEngine) -> list[str]:
    """What the engine was told last."""
    return [message["content"] for message in engine.calls[-1].body["messages"]]


async def test_another_gateway_knows_what_was_answered(
    engine: ScriptedEngine, gateway: RunningGateway, tmp_path: Path, redis_url: str
) -> None:
    key = (await gateway.open())["api_key"]
    first = await respond(gateway, key, "one")
    async with running_gateway(engine, tmp_path, {"HONE_REDIS_URL": redis_url}) as other:
        second = await respond(other, key, "two", previous=first["id"])
        third = await respond(gateway, key, "three", previous=second["id"])
    texts = [answer["output"][0]["content"][0]["text"] for answer in (first, second)]
    assert words(engine) == ["one", texts[0], "two", texts[1], "three"]
    assert third["previous_response_id"] == second["id"]


async def test_an_archived_answer_is_continued_in_another_episode(
    engine: ScriptedEngine, gateway: RunningGateway, tmp_path: Path, redis_url: str
) -> None:
    episode = await gateway.open()
    first = await respond(gateway, episode["api_key"], "one")
    path = f"/v1/episodes/{episode['episode_id']}"
    await gateway.admin.post(f"{path}/finish", json={"status": "ok"})
    await gateway.until(path, state="archived")
    again = await gateway.admin.get(f"/v1/responses/{first['id']}")
    assert again.json()["output"] == first["output"]
    assert again.json()["usage"] == first["usage"]
    streamed = await gateway.admin.get(f"/v1/responses/{first['id']}?stream=true")
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
    async with running_gateway(engine, tmp_path, {"HONE_REDIS_URL": redis_url}) as other:
        second = await respond(other, None, "two", previous=first["id"])
    assert second["status"] == "completed"
    assert words(engine) == ["one", first["output"][0]["content"][0]["text"], "two"]


async def test_a_deleted_answer_is_forgotten(engine: ScriptedEngine, gateway: RunningGateway) -> None:
    episode = await gateway.open()
    first = await respond(gateway, episode["api_key"], "one")
    deleted = await gateway.admin.delete(f"/v1/episodes/{episode['episode_id']}")
    assert deleted.is_success
    refused = await respond(gateway, None, "two", previous=first["id"])
    assert refused["error"]["code"] == "previous_response_not_found"


async def test_a_shredded_answer_is_continued_nowhere_not_even_where_it_was_given(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    env = {"HONE_REDIS_URL": redis_url, "HONE_ENCRYPTION_KEY": base64.b64encode(bytes(32)).decode()}
    async with running_gateway(engine, tmp_path, env) as gateway:
        episode = await gateway.open()
        first = await respond(gateway, episode["api_key"], "one")
        path = f"/v1/episodes/{episode['episode_id']}"
        await gateway.admin.post(f"{path}/finish", json={"status": "ok"})
        await gateway.until(path, state="archived")
        assert (await respond(gateway, None, "two", previous=first["id"]))["status"] == "completed"
        await shred_tenant(gateway.settings.stores, "default")
        refused = await respond(gateway, None, "three", previous=first["id"])
        assert refused["error"]["code"] == "shredded"


async def test_a_session_key_goes_on_from_answers_of_its_own_episode_alone(gateway: RunningGateway) -> None:
    first = await respond(gateway, (await gateway.open())["api_key"], "one")
    refused = await respond(gateway, (await gateway.open())["api_key"], "two", previous=first["id"])
    assert refused["error"]["code"] == "previous_response_not_found"


async def test_a_request_as_deep_as_the_door_takes_is_shown(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    deep = '{"a":' * (MAX_DEPTH - 1) + "1" + "}" * (MAX_DEPTH - 1)
    body = '{"model": "solver", "messages": [{"role": "user", "content": "hi"}], "metadata": ' + deep + "}"
    headers = {"Authorization": f"Bearer {episode['api_key']}", "Content-Type": "application/json"}
    answered = await gateway.admin.post("/v1/chat/completions", headers=headers, content=body)
    assert answered.is_success
    timeline = await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")
    assert timeline.is_success
    assert deep in timeline.text
