"""The agent's door: who may call, for which episode, with which body, under which path; refusals and their form."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from gateway.auth import mint
from gateway.door import Door
from tests.fakes.running import BODY, STREAM, RunningDoor, running_door
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.types import EpisodeStatus, Key, RunSettings, Scope

pytestmark = pytest.mark.slow

ENV = {
    "HONE_MAX_BODY_BYTES": "20000",
    "HONE_BODY_TIMEOUT_S": "0.3",
    "HONE_ENGINE_KEY": "engine-secret",
    "HONE_MAX_OUTPUT_TOKENS": "50",
}


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[RunningDoor]:
    async with ScriptedEngine() as engine, running_door(engine, tmp_path, env=ENV) as running:
        yield running


async def asked(door: RunningDoor, path: str, headers: dict[str, str], body: Any = BODY) -> tuple[int, Any]:
    async with door.client.post(door.url + path, headers=headers, json=body) as response:
        return response.status, json.loads(await response.read())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def key_of(door: RunningDoor, *scopes: Scope, tenant: str = "default") -> str:
    key, digest = mint()
    await door.services.ledger.add_key(Key(key_id=f"k-{digest[:8]}", digest=digest, scopes=scopes, tenant=tenant))
    return key


class Broken:
    """A ring of keys with a bug in it."""

    async def authenticate(self, *_: object) -> None:
        raise ZeroDivisionError


async def test_a_bug_is_told_in_the_dialect_and_the_connection_is_not_used_again(door: RunningDoor) -> None:
    broken = Door(dataclasses.replace(door.services, keys=cast("Any", Broken())))
    transport = httpx.ASGITransport(broken, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answers = [await client.post(path, json=BODY) for path in ("/v1/chat/completions", "/v1/messages")]
    await broken.close()
    assert [(one.status_code, one.headers["connection"]) for one in answers] == [(500, "close")] * 2
    assert answers[0].json()["error"]["message"] == answers[1].json()["error"]["message"] == "The gateway failed."
    assert answers[1].json()["type"] == "error"


# which episode


async def test_path_header_and_session_key_each_name_the_episode(door: RunningDoor) -> None:
    episode = await door.open_episode()
    session = bearer(door.services.keys.session_key("default", episode))
    ways = [
        (f"/e/{episode}/v1/chat/completions", bearer(door.key)),
        ("/v1/chat/completions", {**bearer(door.key), "X-Hone-Episode": episode}),
        ("/v1/chat/completions", session),
        (f"/e/{episode}/v1/chat/completions", {**session, "X-Hone-Episode": episode}),
    ]
    for path, headers in ways:
        assert (await asked(door, path, headers))[0] == 200
    assert len(await door.calls(episode)) == len(ways)


async def test_episodes_that_disagree_are_refused(door: RunningDoor) -> None:
    one, other = await door.open_episode(), await door.open_episode()
    session = bearer(door.services.keys.session_key("default", one))
    status, said = await asked(door, f"/e/{other}/v1/chat/completions", session)
    assert (status, said["error"]["code"]) == (400, "episode_mismatch")
    assert (await asked(door, "/v1/chat/completions", {**session, "X-Hone-Episode": other}))[0] == 400
    assert door.engine.calls == []


async def test_an_unknown_episode_is_404_and_never_created(door: RunningDoor) -> None:
    for _ in range(2):
        assert (await asked(door, "/e/ep-unknown/v1/chat/completions", bearer(door.key)))[0] == 404


async def test_a_foreign_episode_reads_like_an_unknown_one(door: RunningDoor) -> None:
    episode = await door.open_episode()
    foreign = await key_of(door, Scope.AGENT, tenant="other")
    unknown = await asked(door, "/e/ep-x/v1/chat/completions", bearer(foreign))
    for _ in range(2):  # before and after its owner's call, when its head is known already
        status, said = await asked(door, f"/e/{episode}/v1/chat/completions", bearer(foreign))
        assert (status, said["error"]["code"]) == (404, unknown[1]["error"]["code"])
        assert (await door.chat(episode, BODY)).status == 200


async def test_an_episode_that_has_ended_answers_410_and_not_to_try_again(door: RunningDoor) -> None:
    episode = await door.open_episode()
    await door.chat(episode, BODY)
    await door.services.ledger.end_episode(episode, EpisodeStatus.OK, 1)
    await door.store.finish(episode, EpisodeStatus.OK)
    answered = await door.chat(episode, BODY)
    assert (answered.status, answered.headers["x-should-retry"]) == (410, "false")
    assert answered.headers["x-hone-episode"] == episode


async def test_an_episode_whose_keys_are_gone_answers_410_too(door: RunningDoor) -> None:
    ended, cached = await door.open_episode(), await door.open_episode()
    await door.chat(cached, BODY)
    for episode in (ended, cached):
        await door.services.ledger.end_episode(episode, EpisodeStatus.OK, 1)
        await door.store.finish(episode, EpisodeStatus.OK)
        await door.store.seal(episode)
        await door.store.expire(episode, 0)
        assert (await door.chat(episode, BODY)).status == 410


# who


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic x"}])
async def test_without_a_valid_key_nothing_is_served(door: RunningDoor, headers: dict[str, str]) -> None:
    episode = await door.open_episode()
    status, said = await asked(door, f"/e/{episode}/v1/chat/completions", headers)
    assert (status, said["error"]["type"]) == (401, "authentication_error")


async def test_both_key_headers_must_agree(door: RunningDoor) -> None:
    episode = await door.open_episode()
    path = f"/e/{episode}/v1/chat/completions"
    assert (await asked(door, path, {"x-api-key": door.key}))[0] == 200
    assert (await asked(door, path, {**bearer(door.key), "x-api-key": door.key}))[0] == 200
    assert (await asked(door, path, {**bearer(door.key), "x-api-key": "other"}))[0] == 401


async def test_a_key_without_the_agents_scope_may_not_call(door: RunningDoor) -> None:
    episode = await door.open_episode()
    reward = await key_of(door, Scope.REWARD)
    assert (await asked(door, f"/e/{episode}/v1/chat/completions", bearer(reward)))[0] == 403


async def test_the_agents_headers_and_key_never_reach_the_engine(door: RunningDoor) -> None:
    episode = await door.open_episode()
    answered = await door.chat(episode, BODY, **{"X-Secret": "agent-secret", "Cookie": "a=agent-secret"})
    (received,) = door.engine.calls
    told = str(received.headers) + received.raw.decode()
    assert door.key not in told
    assert "agent-secret" not in told
    assert received.headers["Authorization"] == "Bearer engine-secret"
    assert "engine-secret" not in str(answered)


# bodies


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff\xfe", None),
        (b'{"model":"solver"}', "messages"),
        (b'{"messages":[]}', "model"),
        (b'{"model":"solver","messages":[{"role":"user","content":"x"}],"n":99}', "n"),
        (b'{"model":"solver","messages":[{"role":"user","content":"x"}],"temperature":"hot"}', "temperature"),
    ],
)
async def test_a_body_that_cannot_be_read_is_a_clear_400_and_stores_nothing(
    door: RunningDoor, body: bytes, param: str | None
) -> None:
    episode = await door.open_episode()
    answered = await door.chat(episode, body)
    error = json.loads(answered.raw)["error"]
    assert (answered.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"]
    assert ((await door.view(episode)).calls, (await door.view(episode)).intents) == ((), ())
    assert (await door.chat(episode, BODY)).status == 200


async def test_a_body_that_is_too_large_is_413(door: RunningDoor) -> None:
    episode = await door.open_episode()
    big = json.dumps({**BODY, "x": "y" * 30_000}).encode()
    assert (await door.chat(episode, big)).status == 413

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 1000

    headers = door.headers(episode)
    async with door.client.post(f"{door.url}/v1/chat/completions", data=pieces(), headers=headers) as response:
        assert response.status == 413
    assert (await door.chat(episode, BODY)).status == 200


async def test_a_body_that_comes_too_slowly_is_given_up(door: RunningDoor) -> None:
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.key}\r\nContent-Length: 9\r\n"
    writer.write(head.encode() + b"\r\n{")
    answer = await asyncio.wait_for(reader.readuntil(b"}}"), 30)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"HONE_BODY_TIMEOUT_S" in answer


async def test_the_output_cap_reaches_the_engine(door: RunningDoor) -> None:
    episode = await door.open_episode()
    await door.chat(episode, {**BODY, "max_tokens": 500})
    await door.chat(episode, BODY)
    assert [received.body["max_tokens"] for received in door.engine.calls] == [50, 50]


# paths and models


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1//chat/completions", "/v1/v1/chat/completions"])
async def test_every_spelling_of_the_path_is_served(door: RunningDoor, path: str) -> None:
    episode = await door.open_episode()
    assert (await asked(door, path, door.headers(episode)))[0] == 200


async def test_a_wrong_method_names_the_right_one(door: RunningDoor) -> None:
    async with door.client.get(f"{door.url}/v1/chat/completions", headers=bearer(door.key)) as response:
        assert (response.status, response.headers["allow"]) == (405, "POST")
        assert "error" in json.loads(await response.read())


async def test_the_models_are_the_policies_and_their_aliases(door: RunningDoor) -> None:
    for path, names in (("/v1/models", ["solver"]), ("/v1/models/solver", ["solver"])):
        async with door.client.get(door.url + path, headers=bearer(door.key)) as response:
            said = json.loads(await response.read())
            assert [card["id"] for card in said.get("data", [said])] == names
    async with door.client.get(f"{door.url}/v1/models/x", headers=bearer(door.key)) as response:
        assert (response.status, json.loads(await response.read())["error"]["code"]) == (404, "model_not_found")


async def test_with_two_policies_an_unknown_model_lists_the_names(tmp_path: Path) -> None:
    async with (
        ScriptedEngine() as engine,
        running_door(engine, tmp_path, policies="solver=base,checker=base") as door,
    ):
        episode = await door.open_episode()
        answered = await door.chat(episode, {**BODY, "model": "gpt-4o"})
        error = json.loads(answered.raw)["error"]
        assert (answered.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "checker, solver" in error["message"]
        assert (await door.chat(episode, {**BODY, "model": "checker"})).headers["x-hone-policy"] == "checker"


# what is shown


async def test_only_what_was_asked_for_is_shown(door: RunningDoor) -> None:
    episode = await door.open_episode()
    plain = await door.chat(episode, STREAM)
    for hidden in (b"token_ids", b"logprobs", b"usage"):
        assert hidden not in plain.raw
    shows = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    full = await door.chat(episode, {**STREAM, **shows})
    for shown in (b"prompt_token_ids", b'"token_ids"', b"logprobs", b'"usage"'):
        assert shown in full.raw
    whole = json.loads((await door.chat(episode, BODY)).raw)
    assert "usage" in whole
    assert not {"logprobs", "token_ids"} & set(whole["choices"][0])


async def test_hidden_reasoning_is_hidden_and_its_ids_are_kept(door: RunningDoor) -> None:
    episode = await door.open_episode()
    deltas = ({"reasoning_content": "hmm", "reasoning": "hmm"}, {"content": "yes"})
    door.engine.script(Script(choices=(Answer(ids=(5, 99), deltas=deltas),)))
    answered = await door.chat(episode, {**STREAM, "include_reasoning": False})
    assert b"hmm" not in answered.raw
    assert b"yes" in answered.raw
    (call,) = await door.calls(episode)
    assert (call.choices[0].sampled_ids, b"hmm" in call.choices[0].message) == ((5, 99), False)
    assert door.engine.calls[0].body["include_reasoning"] is True


async def test_eval_runs_honour_the_agents_sampling(door: RunningDoor) -> None:
    await door.services.ledger.put_run("default", RunSettings(run="eval", mode="eval"))
    trained, evaluated = await door.open_episode(), await door.open_episode(run="eval")
    for episode in (trained, evaluated):
        await door.chat(episode, {**BODY, "temperature": 0})
    assert [received.body["temperature"] for received in door.engine.calls] == [1.0, 0]
    (call,) = await door.calls(evaluated)
    assert call.sampling.temperature == 0
