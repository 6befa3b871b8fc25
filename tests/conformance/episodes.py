"""Whose call it is: keys and their scopes, the one episode that is named, ends that stay ends."""

from __future__ import annotations

import asyncio

from tests.conformance.forms import CHAT, FORMS, Form, Json
from tests.conformance.rewards import finish
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene, rows
from tests.fakes.scripted_answers import Script

NEEDS = ("episodes",)
RETRY = "x-stainless-retry-count"


@rule("{0}: path, header and session key each name the episode", needs=[*NEEDS, "samples"], each=FORMS)
async def each_names_it(scene: Scene, form: Form) -> None:
    episode, agent = await scene.open(), scene.gateway.keys.agent
    named = {"X-Hone-Episode": episode.episode_id}
    path = f"/e/{episode.episode_id}{form.path}"
    ways: list[tuple[str, dict[str, str], str]] = [
        (path, {}, agent),
        (form.path, named, agent),
        (form.path, {}, episode.api_key),
        (path, named, episode.api_key),
    ]
    for where, headers, key in ways:
        answered = await scene.ask(episode, form, path=where, headers=headers, key=key)
        assert (answered.status, answered.headers.get("x-hone-episode")) == (200, episode.episode_id), answered.raw
    assert (await scene.told(episode))["num_calls"] == len(ways)


@rule("an episode opens with all that an agent needs", needs=NEEDS)
async def opens(scene: Scene) -> None:
    said = (await scene.open()).said
    assert {"episode_id", "api_key", "base_url", "env", "group_id", "versions"} <= set(said)
    env = said["env"]
    assert set(env) == {"OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"}
    assert env["OPENAI_BASE_URL"] == said["base_url"] == env["ANTHROPIC_BASE_URL"] + "/v1"
    assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == said["api_key"]


@rule("the base URL never follows the Host header", case="C45", needs=NEEDS)
async def host_header(scene: Scene) -> None:
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    key = scene.gateway.keys.agent
    answered = await scene.gateway.send("POST", "/v1/episodes", {"task": scene.tag}, key=key, **headers)
    assert answered.status in (201, 400), answered.raw
    assert b"evil" not in answered.raw


@rule("names that disagree are a 400, and nothing is sent", needs=NEEDS)
async def disagreement(scene: Scene) -> None:
    one, other = await scene.open(), await scene.open()
    named = {"X-Hone-Episode": other.episode_id}
    ways = [(f"/e/{other.episode_id}{CHAT.path}", {}, one.api_key), (CHAT.path, named, one.api_key)]
    ways += [(f"/e/{one.episode_id}{CHAT.path}", named, scene.gateway.keys.agent)]
    for path, headers, key in ways:
        answered = await scene.ask(one, path=path, headers=headers, key=key)
        assert answered.status == 400, answered.raw
    assert await scene.received() == []


@rule("an unknown episode is a 404 and never created", needs=NEEDS)
async def unknown_episode(scene: Scene) -> None:
    name, keys = f"ep-{scene.tag}", scene.gateway.keys
    for _ in range(2):
        for path, headers in ((f"/e/{name}{CHAT.path}", {}), (CHAT.path, {"X-Hone-Episode": name})):
            answered = await scene.ask(Episode(keys.agent), path=path, headers=headers)
            assert answered.status == 404, answered.raw
        assert (await scene.gateway.send("GET", f"/v1/episodes/{name}", key=keys.read)).status == 404


WRONG_IDS = {"a space": "a b", "a slash": "a/b", "too long": "x" * 129, "an umlaut": "ä", "a quote": "a'"}


@rule("an id that is none is refused: {0}", needs=NEEDS, each=WRONG_IDS)
async def wrong_ids(scene: Scene, name: str) -> None:
    if name.isascii():
        answered = await scene.ask(Episode(scene.gateway.keys.agent), headers={"X-Hone-Episode": name})
        assert answered.status in (400, 404), answered.status
    key = scene.gateway.keys.agent
    for field in ("run", "idempotency_key"):
        opened = await scene.gateway.send("POST", "/v1/episodes", {"task": "t", field: name}, key=key)
        assert opened.status in (400, 404), (field, opened.status)


