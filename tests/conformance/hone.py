"""Hone as users start it, before a scripted engine: what the suite runs on when it is given no other gateway.

Three processes of their own (engine, gateway, the embedded Redis that the gateway starts), keys made by
`hone keys create`; all end with the context.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.conformance.gateway import SCOPES, Engine, Gateway, Keys
from tests.fakes.gateway_process import environment, free_port, new_key, until_ready

SESSION_HEADER = "X-Claude-Code-Session-Id"
ENGINE_KEY = "engine-secret"


@asynccontextmanager
async def hone_gateway(folder: Path, **env: str) -> AsyncIterator[tuple[Gateway, Engine]]:
    """Start an engine and `hone gateway` before it."""
    data_dir = folder / "data"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        engine_url, url = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        settings = {
            "HONE_PORT": url.rpartition(":")[2],
            "HONE_ENGINES": engine_url,
            "HONE_ENGINE_KEY": ENGINE_KEY,
            "HONE_POLICIES": "solver=base",
            "HONE_DATA_DIR": str(data_dir),
            "HONE_BEGIN_TIMEOUT_S": "10",
            "HONE_POLL_INTERVAL_S": "0.2",
            "HONE_SWEEP_INTERVAL_S": "0.1",
            "HONE_EPISODE_FROM": f"header:{SESSION_HEADER}",
            **env,
        }
        program = ["-m", "tests.fakes.scripted_engine", "--control", "--port", engine_url.rpartition(":")[2]]
        async with (
            _running(program, settings, folder / "engine.log"),
            _running(["-m", "gateway.cli", "gateway"], settings, folder / "gateway.log") as gateway,
        ):
            await until_ready(client, url, gateway, folder / "gateway.log")
            agent, operator, other = await asyncio.gather(
                new_key(settings, data_dir, "agent"),
                new_key(settings, data_dir, *SCOPES),
                new_key(settings, data_dir, "agent", "reward", "read", tenant="another"),
            )
            yield (
                Gateway(
                    url=url,
                    keys=Keys(agent, operator, operator, operator, operator, other),
                    client=client,
                    data_dir=data_dir,
                    session_header=SESSION_HEADER,
                ),
                Engine(engine_url, client),
            )


@asynccontextmanager
async def _running(
    program: list[str], settings: Mapping[str, str], log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *program, env=environment(settings), cwd=log.parent, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 60)
