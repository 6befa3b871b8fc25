"""What is kept of what was recorded, as an administrator sees it on a running gateway."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection, delete, update

from gateway.desk import shred_tenant
from gateway.startup import open_services
from tests.fakes.gateways import Json, RunningGateway, running_gateway
from tests.fakes.running import BODY
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker import tables
from tracker.errors import SettingsError
from tracker.types import Scope

pytestmark = pytest.mark.slow


async def chat_with(client: httpx.AsyncClient, episode_id: str | None = None) -> str:
    """A call made with an API key; the id of its episode."""
    named = {"X-Hone-Episode": episode_id} if episode_id else {}
    answer = await client.post("/v1/chat/completions", headers=named, json=BODY)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-hone-episode"]


def forget_keys(connection: Connection, episode_id: str) -> None:
    """Leave an episode as an older gateway would have archived it."""
    episodes, keys = tables.episodes, tables.episode_keys
    connection.execute(update(episodes).where(episodes.c.episode_id == episode_id).values(key_id=None))
    connection.execute(delete(keys).where(keys.c.episode_id == episode_id))


async def finished(gateway: RunningGateway, episode_id: str) -> Json:
    await gateway.admin.post("/v1/reward", json={"episode_id": episode_id, "reward": 1})
    return await gateway.until(f"/v1/episodes/{episode_id}", state="archived")


async def test_everything_of_a_key_goes_open_and_archived_and_nothing_of_another(gateway: RunningGateway) -> None:
    agent = await gateway.client(Scope.AGENT)
    async with agent:
        own = (await agent.post("/v1/episodes", json={"task": "t"})).json()["episode_id"]
        implicit = await chat_with(agent)
        joined = (await gateway.open(task="joined"))["episode_id"]
        await chat_with(agent, joined)
        open_joined = (await gateway.open(task="open"))["episode_id"]
        await chat_with(agent, open_joined)
        other = await gateway.open(task="other")
        await gateway.chat(other)
        for episode_id in (own, joined, other["episode_id"]):
            await finished(gateway, episode_id)
        keys = [key for key in await gateway.ledger.list_keys("default") if key.scopes == (Scope.AGENT,)]
        (key,) = keys
        path = f"/v1/keys/{key.key_id}/data"
        assert (await agent.delete(path)).status_code == 403
        answer = await gateway.admin.delete(path)
        assert answer.json() == {"key_id": key.key_id, "deleted": 4, "done": True}
        for episode_id in (own, implicit, joined, open_joined):
            assert (await gateway.admin.get(f"/v1/episodes/{episode_id}")).status_code == 404
            again = await agent.post("/v1/chat/completions", headers={"X-Hone-Episode": episode_id}, json=BODY)
            assert again.status_code in (404, 410)
        assert (await gateway.admin.get(f"/v1/episodes/{other['episode_id']}")).json()["num_calls"] == 1
        assert (await gateway.admin.delete(path)).json()["deleted"] == 0
        assert (await gateway.admin.delete("/v1/keys/nothing/data")).status_code == 404


async def test_an_archive_of_before_keys_were_written_down_is_opened_to_tell_whose_it_is(
    gateway: RunningGateway,
) -> None:
    async with await gateway.client(Scope.AGENT) as agent:
        episode_id = await chat_with(agent)
    await finished(gateway, episode_id)
    (key,) = [key for key in await gateway.ledger.list_keys("default") if key.scopes == (Scope.AGENT,)]
    await gateway.ledger.write(forget_keys, episode_id)
    assert (await gateway.admin.delete(f"/v1/keys/{key.key_id}/data")).json()["deleted"] == 1


async def test_what_retention_removed_is_said_and_what_is_left_is_still_told(gateway: RunningGateway) -> None:
    body = {"run": "brief", "mode": "eval", "retention": {"tokens_days": 0, "text_days": 0, "metadata_days": 0}}
    assert (await gateway.admin.post("/v1/runs", json=body)).status_code == 201
    episode = await gateway.open(run="brief", metadata={"secret": 1})
    await gateway.chat(episode)
    path = f"/v1/episodes/{episode['episode_id']}"
    before = await finished(gateway, episode["episode_id"])
    await gateway.ledger.apply_retention()
    after = (await gateway.admin.get(path)).json()
    assert after["removed"] == ["tokens", "text", "metadata"]
    assert after["metadata"] is None
    assert {name: after[name] for name in ("num_calls", "num_samples", "reward")} == {
        name: before[name] for name in ("num_calls", "num_samples", "reward")
    }
    refused = await gateway.admin.get(f"{path}/samples")
    assert (refused.status_code, refused.json()["error"]["code"]) == (410, "removed")
    assert "removed by retention at" in refused.json()["error"]["message"]
    (call,) = (await gateway.admin.get(f"{path}/timeline")).json()["calls"]
    assert (call["reason"], call["message"], call["request"]) == ("removed", None, {})
    assert (await gateway.admin.get(f"{path}/lineage")).json()["versions"] == {}


async def test_deletions_stand_in_the_audit_log(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    await gateway.admin.delete(f"/v1/episodes/{episode['episode_id']}")
    (key, *_) = await gateway.ledger.list_keys("default")
    await gateway.admin.delete(f"/v1/keys/{key.key_id}/data")
    acts, _ = await gateway.ledger.list_acts("default", 10, None)
    assert {(act.act, act.target, act.outcome) for act in acts} >= {
        ("episode.delete", episode["episode_id"], "ok"),
        ("key.erase", key.key_id, "ok"),
    }


async def test_a_shredded_tenant_is_gone_but_for_what_the_ledger_counts(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    key = base64.b64encode(os.urandom(32)).decode()
    env = {"HONE_REDIS_URL": redis_url, "HONE_ENCRYPTION_KEY": key}
    async with running_gateway(engine, tmp_path, env) as gateway:
        episode = await gateway.open()
        await gateway.chat(episode)
        path = f"/v1/episodes/{episode['episode_id']}"
        before = await finished(gateway, episode["episode_id"])
        assert len((await gateway.admin.get(f"{path}/samples")).json()["samples"]) == 1
        assert await shred_tenant(gateway.settings.stores, "default") == 1
        after = (await gateway.admin.get(path)).json()
        assert {name: after[name] for name in ("num_calls", "reward", "status", "removed")} == {
            **{name: before[name] for name in ("num_calls", "reward", "status")},
            "removed": ["payload"],
        }
        for part in ("samples", "timeline"):
            refused = await gateway.admin.get(f"{path}/{part}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (410, "shredded")
        later = await gateway.open(task="later")
        await gateway.chat(later)
        await finished(gateway, later["episode_id"])
        assert (await gateway.admin.get(f"/v1/episodes/{later['episode_id']}/samples")).status_code == 200
    stores = gateway.settings.stores.model_copy(update={"encryption_key": None})
    with pytest.raises(SettingsError, match="HONE_ENCRYPTION_KEY"):
        async with open_services(gateway.settings.model_copy(update={"stores": stores})):
            pass


@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_gets_its_answer_unchanged_and_what_a_rule_finds_is_not_kept(
    gateway: RunningGateway, engine: ScriptedEngine, *, streams: bool
) -> None:
    rules = [
        {"name": "mail", "pattern": r"[a-z]+@[a-z.]+"},
        {"name": "card", "pattern": "4111-[0-9]{4}", "action": "exclude"},
    ]
    body = {"run": "careful", "redactions": rules}
    assert (await gateway.admin.post("/v1/runs", json=body)).status_code == 201
    answers = ("write to ann", "@example.org", "")
    engine.script(
        Script(prompt_ids=(1, 2), choices=(Answer(ids=(3, 4, 99), texts=answers, logprobs=(-0.1, -0.2, -0.3)),)),
        Script(prompt_ids=(1, 2, 3, 4, 99, 5), choices=(Answer(ids=(6, 99), texts=("ok", "")),)),
        Script(prompt_ids=(9,), choices=(Answer(ids=(8, 99), texts=("paid", "")),)),
    )
    episode = await gateway.open(run="careful")
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    got: list[str] = []
    for words in ("hi", "bob@example.org", "pay with 4111-2222"):
        asked = {"model": "solver", "messages": [{"role": "user", "content": words}], "stream": streams}
        answer = await gateway.admin.post("/v1/chat/completions", headers=headers, json=asked)
        assert answer.status_code == 200, answer.text
        got.append(said(answer.text) if streams else answer.json()["choices"][0]["message"]["content"])
    assert got == ["write to ann@example.org", "ok", "paid"]
    path = f"/v1/episodes/{episode['episode_id']}"
    live = (await gateway.admin.get(f"{path}/timeline")).json()["calls"]
    await finished(gateway, episode["episode_id"])
    kept = (await gateway.admin.get(f"{path}/timeline")).json()["calls"]
    assert kept == live
    assert "example" not in json.dumps(kept)
    assert "4111" not in json.dumps(kept)
    assert [call["reason"] for call in kept] == ["redacted", None, "redacted"]
    assert kept[0]["message"]["content"] == "write to [mail]"
    assert kept[1]["request"]["messages"][0]["content"] == "[mail]"
    assert (kept[2]["message"], kept[2]["num_prompt_ids"]) == (None, 0)
    (sample,) = (await gateway.admin.get(f"{path}/samples")).json()["samples"]
    assert sample["input_ids"] == [1, 2, 3, 4, 99, 5, 6, 99]
    assert sample["loss_mask"] == [0, 0, 0, 0, 0, 0, 1, 1]


def said(stream: str) -> str:
    """The words of a stream of chat completions."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