@rule("an episode of another tenant reads like an unknown one", case="C45", needs=[*NEEDS, "other", "samples"])
async def foreign_tenant(scene: Scene) -> None:
    episode, other = await scene.open(), scene.gateway.keys.other
    named = {"X-Hone-Episode": episode.episode_id}
    call_id = (await scene.ask(episode)).headers["x-hone-call"]
    foreign = await scene.ask(episode, headers=named, key=other)
    unknown = await scene.ask(episode, headers={"X-Hone-Episode": "ep-x"}, key=other)
    assert (foreign.status, unknown.status) == (404, 404)
    assert foreign.json["error"]["code"] == unknown.json["error"]["code"]
    for path in ("", "/samples", "/timeline"):
        read = await scene.gateway.send("GET", f"/v1/episodes/{episode.episode_id}{path}", key=other)
        assert read.status == 404, (path, read.status)
    for target in ({"episode_id": episode.episode_id}, {"call_id": call_id}):
        assert (await scene.send_reward({**target, "reward": 1}, key=other)).status == 404
    assert (await scene.told(episode))["num_calls"] == 1


@rule("the same idempotency key and body open one episode, also when it has ended", needs=NEEDS)
async def idempotent(scene: Scene) -> None:
    body = {"task": scene.tag, "idempotency_key": scene.tag, "metadata": {"a": 1}}

    async def opened(**more: object) -> tuple[int, Json]:
        key = scene.gateway.keys.agent
        answered = await scene.gateway.send("POST", "/v1/episodes", {**body, **more}, key=key)
        return answered.status, answered.json

    both = await asyncio.gather(opened(), opened())
    assert sorted(status for status, _ in both) == [200, 201]
    assert both[0][1]["episode_id"] == both[1][1]["episode_id"]
    assert both[0][1]["api_key"] == both[1][1]["api_key"]
    episode = Episode(both[0][1]["api_key"], both[0][1]["episode_id"])
    await finish(scene, episode, "ok")
    status, again = await opened()
    assert (status, again["episode_id"]) == (200, episode.episode_id)
    assert (await opened(task="another"))[0] == 409


