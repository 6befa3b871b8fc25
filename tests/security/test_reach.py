"""What a request can reach: configured engines alone, and no route by another name than the one it is allowed by."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.security import trap
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_answers import Script
from tests.fakes.scripted_engine import ScriptedEngine
from tests.security.wire import exchange
from tracker.types import Scope

pytestmark = pytest.mark.slow
CHAT: dict[str, Any] = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def gateway(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(engine, tmp_path, {"HONE_STREAM_IDLE_S": "0.2"}) as running:
        yield running


async def raw(gateway: RunningGateway, head: str, key: str = "", body: bytes = b"") -> tuple[int, bytes]:
    """One request as it stands, Host included where it is to have one."""
    port = int(gateway.url.rpartition(":")[2])
    named = f"Authorization: Bearer {key}\r\n" if key else ""
    sent = head.encode("latin-1") + f"\r\n{named}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    answer = await exchange(port, sent + body)
    return int(answer.split(maxsplit=2)[1]), answer.partition(b"\r\n\r\n")[2]


# only what is configured is dialled


def nested(url: str) -> list[dict[str, Any]]:
    """Bodies that say where to go, each in its own place."""
    steering = {"api_base": url, "base_url": url, "proxies": {"http": url}}
    deep: Any = steering
    for _ in range(12):
        deep = {"x": [deep]}
    return [
        *({**CHAT, name: value} for name, value in steering.items()),
        {**CHAT, "extra": deep},
        {**CHAT, "stream": True, "stream_options": {"include_usage": True, **steering}},
        {**CHAT, "response_format": {"type": "text", **steering}},
        {**CHAT, "tool_choice": {"type": "function", "function": {"name": "f", **steering}}},
        {**CHAT, "metadata": {"url": url, **steering}},
        {**CHAT, "user": url, "service_tier": url, "store": True},
        {**CHAT, "model": url},
        {**CHAT, "model": f"solver/../../{url}"},
        {**CHAT, "messages": [{"role": "user", "content": f"{url} {{{{7*7}}}}", **steering}]},
    ]


async def test_nothing_in_a_request_or_the_environment_makes_the_gateway_dial(
    gateway: RunningGateway, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (await gateway.open())["api_key"]
    async with trap() as elsewhere:
        host = elsewhere.url.removeprefix("http://").partition("/")[0]
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, elsewhere.url)
        for body in nested(elsewhere.url):
            status, _ = await raw(gateway, f"POST {PATH} HTTP/1.1\r\nHost: x", key, json.dumps(body).encode())
            assert status in (200, 400, 404), body
        heads = [
            f"POST http://{host}{PATH} HTTP/1.1\r\nHost: {host}",
            f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Host: {host}\r\nForwarded: host={host}",
            f"POST {PATH}?api_base={elsewhere.url} HTTP/1.1\r\nHost: x\r\nX-Api-Base: {elsewhere.url}",
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Original-Url: /v1/runs\r\nX-Rewrite-Url: /v1/runs",
            f"CONNECT {host} HTTP/1.1\r\nHost: {host}",
        ]
        for head in heads:
            status, answer = await raw(gateway, head, key, json.dumps(CHAT).encode())
            assert (status == 200 and b'"choices"' in answer) or status in (400, 404, 405), (head, status)
        assert elsewhere.visitors == []
    for received in engine.calls:
        assert not {"api_base", "base_url", "proxies", "x"} & set(received.body)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_redirect_by_an_engine_is_a_failure_and_not_followed(
    gateway: RunningGateway, engine: ScriptedEngine, streams: bool
) -> None:
    key = (await gateway.open())["api_key"]
    async with trap() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            engine.script(Script(status=status, headers={"Location": elsewhere.url}))
            answered = await gateway.admin.post(
                PATH, json={**CHAT, "stream": streams}, headers={"Authorization": f"Bearer {key}"}
            )
            assert (answered.status_code, "location" in answered.headers) == (502, False)
            assert elsewhere.url not in answered.text
        assert elsewhere.visitors == []


async def test_no_url_is_built_from_a_header(gateway: RunningGateway) -> None:
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    opened = await gateway.admin.post("/v1/episodes", json={"task": "t"}, headers=headers)
    assert opened.status_code == 201
    assert "evil.example" not in opened.text
    assert opened.json()["base_url"].startswith(gateway.url)
    assert "evil.example" not in (await gateway.admin.get("/openapi.json", headers=headers)).text


async def test_an_engine_that_falls_silent_in_its_stream_fails_the_call(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    episode = await gateway.open()
    engine.script(Script(hang_after=1))
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    answered = await gateway.admin.post(PATH, json={**CHAT, "stream": True}, headers=headers)
    assert answered.text.count("data: ") == 2
    assert "stopped answering" in answered.text
    shown = await gateway.until(f"/v1/episodes/{episode['episode_id']}", num_calls=1)
    assert shown["num_calls"] == 1


# no route under another name


ALIASES = (
    "{}",
    "/{}",
    "{}/",
    "//{}//",
    "/.{}",
    "/v1/..{}",
    "/v1/%2e%2e{}",
    "/v1/%2E%2e/%2e%2E{}",
    "/v1{}",
    "/v1/v1{}",
    "/e/x{}",
    "/t/x{}",
    "/t/x/e/x{}",
    "/v1/models/..{}",
    "/v1/models/%2e%2e%2f..{}",
    "/v1/chat/completions/../..{}",
    "/health/live/..{}",
    "/docs{}",
    "{};/v1/models",
    "{}%00",
    "{}%20",
    "{}%0d%0aX-Y:z",
    "{}?x=/v1/models",
    "{}#/v1/models",
    "{}/.",
    "http://x{}",
    "http://x:1@y{}",
    "\\{}",
    "{}\\..\\x",
)
ADMIN = ("GET /v1/runs", "POST /v1/policies/solver/rollback")


async def test_no_spelling_of_a_path_reaches_what_its_key_may_not(gateway: RunningGateway) -> None:
    async with await gateway.client(Scope.AGENT) as agent:
        key = agent.headers["authorization"].removeprefix("Bearer ")
    for route in ADMIN:
        method, path = route.split()
        spelt = path.replace("/v1", "/%76%31"), path.replace("/v1/", "/v1/%2e/"), path.upper(), f"{path[:-1]}\xff"
        for spelling in [*(alias.format(path) for alias in ALIASES), *spelt]:
            for given in ("", key):
                status, answer = await raw(gateway, f"{method} {spelling} HTTP/1.1\r\nHost: x", given, b"{}")
                told = (method, spelling, bool(given), status, answer[:200])
                assert status in (400, 401, 403, 404, 405), told
                assert b'"message"' in answer, told


@pytest.mark.parametrize("length", [5_000, 60_000])
async def test_a_path_of_any_length_is_answered(gateway: RunningGateway, length: int) -> None:
    for piece in ("a", "a/", "/", "%41", "%ff", "v1/", "{{7*7}}/"):
        path = "/v1/" + piece * (length // len(piece))
        status, answer = await raw(gateway, f"GET {path} HTTP/1.1\r\nHost: x")
        assert status in (400, 401, 404, 431), (piece, status)
        assert b"49" not in answer
        assert len(answer) < 16_000


# what stands in a request is never evaluated


async def test_templates_and_sql_are_words(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    words = ["{{7*7}}", "${7*7}", "#{7*7}", "{% for x in y %}", "%s%n", "'; DROP TABLE keys; --", "\x1b[31mred\r\nX: y"]
    for word in words:
        opened = await gateway.admin.post("/v1/episodes", json={"task": word})
        assert opened.status_code == 201, opened.text
        shown = (await gateway.admin.get(f"/v1/episodes/{opened.json()['episode_id']}")).json()
        assert shown["task"] == word
        named = {"X-Hone-Task": word.replace("\r\n", " ").replace("\x1b", "")}
        headers = {"Authorization": f"Bearer {opened.json()['api_key']}"}
        body = {**CHAT, "messages": [{"role": "user", "content": word}]}
        assert (await gateway.admin.post(PATH, json=body, headers=headers | named)).status_code in (200, 400)
        assert engine.calls[-1].body["messages"][0]["content"] == word
        listed = await gateway.admin.get("/v1/episodes", params={"task": word})
        assert (listed.status_code, len(listed.json()["data"])) == (200, 1)
    template = {**CHAT, "chat_template": "{{7*7}}", "chat_template_kwargs": {"chat_template": "{{7*7}}"}}
    assert (await gateway.admin.post(PATH, json=template)).status_code == 400
    for key in ("' OR '1'='1", "'; DROP TABLE keys; --", "hone-sk-' UNION SELECT * FROM keys --", "%", "*", "{{7*7}}"):
        status, _ = await raw(gateway, "GET /v1/runs HTTP/1.1\r\nHost: x", key)
        assert status == 401, key
    assert (await gateway.admin.get("/v1/runs")).status_code == 200


async def test_a_key_is_all_of_its_characters(gateway: RunningGateway) -> None:
    """Also right after it was looked up: nothing is remembered by a part of it."""
    async with await gateway.client(Scope.READ) as reader:
        key = reader.headers["authorization"].removeprefix("Bearer ")
        assert (await reader.get("/v1/runs")).status_code == 200
        changed = key[:-1] + ("A" if key[-1] != "A" else "B")
        for other in (key[:-1], key + "A", key.upper(), changed, changed[:20] + key[20:-1], key[1:], f"{key}\t{key}"):
            answered = await asyncio.gather(reader.get("/v1/runs"), raw(gateway, "GET /v1/runs HTTP/1.1", other))
            assert (answered[0].status_code, answered[1][0]) == (200, 401), other
