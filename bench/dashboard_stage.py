"""What the dashboard is looked at on: a real gateway with a history, before an engine that serves its versions.

The history is filled into the data folder first (`dashboard_data.py`); what a gateway of a team would have besides is
asked for over HTTP: keys with labels and limits, episodes that are still going. The engine is the
scripted one, in this process, which takes adapters in as vLLM does. A newer version is published there and put on
trial, and plays against the active one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from bench.dashboard_data import POLICY, Filled, fill
from bench.dashboard_story import SYSTEM, TASKS
from gateway.auth import mint
from gateway.demo.show import free_port
from gateway.encoding import load_encoding
from gateway.scripted.engine import create_scripted_engine
from tests.fakes.adapter_files import marked_weights
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.types import Key, Scope

Json = dict[str, Any]
ROOT: Final = Path(__file__).parents[1]
HOST: Final = "127.0.0.1"
BASE: Final = "qwen3-4b-instruct"
START_S: Final = 120.0
TOML: Final = """
[[policies]]
name = "{policy}"
model = "{base}"
[policies.release]
mode = "canary"
share = 50
max_episodes = 2000
min_reward = 0.4
max_kl = 0.5
"""
TRIED: Final = 80
"""Episodes that are played while a version is on trial, in groups of eight."""
GOOD: Final = (0.66, 0.73)
"""The mean reward of the active version, and of the one on trial."""
RELEASE: Final = f"/v1/policies/{POLICY}/release"
KEYS: Final[tuple[Json, ...]] = (
    {"scopes": ["agent", "reward"], "label": "nightly driver", "requests_per_minute": 1200},
    {"scopes": ["reward"], "label": "grader"},
    {"scopes": ["trainer"], "label": "trainer on gpu-2"},
    {"scopes": ["read"], "label": "team dashboard"},
    {"scopes": ["agent"], "label": "intern's laptop", "max_concurrent": 4, "token_budget_per_day": 200_000},
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway that serves, and what is there to look at."""

    url: str
    key: str
    """Of an administrator."""
    filled: Filled
    folder: Path


@contextmanager
def staged(folder: Path, num_episodes: int) -> Iterator[Stage]:
    """A gateway over a history of so many episodes; a folder that was filled before is taken as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    filled = asyncio.run(_filled(folder, num_episodes))
    with _engine() as engine, _gateway(folder, engine) as url:
        key = asyncio.run(_admin(folder))
        _enliven(url, key, folder, filled)
        yield Stage(url, key, filled, folder)


async def _filled(folder: Path, num_episodes: int) -> Filled:
    noted = folder / "filled.json"
    if noted.exists():
        return Filled(**json.loads(noted.read_text()))
    ledger = await SqlLedger.connect(f"sqlite:///{folder / 'hone.db'}", SystemClock())
    try:
        filled = await fill(ledger, num_episodes).all(lambda line: print(line, file=sys.stderr))
    finally:
        await ledger.close()
    noted.write_text(json.dumps({name: getattr(filled, name) for name in Filled.__struct_fields__}))
    return filled


async def _admin(folder: Path) -> str:
    key, digest = mint()
    ledger = await SqlLedger.connect(f"sqlite:///{folder / 'hone.db'}", SystemClock())
    try:
        made = Key(
            key_id=f"key-{digest[:16]}",
            digest=digest,
            scopes=tuple(Scope),
            label="operator",
            created_ms=SystemClock().now_ms(),
        )
        await ledger.add_key(made)
    finally:
        await ledger.close()
    return key


@contextmanager
def _engine() -> Iterator[str]:
    """The scripted engine in a thread, with adapters."""
    port = free_port()
    config = uvicorn.Config(adaptable(BASE), host=HOST, port=port, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, name="engine")
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://{HOST}:{port}"
    finally:
        server.should_exit = True
        thread.join()


def adaptable(base: str) -> Starlette:
    """The scripted engine for one base model, with vLLM's way to load and unload adapters."""
    adapters: dict[str, str] = {}

    async def models(request: Request) -> Response:
        del request
        cards: list[Json] = [{"id": base, "root": base, "max_model_len": 32_768}]
        cards += [{"id": name, "root": root, "parent": base} for name, root in adapters.items()]
        return JSONResponse({"object": "list", "data": cards})

    async def load(request: Request) -> Response:
        body = await request.json()
        adapters[body["lora_name"]] = body["lora_path"]
        return Response()

    async def unload(request: Request) -> Response:
        adapters.pop((await request.json())["lora_name"], None)
        return Response()

    async def rest(scope: Any, receive: Any, send: Any) -> None:
        await create_scripted_engine([base, *adapters], encoding)(scope, receive, send)

    encoding = load_encoding()
    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/load_lora_adapter", load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", unload, methods=["POST"]),
            Mount("/", rest),
        ]
    )


