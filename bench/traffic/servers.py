"""The servers that are compared: how each is started before an engine, found ready, and called; and what it costs.

A server runs on one core, the engine, Redis and the agents on the other, so that what it uses is its own. Its cost is
the processor time of its processes, which noise on the machine changes least.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from gateway.auth import mint
from gateway.demo.show import free_port
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.redis_server import EmbeddedRedis
from tracker.sql import open_engine, upgrade
from tracker.types import Key, Scope

CORES: Final = sorted(os.sched_getaffinity(0))
SERVER_CORE: Final = {CORES[0]}
OTHER_CORES: Final = set(CORES[1:]) or SERVER_CORE
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20
START_S: Final = 180
ROOT: Final = Path(__file__).parents[2]
HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    name: str
    url: str
    """Where its `/v1` stands."""
    keys: tuple[str, ...]
    """For its agents."""
    pid: int | None
    """None for one that was started elsewhere: its cost is not known."""

    def cpu_s(self) -> float:
        """Processor time of its processes so far."""
        return sum(map(_cpu_s, family(self.pid))) if self.pid else 0.0

    def memory_mb(self) -> float:
        """Resident memory of its processes."""
        return sum(map(_memory_mb, family(self.pid))) if self.pid else 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is to be started."""

    folder: Path
    port: int
    engine: str
    num_agents: int


@contextmanager
def engine(folder: Path, *, delay_s: float = 0.0, pace_s: float = 0.0) -> Iterator[str]:
    """The engine that all servers stand before; its root URL."""
    port = free_port()
    command = [sys.executable, "-m", "bench.traffic.engine", "--port", str(port)]
    command += ["--delay", str(delay_s), "--pace", str(pace_s)]
    with _process(command, folder / "engine.log", OTHER_CORES) as process:
        _until_answers(f"http://{HOST}:{port}/v1/models", process)
        yield f"http://{HOST}:{port}"


@contextmanager
def bare(place: Place) -> Iterator[Server]:
    """The pass-through that everything is measured by."""
    command = [sys.executable, "-m", "bench.traffic.bare", "--port", str(place.port), "--engine", place.engine]
    with _process(command, place.folder / "bare.log", SERVER_CORE) as process:
        url = f"http://{HOST}:{place.port}"
        _until_answers(url, process)
        yield Server("bare", url, ("no-key",), process.pid)


@contextmanager
def hone(place: Place, *, workers: int = 1, records: bool = True) -> Iterator[Server]:
    """`hone gateway` with a redis-server of its own beside the engine; an episode and session key for each agent."""
    stores = place.folder / "hone"
    redis = EmbeddedRedis(stores)
    with _on(OTHER_CORES):
        asyncio.run(redis.start())
    try:
        settings = {
            "HONE_PORT": str(place.port),
            "HONE_ENGINES": place.engine,
            "HONE_POLICIES": "solver=base",
            "HONE_DATA_DIR": str(stores),
            "HONE_REDIS_URL": redis.url,
            "HONE_BEGIN_TIMEOUT_S": "10",
            "HONE_ACCESS_LOG": "false",
            "HONE_WORKERS": str(workers),
        }
        what = ["-m", "gateway.cli", "gateway"] if records else ["-m", "bench.traffic.unrecorded"]
        with _process([sys.executable, *what], place.folder / "hone.log", SERVER_CORE, settings) as process:
            url = f"http://{HOST}:{place.port}"
            _until_answers(f"{url}/health/ready", process)
            key = asyncio.run(_new_key(f"sqlite:///{stores / 'hone.db'}"))
            yield Server("hone", url, tuple(_open_episodes(url, key, place.num_agents)), process.pid)
    finally:
        asyncio.run(redis.stop())


@contextmanager
def litellm(place: Place, python: Path) -> Iterator[Server]:
    """LiteLLM's proxy, with one worker and nothing that calls home. It does not start without a key of its own."""
    key = f"sk-{secrets.token_hex(32)}"
    config = place.folder / "litellm.json"
    params = {"model": "openai/base", "api_base": f"{place.engine}/v1", "api_key": "none"}
    settings = {"telemetry": False, "drop_params": False, "num_retries": 0}
    models = [{"model_name": "solver", "litellm_params": params}]
    config.write_text(json.dumps({"model_list": models, "litellm_settings": settings}))
    command = [str(python.parent / "litellm"), "--config", str(config), "--port", str(place.port), "--host", HOST]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": key, "NO_PROXY": "*"}
    with _process([*command, "--num_workers", "1"], place.folder / "litellm.log", SERVER_CORE, env) as process:
        url = f"http://{HOST}:{place.port}"
        _until_answers(f"{url}/health/liveliness", process)
        yield Server("litellm", url, (key,), process.pid)


@contextmanager
def agl(place: Place, python: Path) -> Iterator[Server]:
    """`agl-server` of agentlightning 1.x, in its training mode, which asks for ids and log-probabilities."""
    command = [str(python.parent / "agl-server"), f"host={HOST}", f"port={place.port}", "default_proxy.model_name=base"]
    command += [f"hydra.run.dir={place.folder / 'agl'}"]
    with _process(command, place.folder / "agl.log", SERVER_CORE) as process:
        root = f"http://{HOST}:{place.port}"
        _until_answers(f"{root}/healthz", process)
        httpx.post(f"{root}/api/models", json=[{"model": "base", "endpoint": f"{place.engine}/v1"}]).raise_for_status()
        httpx.post(f"{root}/api/rollouts", json=[{"input": "bench", "rollout_id": "bench"}]).raise_for_status()
        yield Server("agl", f"{root}/proxy/rollout/bench/attempt/bench/mode/train/openai", ("no-key",), process.pid)


@contextmanager
def agents_core() -> Iterator[None]:
    """What is started inside runs where the engine does."""
    with _on(OTHER_CORES):
        yield


def family(pid: int) -> list[int]:
    """A process and all that came of it."""
    parents = {child: parent for child, parent in map(_parent, _pids())}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _process(
    command: Sequence[str], log: Path, cores: set[int], env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    where = {**clean, "PYTHONPATH": str(ROOT), **(env or {})}
    with log.open("wb") as output, _on(cores):
        process = subprocess.Popen(list(command), cwd=log.parent, env=where, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # it does not listen yet
        time.sleep(0.1)
    raise RuntimeError(f"{url} was not ready within {START_S} s")


async def _new_key(database_url: str) -> str:
    await upgrade(database_url)
    ledger = SqlLedger(open_engine(database_url), SystemClock())
    key, digest = mint()
    await ledger.add_key(Key(key_id="bench", digest=digest, scopes=(Scope.AGENT,)))
    await ledger.close()
    return key


def _open_episodes(url: str, key: str, count: int) -> Iterator[str]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=60) as client:
        for number in range(count):
            answer = client.post("/v1/episodes", json={"task": f"bench {number}"})
            yield answer.raise_for_status().json()["api_key"]


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str]:
    """The fields behind the name of a process, of which there are none once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> tuple[int, int]:
    stat = _stat(pid)
    return pid, int(stat[1]) if stat else 0


def _cpu_s(pid: int) -> float:
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / TICKS if stat else 0.0


def _memory_mb(pid: int) -> float:
    stat = _stat(pid)
    return int(stat[21]) * PAGE_MB if stat else 0.0
