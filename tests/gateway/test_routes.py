"""Everything that is asked beside calls, on a running gateway."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.fakes.gateways import RunningGateway
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.types import Scope

pytestmark = pytest.mark.slow


def assert_is_error(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


# episodes


async def test_an_episode_opens_with_all_an_agent_needs(gateway: RunningGateway) -> None:
    answer = await gateway.admin.post("/v1/episodes", json={"task": "t"})
    assert answer.status_code == 201
    opened = answer.json()
    assert opened["base_url"] == f"{gateway.url}/v1"
    assert opened["env"] == {
        "OPENAI_BASE_URL": f"{gateway.url}/v1",
        "OPENAI_API_KEY": opened["api_key"],
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_API_KEY": opened["api_key"],
    }
    assert opened["versions"] == {"solver": 0}
    assert opened["group_id"]


async def test_the_same_idempotency_key_opens_one_episode_also_after_it_ended(gateway: RunningGateway) -> None:
    body = {"task": "t", "idempotency_key": "k", "metadata": {"a": 1}}
    first, second = [await gateway.admin.post("/v1/episodes", json=body) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    await gateway.admin.post("/v1/reward", json={"episode_id": first.json()["episode_id"], "reward": 1})
    await gateway.until(f"/v1/episodes/{first.json()['episode_id']}", state="archived")
    third = await gateway.admin.post("/v1/episodes", json=body)
    assert (third.status_code, third.json()["api_key"]) == (200, first.json()["api_key"])
    assert (await gateway.chat(third.json())).status_code == 410
    assert_is_error(await gateway.admin.post("/v1/episodes", json={**body, "task": "u"}), 409)


NO_EPISODES = [
    (b"", 400),
    (b"[]", 400),
    (b"{", 400),
    (b"\xff", 400),
    (b"[" * 50_000, 400),
    (b'{"task": 1}', 400),
    (b'{"task": "\\ud800"}', 400),
    (b'{"task": "a\\u0000b"}', 400),
    (b'{"task": "t", "run": "a/b"}', 400),
    (b'{"task": "t", "run": "unknown"}', 404),
    (b'{"task": "t", "policy": "unknown"}', 404),
    (b'{"task": "t", "version": 7}', 404),
    (b'{"task": "t", "version": -1}', 400),
    (b'{"task": "t", "ttl_s": 0}', 400),
    (b'{"task": "t", "ttl_s": NaN}', 422),
    (b'{"task": "t", "metadata": [1e999]}', 422),
    (b'{"task": "t", "tasks": "t"}', 400),
    (b'{"task": "' + b"x" * 513 + b'"}', 400),
]


async def test_what_is_no_episode_is_refused(gateway: RunningGateway) -> None:
    for body, status in NO_EPISODES:
        assert_is_error(await gateway.admin.post("/v1/episodes", content=body), status)
        assert (await gateway.admin.get("/v1/episodes")).json()["data"] == []


async def test_a_task_may_be_any_text_of_512_characters(gateway: RunningGateway) -> None:
    task = ("a/b?c=%2f ' \" \n\u2028 \U0001f600" * 40)[:512]
    opened = await gateway.open(task=task)
    shown = (await gateway.admin.get("/v1/episodes", params={"task": task})).json()["data"]
    assert [episode["episode_id"] for episode in shown] == [opened["episode_id"]]


async def test_live_and_archived_episodes_read_the_same(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.script(
        Script(prompt_ids=(1, 2), choices=(Answer(ids=(3, 99), logprobs=(-0.1, -0.2)),)),
        Script(prompt_ids=(1, 2, 3, 99, 5), choices=(Answer(ids=(6,), logprobs=(-0.3,), finish_reason="length"),)),
        Script(prompt_ids=(7,), choices=(Answer(ids=None, logprobs=()),), completion_tokens=2),
    )
    episode = await gateway.open()
    path = f"/v1/episodes/{episode['episode_id']}"
    calls = [(await gateway.chat(episode)).json()["id"] for _ in range(3)]
    await gateway.admin.post("/v1/reward", json={"call_id": calls[1], "reward": 2})
    parts = ("/samples", "/timeline")
    live = [(await gateway.admin.get(path + part)).json() for part in parts]
    assert live[0] == {
        "episode_id": episode["episode_id"],
        "num_calls": 3,
        "samples": [
            {
                "policy": "solver",
                "input_ids": [1, 2, 3, 99, 5, 6],
                "loss_mask": [0, 0, 1, 1, 0, 1],
                "logprobs": [None, None, -0.1, -0.2, None, -0.3],
                "spans": [
                    {"start": 2, "end": 4, "call_id": calls[0], "choice": 0, "version": 0, "reward": None},
                    {"start": 5, "end": 6, "call_id": calls[1], "choice": 0, "version": 0, "reward": 2.0},
                ],
            }
        ],
        "excluded": [{"call_id": calls[2], "choice": 0, "reason": "no_ids", "num_tokens": 0}],
    }
    assert [call["parent"] for call in live[1]["calls"]] == [None, calls[0], None]
    assert [call["truncated"] for call in live[1]["calls"]] == [False, True, False]
    assert live[1]["calls"][0]["request"]["messages"] == [{"role": "user", "content": "hi"}]
    assert live[1]["calls"][0]["message"]["role"] == "assistant"
    await gateway.admin.post(path + "/finish", json={"status": "ok"})
    shown = await gateway.until(path, state="archived")
    assert [(await gateway.admin.get(path + part)).json() for part in parts] == live
    wanted = {"status": "ok", "num_calls": 3, "num_samples": 1, "num_excluded": 1, "truncated": True, "reward": None}
    assert {name: shown[name] for name in wanted} == wanted
    assert shown["merge_ratio"] == pytest.approx(10 / 6)


async def test_a_session_key_finishes_its_own_episode_as_ok_or_failed_and_does_nothing_else(
    gateway: RunningGateway,
) -> None:
    mine, other = await gateway.open(), await gateway.open()
    path = f"/v1/episodes/{mine['episode_id']}"
    async with httpx.AsyncClient(base_url=gateway.url, headers={"x-api-key": mine["api_key"]}) as agent:
        assert_is_error(await agent.post("/v1/reward", json={"episode_id": mine["episode_id"], "reward": 1}), 403)
        assert_is_error(await agent.post("/v1/episodes", json={"task": "t"}), 403)
        assert_is_error(await agent.get(path), 403)
        assert_is_error(await agent.delete(path), 403)
        assert_is_error(await agent.post(f"/v1/episodes/{other['episode_id']}/finish", json={"status": "ok"}), 404)
        assert_is_error(await agent.post(path + "/finish", json={"status": "cancelled"}), 403)
        assert_is_error(await agent.post(path + "/finish", json={"status": "great"}), 400)
        assert (await agent.post(path + "/finish", json={"status": "failed"})).status_code == 200
        assert (await agent.post(path + "/finish", json={"status": "failed"})).status_code == 200
        assert_is_error(await agent.post(path + "/finish", json={"status": "ok"}), 409)


async def test_a_deleted_episode_is_gone_and_a_call_in_flight_cannot_bring_it_back(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    gate = asyncio.Event()
    engine.script(Script(gate=gate))
    episode = await gateway.open()
    path = f"/v1/episodes/{episode['episode_id']}"
    call = asyncio.create_task(gateway.chat(episode))
    while not engine.calls:
        await asyncio.sleep(0.01)
    assert (await gateway.admin.delete(path)).status_code == 200
    gate.set()
    assert not (await call).is_success
    for part in ("", "/samples", "/timeline"):
        assert_is_error(await gateway.admin.get(path + part), 404)
    assert_is_error(await gateway.admin.delete(path), 404)
    assert_is_error(await gateway.chat(episode), 410 if (await gateway.chat(episode)).status_code == 410 else 404)


async def test_a_foreign_tenant_sees_nothing(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    path = f"/v1/episodes/{episode['episode_id']}"
    async with await gateway.client(*Scope, tenant="other") as foreign:
        for part in ("", "/samples", "/timeline"):
            assert_is_error(await foreign.get(path + part), 404)
        assert_is_error(await foreign.post(path + "/finish", json={"status": "ok"}), 404)
        assert_is_error(await foreign.delete(path), 404)
        assert_is_error(await foreign.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": 1}), 404)
        assert (await foreign.get("/v1/episodes")).json()["data"] == []
        assert (await foreign.get("/v1/groups")).json()["data"] == []


# rewards


NOT_FINITE = [b"NaN", b"1e999", b"-Infinity", b'"nan"', b"[1]", b"{}", b"1" + b"0" * 400]


async def test_what_is_no_finite_number_is_422_and_stored_nowhere(gateway: RunningGateway) -> None:
    for value in NOT_FINITE:
        episode = await gateway.open()
        body = b'{"episode_id": "%s", "reward": %s}' % (episode["episode_id"].encode(), value)
        assert_is_error(await gateway.admin.post("/v1/reward", content=body), 422)
        shown = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}")).json()
        assert (shown["rewards"], shown["state"]) == ([], "open")


REWARDS = [(True, 1.0), (False, 0.0), (None, None), (0.5, 0.5), (-3, -3.0)]


async def test_a_reward_is_a_number_a_truth_or_not_scored(gateway: RunningGateway) -> None:
    for value, effective in REWARDS:
        episode = await gateway.open()
        answer = await gateway.admin.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": value})
        assert answer.status_code == 201
        assert {name: answer.json()[name] for name in ("call_id", "late", "ended", "waiting")} == {
            "call_id": None,
            "late": False,
            "ended": True,
            "waiting": 0,
        }
        shown = await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
        assert shown["reward"] == effective


async def test_a_reward_repeats_under_its_key_and_refuses_another_body(gateway: RunningGateway) -> None:
    body = {"episode_id": (await gateway.open())["episode_id"], "reward": 1, "idempotency_key": "r"}
    first, second = [await gateway.admin.post("/v1/reward", json=body) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["reward_id"] == second.json()["reward_id"]
    assert_is_error(await gateway.admin.post("/v1/reward", json={**body, "reward": 2}), 409)


async def test_a_call_leads_to_its_episode_while_it_still_streams(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    gate = asyncio.Event()
    engine.script(Script(gate=gate))
    episode = await gateway.open()
    call = asyncio.create_task(gateway.chat(episode))
    timeline = f"/v1/episodes/{episode['episode_id']}/timeline"
    while not (running := (await gateway.admin.get(timeline)).json()["in_flight"]):
        await asyncio.sleep(0.01)
    call_id = running[0]["call_id"]
    answer = await gateway.admin.post("/v1/reward", json={"call_id": call_id, "reward": 1})
    assert answer.json()["episode_id"] == episode["episode_id"]
    assert (answer.json()["waiting"], answer.json()["ended"]) == (1, False)
    final = await gateway.admin.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": 1})
    assert (final.json()["waiting"], final.json()["ended"]) == (1, True)
    gate.set()
    assert (await call).json()["id"] == call_id
    shown = await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
    assert shown["num_calls"] == 1


NO_TARGETS = [
    ({"reward": 1}, 400),
    ({"episode_id": "ep-" + "0" * 32, "reward": 1}, 404),
    ({"episode_id": "a/b", "reward": 1}, 400),
    ({"call_id": "call-1", "reward": 1}, 404),
    ({"call_id": f"chatcmpl-{'0' * 32}-{'0' * 32}", "reward": 1}, 404),
    ({"episode_id": "ep-" + "0" * 32}, 400),
]


async def test_a_reward_needs_a_target_that_exists(gateway: RunningGateway) -> None:
    for body, status in NO_TARGETS:
        assert_is_error(await gateway.admin.post("/v1/reward", json=body), status)


async def test_a_reward_long_after_the_end_is_kept(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    path = f"/v1/episodes/{episode['episode_id']}"
    call_id = (await gateway.chat(episode)).json()["id"]
    await gateway.admin.post(path + "/finish", json={"status": "ok"})
    await gateway.until(path, state="archived")
    assert (await gateway.admin.post("/v1/reward", json={"call_id": call_id, "reward": 1})).status_code == 201
    assert_is_error(await gateway.admin.post("/v1/reward", json={"call_id": call_id[:-1] + "!", "reward": 1}), 400)
    answer = await gateway.admin.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": 3})
    assert answer.status_code == 201
    assert (await gateway.admin.get(path)).json()["reward"] == 3.0


# runs, groups, lists


async def test_a_run_freezes_at_its_first_episode(gateway: RunningGateway) -> None:
    body = {"run": "r", "group_size": 2, "credit": "rloo"}
    assert (await gateway.admin.post("/v1/runs", json=body)).status_code == 201
    assert (await gateway.admin.post("/v1/runs", json={**body, "group_size": 3})).status_code == 200
    await gateway.open(run="r")
    assert (await gateway.admin.post("/v1/runs", json={**body, "group_size": 3})).status_code == 200
    assert_is_error(await gateway.admin.post("/v1/runs", json=body), 409)
    shown = {run["run"]: run for run in (await gateway.admin.get("/v1/runs")).json()["data"]}
    assert set(shown) == {"default", "r"}
    assert shown["r"]["credit"] == {"kind": "rloo", "std": True, "gamma": 1.0, "own": 1.0, "episode": 1.0}


async def test_a_run_tells_its_settings_and_what_of_it_was_trained(gateway: RunningGateway) -> None:
    await gateway.admin.post("/v1/runs", json={"run": "r", "group_size": 2})
    shown = (await gateway.admin.get("/v1/runs/r")).json()
    assert (shown["run"], shown["group_size"]) == ("r", 2)
    assert (shown["training"], shown["skipped_groups"]) == ({}, {})
    assert_is_error(await gateway.admin.get("/v1/runs/nothing"), 404)


async def test_a_group_shows_its_members_with_provisional_advantages(gateway: RunningGateway) -> None:
    await gateway.admin.post("/v1/runs", json={"run": "r", "group_size": 3, "credit": {"kind": "group", "std": False}})
    rewards = [1, 0, None]
    opened = [await gateway.open(run="r") for _ in rewards]
    assert len({episode["group_id"] for episode in opened}) == 1
    for episode, reward in zip(opened, rewards, strict=True):
        await gateway.admin.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": reward})
        await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
    group = (await gateway.admin.get("/v1/groups", params={"run": "r"})).json()["data"][0]
    assert [member["reward"] for member in group["members"]] == [1.0, 0.0, None]
    assert [member["member"] for member in group["members"]] == [True, True, False]
    assert [member["advantage"] for member in group["members"]] == [0.5, -0.5, None]
    assert group["members"][2]["why"] == "unscored"


async def test_lists_are_paged(gateway: RunningGateway) -> None:
    opened = [(await gateway.open())["episode_id"] for _ in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await gateway.admin.get("/v1/episodes", params=params)).json()
        seen += [episode["episode_id"] for episode in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == opened[::-1]


NO_PAGES = [
    "limit=0",
    "limit=201",
    "limit=x",
    "limit=-1",
    "cursor=junk",
    f"cursor={'a' * 600}",
    "task=%00",
    "status=great",
]


async def test_a_page_that_makes_no_sense_is_refused(gateway: RunningGateway) -> None:
    for query in NO_PAGES:
        assert_is_error(await gateway.admin.get(f"/v1/episodes?{query}"), 400)


# doors


SCOPES = [
    ("POST", "/v1/runs", Scope.ADMIN),
    ("GET", "/v1/runs", Scope.READ),
    ("GET", "/v1/runs/default", Scope.READ),
    ("POST", "/v1/episodes", Scope.AGENT),
    ("GET", "/v1/episodes", Scope.READ),
    ("GET", "/v1/episodes/x", Scope.READ),
    ("GET", "/v1/episodes/x/timeline", Scope.READ),
    ("GET", "/v1/episodes/x/samples", Scope.READ),
    ("POST", "/v1/episodes/x/finish", Scope.AGENT),
    ("DELETE", "/v1/episodes/x", Scope.ADMIN),
    ("POST", "/v1/reward", Scope.REWARD),
    ("GET", "/v1/groups", Scope.READ),
    ("GET", "/v1/policies", Scope.READ),
    ("POST", "/v1/policies", Scope.TRAINER),
    ("POST", "/v1/policies/solver/versions", Scope.TRAINER),
    ("POST", "/v1/policies/solver/rollback", Scope.TRAINER),
    ("GET", "/v1/engines", Scope.READ),
    ("GET", "/v1/batches", Scope.READ),
]


async def test_every_request_asks_for_its_scope(gateway: RunningGateway) -> None:
    for method, path, scope in SCOPES:
        body = b'{"status": "ok"}' if path.endswith("finish") else b"{}"
        async with httpx.AsyncClient(base_url=gateway.url) as nobody:
            assert_is_error(await nobody.request(method, path, content=body), 401)
        others = [other for other in Scope if other not in (scope, Scope.ADMIN)]
        async with await gateway.client(*others) as wrong:
            assert_is_error(await wrong.request(method, path, content=body), 403)
        async with await gateway.client(scope) as right:
            assert (await right.request(method, path, content=body)).status_code not in (401, 403, 500)


NOT_THERE = [
    ("GET", "/", 404),
    ("GET", "/nope", 404),
    ("POST", "/v1/load_lora_adapter", 404),
    ("POST", "/reset_prefix_cache", 404),
    ("GET", "/v1/episodes/a/b/c", 404),
    ("PUT", "/v1/reward", 405),
    ("GET", "/v1/reward", 405),
    ("GET", "/v1/chat/completions", 405),
    ("GET", "/v1/%2e%2e/metrics", 404),
    ("GET", "/v1/episodes/a%2fb", 404),
]


async def test_what_is_not_there_is_json_in_openais_form(gateway: RunningGateway) -> None:
    for method, path, status in NOT_THERE:
        assert_is_error(await gateway.admin.request(method, path), status)


@pytest.mark.parametrize("path", ["/v1/episodes/", "//v1//episodes", "/v1/v1/episodes", "//v1/v1//v1/episodes/"])
async def test_slashes_and_versions_too_many_are_never_redirected(gateway: RunningGateway, path: str) -> None:
    assert (await gateway.admin.post(gateway.url + path, json={"task": "t"})).status_code == 201


async def test_a_message_repeats_no_more_of_a_request_than_a_person_reads(gateway: RunningGateway) -> None:
    answer = await gateway.admin.post("/v1/runs", json={"run": "r", "mode": "x" * 100_000})
    assert_is_error(answer, 400)
    assert len(answer.json()["error"]["message"]) <= 4_000
    assert (await gateway.admin.get(f"{gateway.url}//v1//episodes//")).status_code == 200


async def test_health_and_the_description_are_open_on_loopback(gateway: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as nobody:
        assert (await nobody.get("/health/live")).status_code == 200
        ready = await nobody.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        described = (await nobody.get("/openapi.json")).json()
        page = await nobody.get("/docs")
    assert "POST /v1/reward" in page.text
    assert "http" not in page.text  # nothing is loaded from elsewhere
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert {"/v1/episodes", "/v1/reward", "/v1/runs", "/v1/groups"} <= set(described["paths"])
    body = described["paths"]["/v1/reward"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "reward" in body["properties"]


async def test_readiness_is_red_without_an_engine(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.models.clear()
    engine.models["another"] = {"id": "a", "object": "model"}
    engine.models["yet another"] = {"id": "b", "object": "model"}
    shown = await gateway.until("/health/ready", status="not ready")
    assert shown["engines"][0]["fitness"] == "refused"
    assert "HONE_POLICIES" in shown["engines"][0]["detail"]


async def test_headers_without_end_are_refused(gateway: RunningGateway) -> None:
    answer = await gateway.admin.get("/v1/runs", headers={"x-large": "x" * 70_000})
    assert answer.status_code in (400, 413, 431)


async def test_an_unknown_path_of_messages_is_refused_as_anthropic_tells_it(gateway: RunningGateway) -> None:
    answered = await gateway.admin.post("/v1/messages/batches", json={})
    assert (answered.status_code, answered.json()["type"]) == (404, "error")
    assert answered.json()["error"]["type"] == "not_found_error"
