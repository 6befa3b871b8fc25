"""Wrong input to every endpoint of a real gateway: a clear error in OpenAI's form, nothing stored, next call fine."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.local.children import Child, Program
from gateway.local.keys import ensure_keys
from tests.e2e.stack import Json, free_port
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.sql import open_engine, upgrade
from tracker.types import Scope

pytestmark = pytest.mark.slow
UNKNOWN = "ep-" + "0" * 32
CHAT: Json = {"model": "solver", "messages": [{"role": "user", "content": "hello"}]}
DIGEST = "0" * 64
PARITY: Json = {"dtype": "float32", "noise": 0.01}
BAD_BODIES: tuple[bytes, ...] = (b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"{" * 5000, b'{"a": NaN}')
"""Nothing of this is an object with the fields that any endpoint needs."""


@dataclass(frozen=True)
class Wrong:
    """One wrong request and the statuses that are right answers to it."""

    method: str
    path: str
    body: Any = None
    statuses: tuple[int, ...] = (400, 422)
    scope: Scope | None = Scope.ADMIN
    """Whose key it carries; `None`: no key."""


BODY_ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/episodes",
    "/v1/episodes/{episode}/finish",
    "/v1/keys",
    "/v1/policies",
    "/v1/policies/solver/canary",
    "/v1/policies/solver/parity",
    "/v1/policies/solver/promote",
    "/v1/policies/solver/rollback",
    "/v1/policies/solver/shadow",
    "/v1/policies/solver/versions",
    "/v1/reward",
    "/v1/runs",
)
WRONG_FIELDS: dict[str, tuple[Json, ...]] = {
    "/v1/chat/completions": (
        {**CHAT, "messages": "hello"},
        {**CHAT, "messages": []},
        {**CHAT, "messages": [7]},
        {**CHAT, "model": 7},
        {**CHAT, "n": 0},
        {**CHAT, "n": "two"},
        {**CHAT, "n": 10_000},
        {**CHAT, "max_tokens": -1},
        {**CHAT, "max_tokens": "many"},
        {**CHAT, "temperature": "hot"},
        {**CHAT, "stream": "yes"},
        {**CHAT, "api_base": "http://127.0.0.1:9/"},
        {**CHAT, "chat_template": "{{ x }}"},
        {"messages": CHAT["messages"], "prompt_embeds": "AAAA"},
    ),
    "/v1/episodes": (
        {},
        {"task": 7},
        {"task": "x" * 513},
        {"task": "t", "tsak": 1},
        {"task": "t", "version": -1},
        {"task": "t", "version": "new"},
        {"task": "t", "ttl_s": 0},
        {"task": "t", "idempotency_key": "with space"},
        {"task": "t", "run": "with/slash"},
    ),
    "/v1/episodes/{episode}/finish": ({}, {"status": "great"}, {"status": 1}, {"status": "ok", "more": 1}),
    "/v1/keys": (
        {},
        {"scopes": []},
        {"scopes": ["root"]},
        {"scopes": "admin"},
        {"scopes": ["read"], "tenant": "another"},
        {"scopes": ["read"], "token_budget": 0},
        {"scopes": ["read"], "max_concurrent": "many"},
        {"scopes": ["read"], "expires_in_s": -1},
        {"scopes": ["read"], "key": "hone-sk-mine"},
    ),
    "/v1/policies": ({}, {"name": 7}, {"name": "solver", "lora": {}}),
    "/v1/policies/solver/parity": (
        {},
        {"dtype": 7, "noise": 0},
        {**PARITY, "noise": -1},
        {**PARITY, "noise": "little"},
        {**PARITY, "texts": [{"name": "plain", "token_ids": [1]}]},
        {**PARITY, "chats": [{"name": "chat", "token_ids": [1], "messages": []}]},
        {**PARITY, "points": [{"prompt_ids": [], "token_ids": [1], "logprobs": [-1]}]},
        {**PARITY, "points": [{"prompt_ids": [1], "token_ids": [1, 2], "logprobs": [-1]}]},
        {**PARITY, "point": []},
    ),
    "/v1/policies/solver/canary": ({}, {"version": 1}, {"version": 1, "share": 0}, {"version": 1, "share": "half"}),
    "/v1/policies/solver/promote": ({}, {"version": -1}, {"version": 1, "share": 5}),
    "/v1/policies/solver/rollback": ({}, {"version": -1}, {"version": "1"}),
    "/v1/policies/solver/shadow": ({}, {"version": "1"}, {"version": 1, "share": 101}),
    "/v1/policies/solver/versions": (
        {},
        {"folder": "f", "digest": "short"},
        {"folder": "../escape", "digest": DIGEST},
        {"folder": "f", "digest": DIGEST, "epoch": -1},
        {"folder": "f", "digest": DIGEST, "probe": {"points": 1}},
        {"folder": "f", "digest": DIGEST, "probe": {"points": [{"prompt_ids": [], "token_id": 1}]}},
    ),
    "/v1/reward": (
        {},
        {"reward": 1},
        {"episode_id": "{episode}"},
        {"episode_id": "{episode}", "reward": "1"},
        {"episode_id": "{episode}", "reward": [1]},
        {"episode_id": "{episode}", "reward": 1, "final": "yes"},
        {"episode_id": "{episode}", "reward": 1, "rewrad": 1},
    ),
    "/v1/runs": (
        {},
        {"run": "a b"},
        {"run": "r", "mode": "play"},
        {"run": "r", "group_size": 0},
        {"run": "r", "group_size": 1.5},
        {"run": "r", "groupsize": 8},
        {"run": "r", "credit": "luck"},
        {"run": "r", "staleness": -1},
        {"run": "default", "mode": "eval"},
    ),
}
NOT_FOUND = (
    Wrong("GET", f"/v1/episodes/{UNKNOWN}", statuses=(404,)),
    Wrong("GET", f"/v1/episodes/{UNKNOWN}/timeline", statuses=(404,)),
    Wrong("GET", f"/v1/episodes/{UNKNOWN}/samples", statuses=(404,)),
    Wrong("GET", f"/v1/episodes/{UNKNOWN}/lineage", statuses=(404,)),
    Wrong("DELETE", f"/v1/episodes/{UNKNOWN}", statuses=(404,)),
    Wrong("POST", "/v1/keys/nobody/rotate", {}, (404,)),
    Wrong("PATCH", "/v1/keys/nobody", {"token_budget": 5}, (404,)),
    Wrong("DELETE", "/v1/keys/nobody", statuses=(404,)),
    Wrong("DELETE", "/v1/keys/nobody/data", statuses=(404,)),
    Wrong("GET", "/v1/policies/nobody/versions/nobody/lineage", statuses=(400, 404)),
    Wrong("GET", "/v1/policies/solver/versions/99/lineage", statuses=(404,)),
    Wrong("POST", f"/v1/episodes/{UNKNOWN}/finish", {"status": "ok"}, (404,)),
    Wrong("POST", f"/e/{UNKNOWN}/v1/chat/completions", CHAT, (404,)),
    Wrong("POST", "/v1/reward", {"episode_id": UNKNOWN, "reward": 1}, (404,)),
    Wrong("POST", "/v1/reward", {"call_id": f"chatcmpl-{'0' * 32}-{'0' * 32}", "reward": 1}, (404,)),
    Wrong("POST", "/v1/reward", {"episode_id": "{episode}", "call_id": "chatcmpl-1-2", "reward": 1}, (404,)),
    Wrong("POST", "/v1/episodes", {"task": "t", "run": "nobody"}, (404,)),
    Wrong("POST", "/v1/episodes", {"task": "t", "policy": "nobody"}, (404,)),
    Wrong("POST", "/v1/policies", {"name": "nobody"}, (404,)),
    Wrong("POST", "/v1/policies/nobody/rollback", {"version": 0}, (404,)),
    Wrong("POST", "/v1/policies/nobody/versions", {"folder": "f", "digest": DIGEST}, (404,)),
    Wrong("POST", "/v1/policies/solver/rollback", {"version": 99}, (404, 409)),
    Wrong("POST", "/v1/policies/solver/promote", {"version": 99}, (409,)),
    Wrong("POST", "/v1/policies/solver/canary", {"version": 99, "share": 5}, (409,)),
    Wrong("POST", "/v1/policies/solver/shadow", {"version": 99}, (404,)),
    Wrong("POST", "/v1/policies/solver/pause", None, (409,)),
    Wrong("GET", "/v1/policies/nobody/release", None, (404,)),
    Wrong("GET", "/v1/policies/nobody/releases", None, (404,)),
    Wrong("POST", "/v1/policies/nobody/canary", {"version": 1, "share": 5}, (404,)),
    Wrong("POST", "/v1/policies/nobody/promote", {"version": 1}, (404,)),
    Wrong("POST", "/v1/policies/nobody/pause", None, (404,)),
    Wrong("POST", "/v1/policies/nobody/resume", None, (404,)),
    Wrong("POST", "/v1/policies/nobody/shadow", {"version": 1}, (404,)),
    Wrong("GET", "/v1/alarms", None, (403,), Scope.AGENT),
    Wrong("POST", "/v1/policies/solver/versions", {"folder": "f", "digest": DIGEST}, (400, 409)),
    Wrong("POST", "/v1/policies/nobody/parity", PARITY, (404,)),
    Wrong("GET", "/v1/batches?policy=nobody", statuses=(404,)),
    Wrong("GET", "/v1/runs/nobody", statuses=(404,)),
    Wrong("GET", "/v1/nothing", statuses=(404,)),
    Wrong("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/etc"}, (404,)),
)
LISTS = ("/v1/audit", "/v1/batches", "/v1/episodes", "/v1/groups", "/v1/keys")
WRONG_QUERIES = tuple(
    Wrong("GET", f"{path}?{query}")
    for path in LISTS
    for query in ("limit=0", "limit=201", "limit=many", "limit=-1", "cursor=%00", "cursor=none-of-ours")
    if not (path == "/v1/batches" and query.startswith("cursor"))
)
WITHOUT_KEY = tuple(
    Wrong(method, path, body, (401,), scope=None)
    for method, path, body in (
        ("POST", "/v1/chat/completions", CHAT),
        ("GET", "/v1/models", None),
        ("POST", "/v1/episodes", {"task": "t"}),
        ("POST", "/v1/reward", {"episode_id": "{episode}", "reward": 1}),
        ("GET", "/v1/runs", None),
        ("GET", "/v1/runs/default", None),
        ("POST", "/v1/policies/solver/parity", PARITY),
        ("GET", "/v1/engines", None),
        ("GET", "/v1/policies", None),
        ("GET", "/v1/batches", None),
        ("GET", "/v1/groups", None),
        ("GET", "/v1/episodes", None),
        ("GET", "/v1/audit", None),
        ("GET", "/v1/keys", None),
        ("POST", "/v1/keys", {"scopes": ["admin"]}),
        ("DELETE", "/v1/episodes/{episode}", None),
    )
)
WITHOUT_SCOPE = (
    Wrong("POST", "/v1/reward", {"episode_id": "{episode}", "reward": 1}, (403,), Scope.AGENT),
    Wrong("POST", "/v1/episodes", {"task": "t"}, (403,), Scope.READ),
    Wrong("POST", "/v1/runs", {"run": "r"}, (403,), Scope.AGENT),
    Wrong("POST", "/v1/keys", {"scopes": ["admin"]}, (403,), Scope.AGENT),
    Wrong("POST", "/v1/keys/nobody/rotate", {}, (403,), Scope.READ),
    Wrong("DELETE", "/v1/keys/nobody/data", None, (403,), Scope.READ),
    Wrong("GET", "/v1/audit", None, (403,), Scope.READ),
    Wrong("GET", "/v1/episodes", None, (403,), Scope.REWARD),
    Wrong("DELETE", "/v1/episodes/{episode}", None, (403,), Scope.AGENT),
    Wrong("POST", "/v1/policies/solver/versions", {"folder": "f", "digest": DIGEST}, (403,), Scope.AGENT),
    Wrong("POST", "/v1/policies/solver/rollback", {"version": 0}, (403,), Scope.READ),
    Wrong("POST", "/v1/policies/solver/parity", PARITY, (403,), Scope.AGENT),
    Wrong("GET", "/v1/runs/default", None, (403,), Scope.AGENT),
)
WRONG_METHODS = tuple(
    Wrong(method, path, {} if method == "POST" else None, (404, 405))
    for method, path in (
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/models"),
        ("PUT", "/v1/episodes"),
        ("GET", "/v1/reward"),
        ("DELETE", "/v1/runs"),
        ("POST", "/v1/groups"),
        ("POST", "/v1/engines"),
        ("POST", "/v1/batches"),
        ("POST", "/health/live"),
        ("POST", "/health/ready"),
    )
)


def every_wrong_request() -> Iterator[Wrong]:
    for path in BODY_ENDPOINTS:
        yield from (Wrong("POST", path, body) for body in BAD_BODIES)
        yield from (Wrong("POST", path, body) for body in WRONG_FIELDS[path])
    for group in (NOT_FOUND, WRONG_QUERIES, WITHOUT_KEY, WITHOUT_SCOPE, WRONG_METHODS):
        yield from group


@dataclass(frozen=True)
class Running:
    http: httpx.AsyncClient
    keys: dict[Scope, str]
    engine: ScriptedEngine

    async def ask(self, method: str, path: str, body: Any = None, scope: Scope | None = Scope.ADMIN) -> httpx.Response:
        headers = {} if scope is None else {"Authorization": f"Bearer {self.keys[scope]}"}
        content = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        return await self.http.request(method, path, headers=headers, **content)

    async def stored(self, episode_id: str) -> Json:
        """Everything that a wrong request could have changed."""
        paths = ("/v1/episodes?limit=200", "/v1/groups", "/v1/runs", "/v1/policies", "/v1/batches")
        answers = {path: (await self.ask("GET", path)).json() for path in paths}
        return answers | {"episode": (await self.ask("GET", f"/v1/episodes/{episode_id}")).json()}


@contextlib.asynccontextmanager
async def running_gateway(folder: Path) -> AsyncIterator[Running]:
    """A gateway process with its embedded Redis and SQLite, before a scripted engine."""
    port = free_port()
    url = f"sqlite:///{folder / 'hone.db'}"
    await upgrade(url)
    ledger = SqlLedger(open_engine(url), SystemClock())
    keys = await ensure_keys(ledger, folder, SystemClock())
    await ledger.close()
    async with ScriptedEngine() as engine, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
        env |= {"HONE_DATA_DIR": str(folder), "HONE_PORT": str(port), "HONE_ENGINES": engine.url}
        env |= {
            "HONE_POLICIES": "solver=base",
            "HONE_BEGIN_TIMEOUT_S": "10",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        argv = (sys.executable, "-m", "gateway.cli", "gateway")
        program = Program(name="gateway", argv=argv, env=env, cwd=str(folder))

        async def is_ready(_: Child) -> bool:
            try:
                return (await http.get("/health/ready")).is_success
            except httpx.TransportError:
                return False

        child = Child(program, folder / "gateway.log", is_ready, print)
        try:
            await child.start()
            yield Running(http, keys, engine)
        finally:
            await child.stop()
            print((folder / "gateway.log").read_text()[-4000:])


def filled(value: Any, episode_id: str) -> Any:
    """The value with `{episode}` filled in."""
    match value:
        case str():
            return value.replace("{episode}", episode_id)
        case dict():
            return {name: filled(item, episode_id) for name, item in value.items()}
        case _:
            return value


def check_error(wrong: Wrong, response: httpx.Response) -> None:
    told = f"{wrong} -> {response.status_code} {response.text[:300]}"
    assert response.status_code in wrong.statuses, told
    assert response.headers["content-type"].startswith("application/json"), told
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}, told
    assert error["message"], told
    assert error["type"], told


async def test_wrong_input_is_refused_clearly_and_stores_nothing(tmp_path: Path):
    async with running_gateway(tmp_path) as running:
        episode = (await running.ask("POST", "/v1/episodes", {"task": "t"}, Scope.AGENT)).json()
        episode_id = episode["episode_id"]
        before = await running.stored(episode_id)
        failures: list[str] = []
        for wrong in every_wrong_request():
            body = wrong.body if isinstance(wrong.body, bytes) else filled(wrong.body, episode_id)
            response = await running.ask(wrong.method, filled(wrong.path, episode_id), body, wrong.scope)
            try:
                check_error(wrong, response)
                assert await running.stored(episode_id) == before, f"{wrong} changed what is stored"
            except AssertionError as error:
                failures.append(str(error).splitlines()[0])
                before = await running.stored(episode_id)
        assert not failures, "\n".join(failures)

        headers = {"Authorization": f"Bearer {episode['api_key']}"}
        answer = await running.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert answer.status_code == 200, answer.text
        assert len(running.engine.calls) == 1, "a refused request reached the engine"
        seen = (await running.ask("GET", f"/v1/episodes/{episode_id}")).json()
        assert (seen["num_calls"], seen["state"]) == (1, "open")


async def test_no_endpoint_is_left_out(tmp_path: Path):
    """What the gateway describes of itself is covered above."""
    async with running_gateway(tmp_path) as running:
        paths = (await running.ask("GET", "/openapi.json")).json()["paths"]
    covered = {
        (wrong.method.lower(), filled(wrong.path, "X").partition("?")[0].replace(UNKNOWN, "X").replace("nobody", "X"))
        for wrong in every_wrong_request()
    }
    open_to_all = {"/health/live", "/health/ready", "/metrics", "/openapi.json", "/docs"}
    for path, methods in paths.items():
        for method in set(methods) & {"get", "post", "put", "patch", "delete"}:
            filled_path = re.sub(r"\{\w+\}", "X", path)
            assert path in open_to_all or (method, filled_path) in covered, f"{method} {path} has no wrong input"
