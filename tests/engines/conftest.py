"""Both engines as `hone up` starts them, each once a session, over the model in the wheel; and gateways before them.

Where vLLM's environment is not there (`make setup-vllm` could not build it), its tests are skipped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.local.plan import SOURCE_ROOT, convert_command, engine_program, plan_local, vllm_program
from tests.engines.stand import Gateway, Stand
from tests.fakes.gateways import running_gateway
from tracker.errors import SettingsError

START_S = 240
# peft 0.21 asks transformers 5.24 by a name that it deprecates.
KNOWN_WARNING = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "stand" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings(KNOWN_WARNING))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def model_folder() -> str:
    """The model in the wheel, converted once and kept where the other suites keep it."""
    env = {"HONE_DATA_DIR": str(SOURCE_ROOT / ".hone"), **os.environ}
    command = convert_command(plan_local(env, SOURCE_ROOT, [1]))
    done = subprocess.run(command.argv, env=command.env, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="session", params=["embedded", "vllm"])
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_folder: str
) -> Iterator[Stand]:
    """A running engine of either kind."""
    folder = tmp_path_factory.mktemp(request.param)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HONE_") or "VLLM" in name}
    env |= {"HONE_POLICIES": f"solver={model_folder}", "HONE_DATA_DIR": str(folder), "OMP_NUM_THREADS": "2"}
    env |= {"HONE_LOCAL_ENGINE": request.param, "HONE_ENGINE_KEY": "a-key-of-the-engine"}
    try:
        plan = plan_local(env, SOURCE_ROOT, [_free_port()])
    except SettingsError as error:
        pytest.skip(f"no vLLM here: {error.message}")
    engine = plan.engines[0]
    make = vllm_program if plan.vllm else engine_program
    arguments = (plan, engine, "engine", model_folder) if plan.vllm else (plan, engine, "engine")
    program = make(*arguments)
    with _running(program.argv, program.env, folder / "engine.log", f"{engine.url}/health"):
        yield Stand(request.param, engine.url, "a-key-of-the-engine", model_folder)


@contextmanager
def _running(argv: tuple[str, ...], env: dict[str, str], log: Path, health: str) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(argv, env=env, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + START_S
            with httpx.Client(timeout=2) as http:
                while not _answers(http, health):
                    assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                    assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                    time.sleep(0.3)
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).is_success
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def gateway(stand: Stand, tmp_path: Path, redis_url: str) -> AsyncIterator[Gateway]:
    """A gateway before the engine, which is left without adapters."""
    try:
        async with _gateway(stand, tmp_path, redis_url) as running:
            yield running
    finally:  # once nobody loads them again
        await stand.unload_all()


@asynccontextmanager
async def _gateway(stand: Stand, folder: Path, redis_url: str) -> AsyncIterator[Gateway]:
    env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": f"solver={stand.model}", "HONE_ENGINE_KEY": stand.key}
    async with running_gateway(stand.url, folder, env) as running:
        yield Gateway(running, folder)
