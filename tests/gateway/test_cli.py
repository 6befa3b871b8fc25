"""The command line as people run it: in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest
import redis

from tests.fakes.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[2]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "HONE_DATA_DIR": str(tmp_path / "data"),
        "HONE_POLICIES": "solver=base",
        "HONE_BEGIN_TIMEOUT_S": "10",
        **more,
    }


async def hone(env: Mapping[str, str], *arguments: str, **settings: str) -> tuple[int, str, str]:
    """Run a command to its end; its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", *arguments),
        env={**env, **settings},
        cwd=Path(env["HONE_DATA_DIR"]).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def listens(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as running:
        yield running


async def until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(180), httpx.AsyncClient(base_url=url, timeout=60) as client:
        while process.returncode is None:
            try:
                if (await client.get("/health/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)
    raise AssertionError("the gateway ended before it was ready")


@pytest.mark.slow
async def test_keys_are_refused_in_a_folder_that_is_no_data_folder(tmp_path: Path) -> None:
    status, out, err = await hone(environment(tmp_path), "keys", "create", "--scope", "agent", "--json")
    assert (status, out) == (2, "")
    assert "is no data folder" in err
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
async def test_a_measurement_is_run_by_its_name_from_anywhere(tmp_path: Path) -> None:
    status, _, err = await hone(environment(tmp_path), "bench", "nothing")
    assert (status, "there is: " in err, "demo_seeds" in err) == (2, True, True)
    status, out, _ = await hone(environment(tmp_path), "bench", "demo-seeds", "--", "--help")
    assert (status, "--seeds" in out) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_gateway_starts_makes_keys_while_it_runs_and_stops_clean(
    engine: ScriptedEngine, tmp_path: Path, workers: str
) -> None:
    port = free_port()
    env = environment(tmp_path, HONE_ENGINES=engine.url, HONE_PORT=port, HONE_WORKERS=workers)
    log = (tmp_path / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", "gateway"), env=env, cwd=tmp_path, stdout=log, stderr=log
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await until_ready(url, process)
        scopes = ("--scope", "agent", "--scope", "reward")
        status, out, _ = await hone(env, "keys", "create", *scopes, "--tenant", "acme", "--json")
        assert status == 0
        made = json.loads(out)
        assert (made["tenant"], made["scopes"], "digest" in made) == ("acme", ["agent", "reward"], False)
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {made['key']}"}, timeout=60
        ) as client:
            opened = [(await client.post("/v1/episodes", json={"task": "t"})).json() for _ in range(4)]
            for episode in opened:
                answer = await client.post(
                    f"{episode['base_url']}/chat/completions",
                    headers={"Authorization": f"Bearer {episode['api_key']}"},
                    json={"model": "solver", "messages": [{"role": "user", "content": "hi"}]},
                )
                assert answer.status_code == 200
            assert (await client.get("/v1/episodes")).status_code == 403
            assert (await hone(env, "keys", "revoke", made["key_id"], "--tenant", "acme"))[0] == 0
            async with asyncio.timeout(60):
                while (await client.get("/v1/episodes")).status_code != 401:
                    await asyncio.sleep(0.1)
        status, out, _ = await hone(env, "episodes", "--tenant", "acme")
        assert opened[0]["episode_id"] in out
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 60)
        log.close()
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "Bearer" not in said
    assert made["key"] not in said
    socket_path = tmp_path / "data" / "redis" / "redis.sock"
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError):
        probe.connect(str(socket_path))


@pytest.mark.slow
async def test_workers_end_with_their_parent_and_a_restart_keeps_everything(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = environment(tmp_path, HONE_ENGINES=engine.url, HONE_PORT=port, HONE_WORKERS="2")
    with (tmp_path / "log").open("wb") as log:
        for number in range(2):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.cli", "gateway"), env=env, cwd=tmp_path, stdout=log, stderr=log
            )
            try:
                await until_ready(url, process)
                _, out, _ = await hone(env, "keys", "create", "--scope", "agent", "--scope", "read", "--json")
                headers = {"Authorization": f"Bearer {json.loads(out)['key']}"}
                async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                    assert len((await client.get("/v1/episodes")).json()["data"]) == number
                    assert (await client.post("/v1/episodes", json={"task": "t"})).status_code == 201
            finally:
                process.send_signal(signal.SIGKILL if number == 0 else signal.SIGTERM)
                await asyncio.wait_for(process.wait(), 60)
            async with asyncio.timeout(60):
                while listens(port):
                    await asyncio.sleep(0.05)
    # Whoever started it ends it, and that one was killed.
    redis.Redis(unix_socket_path=str(tmp_path / "data" / "redis" / "redis.sock")).shutdown()


@pytest.mark.slow
async def test_a_gateway_that_could_not_work_says_why_and_ends(engine: ScriptedEngine, tmp_path: Path) -> None:
    status, _, err = await hone(environment(tmp_path, HONE_POLICIES=""), "gateway")
    assert (status, err.count("\n")) == (2, 1)
    assert "HONE_POLICIES" in err
    engine.processed_logprobs = False
    status, _, err = await hone(environment(tmp_path, HONE_ENGINES=engine.url, HONE_PORT=free_port()), "gateway")
    assert status != 0
    assert "processed_logprobs" in err
    assert "Traceback" not in err
    for setting, value in {"HONE_REDIS_URL": "redis://127.0.0.1:1", "HONE_DATA_DIR": "/dev/null/data"}.items():
        env = environment(tmp_path, HONE_ENGINES=engine.url, HONE_PORT=free_port())
        status, _, err = await hone(env, "gateway", **{setting: value})
        assert status != 0
        assert "the gateway does not start: " in err
        assert "Traceback" not in err


@pytest.mark.slow
async def test_the_doctor_names_what_is_wrong(engine: ScriptedEngine, tmp_path: Path) -> None:
    env = environment(tmp_path, HONE_ENGINES=f"{engine.url},http://127.0.0.1:9")
    status, out, _ = await hone(env, "doctor")
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "ok", "ok", "ok", "FAIL"]
