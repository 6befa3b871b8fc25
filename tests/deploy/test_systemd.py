"""The units: systemd takes them, their commands run, and a gateway started by them is ready on a Redis of theirs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.settings import load
from tests.deploy.files import UNITS, unit, unit_env
from tests.deploy.settings import known_variables
from tests.fakes.gateway_process import ROOT, free_port, until_ready
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.redis_server import EmbeddedRedis
from tracker.redis_strength import WANTED
from trainer.config import load as load_trainer
from trainer.engine.config import parse_config

SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
HOME, HONE, REDIS = "/var/lib/hone", "/opt/hone/bin/hone", "/usr/bin/redis-server"
NEEDED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
}


def redis_binary() -> str:
    return EmbeddedRedis(Path("/nowhere")).command()[0] if shutil.which("redis-server") is None else REDIS


@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_runs_as_nobody_special_and_comes_back(name: str) -> None:
    found = unit(name)
    assert found.all("Service", "User") == ["hone"]
    assert found.all("Service", "Restart")[0] in ("always", "on-failure")
    for key, value in NEEDED.items():
        assert found.all("Service", key) == [value]
    assert found.all("Unit", "PartOf") == ["hone.target"]
    assert name in unit("hone.target").all("Unit", "Wants")[0].split()
    if name != "hone-redis.service":
        assert found.all("Service", "EnvironmentFile") == ["/etc/hone/hone.env"]


def test_gateway_and_trainer_take_their_settings(tmp_path: Path) -> None:
    env = unit_env()
    known = known_variables() | {"HONE_BASE_MODEL"}
    assert {name for name in env if name.startswith("HONE_")} <= known
    (tmp_path / "key").write_text("t\n")
    trained = load_trainer([], {**env, "HONE_TRAINER_KEY_FILE": "key"}, tmp_path)
    served = load({**env, "HONE_ENGINE_KEY_FILE": "key"}, tmp_path)
    assert (trained.key, served.engine_key) == ("t", "t")
    assert trained.gateway_url == served.base_url
    assert unit("hone-redis.service").command(env)[6] == served.stores.redis_url.removeprefix("unix://")  # pyright: ignore
    stop_s = int(unit("hone-gateway.service").all("Service", "TimeoutStopSec")[0])
    assert stop_s > served.shutdown_s + served.record_timeout_s


def test_the_engine_takes_its_flags_and_serves_what_the_policies_name() -> None:
    env = unit_env()
    command = unit("hone-engine.service").command(env)
    assert command[:2] == [HONE, "engine"]
    config = parse_config(command[2:], env)
    assert f"http://127.0.0.1:{config.port}" == env["HONE_ENGINES"]
    assert env["HONE_POLICIES"] == f"solver={config.model}"


def test_redis_is_as_durable_as_strict_mode_wants() -> None:
    words = unit("hone-redis.service").command({})
    for name, (value, _) in WANTED.items():
        assert words[words.index(f"--{name}") + 1] == value


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    hone = str(Path(sys.executable).with_name("hone"))
    copies: list[str] = []
    for path in [*UNITS.glob("*.service"), UNITS / "hone.target"]:
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace(HONE, hone).replace(REDIS, redis_binary()))
        copies.append(str(copy))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies], check=False, capture_output=True, text=True, timeout=120
    )
    ours = [line for line in told.stderr.splitlines() if "hone" in line]
    assert ours == []


@asynccontextmanager
async def started(
    command: list[str], env: dict[str, str], cwd: Path, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env={**clean, "PYTHONPATH": str(ROOT), **env}, cwd=cwd, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)


def words_of(name: str, env: dict[str, str], home: Path) -> list[str]:
    """A unit's command, in another folder and with this environment's programs."""
    command = [word.replace(HOME, str(home)) for word in unit(name).command(env)]
    programs = {HONE: [sys.executable, "-m", "gateway.cli"], REDIS: [redis_binary()]}
    return [*programs[command[0]], *command[1:]]


@pytest.mark.slow
async def test_what_the_units_start_is_ready_and_logs_lines_of_json(tmp_path: Path) -> None:
    home = tmp_path / "h"
    (home / "redis").mkdir(parents=True, mode=0o700)
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as client:
        env = {name: value.replace(HOME, str(home)) for name, value in unit_env().items()}
        port = free_port()
        env |= {"HONE_PORT": str(port), "HONE_ENGINES": engine.url, "HONE_POLICIES": "solver=base"}
        env |= {"HONE_WORKERS": "1", "HONE_BEGIN_TIMEOUT_S": "10"}
        redis_log, log = tmp_path / "redis.log", tmp_path / "gateway.log"
        async with (
            started(words_of("hone-redis.service", env, home), env, home, redis_log),
            started(words_of("hone-gateway.service", env, home), env, home, log) as gateway,
        ):
            await until_ready(client, f"http://127.0.0.1:{port}", gateway, log)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["worker"] for line in lines if line["logger"] == "hone.engines"} != {""}
    access = [line for line in lines if line["logger"] == "uvicorn.access"]
    assert {line["path"] for line in access} == {"/health/ready"}