@contextmanager
def _gateway(folder: Path, engine: str) -> Iterator[str]:
    port = free_port()
    settings = {
        "HONE_PORT": str(port),
        "HONE_ENGINES": engine,
        "HONE_DATA_DIR": str(folder),
        "HONE_BEGIN_TIMEOUT_S": "10",
        "HONE_ACCESS_LOG": "false",
    }
    (folder / "hone.toml").write_text(TOML.format(policy=POLICY, base=BASE))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    command = [sys.executable, "-m", "gateway.cli", "gateway"]
    with (folder / "gateway.log").open("wb") as log:
        env = {**clean, "PYTHONPATH": str(ROOT), **settings}
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    url = f"http://{HOST}:{port}"
    try:
        until(lambda: _is_ready(url, process, folder / "gateway.log"))
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _is_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the gateway ended: {log.read_text()[-2000:]}")
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _enliven(url: str, key: str, folder: Path, filled: Filled) -> None:
    """What happens on a gateway of a team while somebody looks."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        if len(_asked(http, "GET", "/v1/keys")["data"]) < len(KEYS):
            for wanted in KEYS:
                _asked(http, "POST", "/v1/keys", wanted)
        if _asked(http, "GET", RELEASE)["canary"] is None:
            _put_on_trial(http, folder, filled.num_versions + 1)
        for family in TASKS:
            _play(http, f"{family}/{TASKS[family][0][0]}")


def _put_on_trial(http: httpx.Client, folder: Path, version: int) -> None:
    """Publish a version as a trainer does, and have it play until its episodes are archived."""
    weights = marked_weights(f"version {version}".encode())
    digest = hashlib.sha256(weights).hexdigest()
    adapter = folder / "adapters" / f"step-{version}"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1}))
    (adapter / "adapter_model.safetensors").write_bytes(weights)
    body = {"folder": adapter.name, "digest": digest, "metrics": {"kl": 0.09, "entropy": 0.8}}
    _asked(http, "POST", f"/v1/policies/{POLICY}/versions", body)
    until(lambda: _asked(http, "GET", RELEASE)["canary"] is not None)
    chosen = random.Random(version)
    for number in range(TRIED):
        family = list(TASKS)[number // 8 % len(TASKS)]
        task = TASKS[family][number // 24 % len(TASKS[family])]
        episode_id, served = _play(http, f"{family}/{task[0]}")
        reward = round(min(1.0, max(0.0, chosen.gauss(GOOD[served == str(version)], 0.15))), 2)
        _asked(http, "POST", "/v1/reward", {"episode_id": episode_id, "reward": reward, "source": "grader"})
    until(lambda: _num_scored(http) >= TRIED)


def _num_scored(http: httpx.Client) -> int:
    verdict = _asked(http, "GET", RELEASE)["verdict"]
    return 0 if verdict is None else verdict["num_stable"] + verdict["num_canary"]


def _play(http: httpx.Client, task: str) -> tuple[str, str]:
    """One call of a new episode; its id, and the version that answered."""
    episode = _asked(http, "POST", "/v1/episodes", {"task": task, "run": "support"})
    family, name = task.split("/")
    words = dict(TASKS[family])[name].format(order="HM-40871")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    answer = http.post("/v1/chat/completions", json={"model": POLICY, "messages": messages}, headers=headers)
    answer.raise_for_status()
    return episode["episode_id"], answer.headers["x-hone-version"]


def _asked(http: httpx.Client, method: str, path: str, body: Mapping[str, Any] | None = None) -> Json:
    answer = http.request(method, path, json=body)
    if not answer.is_success:
        raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
    return answer.json()


def until(holds: Any, timeout_s: float = START_S) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError("it did not come to be in time")
        time.sleep(0.05)