@rule("{0}: an episode that has ended is a 410 that SDKs do not try again", needs=NEEDS, each=FORMS)
async def ended(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    await finish(scene, episode, "ok")
    for streams in (False, True):
        answered = await scene.ask(episode, form, stream=streams)
        assert (answered.status, answered.headers.get("x-should-retry")) == (410, "false"), answered.raw
        form.error_of(answered)
    assert await scene.received() == []


@rule("an end takes effect when the last call in flight ends", needs=[*NEEDS, "samples"])
async def end_waits(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(), gate="end")
    asking = asyncio.create_task(scene.ask(episode))
    await scene.until(scene.received)
    await finish(scene, episode, "ok")
    assert (await scene.told(episode))["state"] == "finishing"
    await scene.release("end")
    assert (await asking).status == 200

    async def archived() -> bool:
        return (await scene.told(episode))["state"] == "archived"

    await scene.until(archived)
    assert len(rows(await scene.samples(episode))) == 1


@rule("finishing again with the same status is a 200, with another a 409", needs=NEEDS)
async def finish_again(scene: Scene) -> None:
    episode = await scene.open()
    await finish(scene, episode, "ok")
    await finish(scene, episode, "ok")
    path = f"/v1/episodes/{episode.episode_id}/finish"
    answered = await scene.gateway.send("POST", path, {"status": "failed"}, key=scene.gateway.keys.agent)
    assert answered.status == 409, answered.raw


@rule("a session key calls for its episode and ends it as ok or failed, nothing else", case="C45", needs=NEEDS)
async def session_key(scene: Scene) -> None:
    mine, other = await scene.open(), await scene.open()
    path = f"/v1/episodes/{mine.episode_id}"
    asked: list[tuple[str, str, Json | None, int]] = [
        ("GET", path, None, 403),
        ("DELETE", path, None, 403),
        ("GET", "/v1/episodes", None, 403),
        ("POST", "/v1/episodes", {"task": "t"}, 403),
        ("POST", "/v1/runs", {"run": "x"}, 403),
        ("POST", f"/v1/episodes/{other.episode_id}/finish", {"status": "ok"}, 404),
        ("POST", f"{path}/finish", {"status": "cancelled"}, 403),
        ("POST", f"{path}/finish", {"status": "infra_error"}, 403),
        ("POST", f"{path}/finish", {"status": "failed"}, 200),
    ]
    for method, where, body, status in asked:
        answered = await scene.gateway.send(method, where, body, key=mine.api_key)
        assert answered.status == status, (method, where, body, answered.status)


@rule("a session key that was tampered with is a 401", case="C45", needs=NEEDS)
async def tampered_key(scene: Scene) -> None:
    episode, other = await scene.open(), await scene.open()
    key = episode.api_key
    forged = [
        key[:-1],
        key + "x",
        key.replace(episode.episode_id, other.episode_id),
        key.replace("-default", "-another"),
        key.swapcase(),
    ]
    for one in forged:
        answered = await scene.ask(Episode(one))
        assert answered.status == 401, (one, answered.status)


@rule("{0}: both key headers work, and must agree", each=FORMS)
async def both_headers(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    body = {"model": scene.gateway.model, **form.body(f"{scene.tag} hi")}

    async def status(**headers: str) -> int:
        return (await scene.gateway.send("POST", form.path, body, **headers)).status

    bearer = f"Bearer {episode.api_key}"
    assert await status(**{"x-api-key": episode.api_key}) == 200
    assert await status(**{"x-api-key": episode.api_key, "Authorization": bearer}) == 200
    assert await status(**{"x-api-key": "another", "Authorization": bearer}) == 401
    assert await status(**{"x-api-key": episode.api_key, "Authorization": "Bearer another"}) == 401
    assert await status(Authorization=f"bearer {episode.api_key}") == 200
    assert await status() == 401


@rule("scopes: an agent's key reads, rewards and administers nothing", case="C45", needs=[*NEEDS, "scopes"])
async def scopes(scene: Scene) -> None:
    episode, key = await scene.open(), scene.gateway.keys.agent
    path = f"/v1/episodes/{episode.episode_id}"
    reading = ["/v1/episodes", path, f"{path}/samples", f"{path}/timeline", "/v1/groups", "/v1/policies", "/v1/runs"]
    for where in [*reading, "/v1/engines", "/v1/batches"]:
        assert (await scene.gateway.send("GET", where, key=key)).status == 403, where
    writing: dict[str, Json] = {
        "/v1/reward": {"episode_id": episode.episode_id, "reward": 1},
        "/v1/runs": {"run": "x"},
        "/v1/policies/solver/versions": {"folder": "x", "digest": "0" * 64},
        "/v1/policies/solver/rollback": {"version": 0},
    }
    for where, body in writing.items():
        assert (await scene.gateway.send("POST", where, body, key=key)).status == 403, where
    assert (await scene.gateway.send("DELETE", path, key=key)).status == 403


@rule("a deleted episode is gone, and a call in flight cannot bring it back", needs=[*NEEDS, "samples"])
async def deleted(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(), gate="end")
    asking = asyncio.create_task(scene.ask(episode))
    await scene.until(scene.received)
    path = f"/v1/episodes/{episode.episode_id}"
    await scene.admin("DELETE", path)
    await scene.release("end")
    await asking
    for where in (path, f"{path}/samples", f"{path}/timeline"):
        assert (await scene.gateway.send("GET", where, key=scene.gateway.keys.read)).status == 404
    assert (await scene.ask(episode)).status in (404, 410)
