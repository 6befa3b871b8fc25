"""Plays agents against a real gateway before the scripted engine: `python -m tests.agents.play --out FOLDER NAME...`.

One gateway process for all, one episode for each (or none, with `--identity key`: base URL and an ordinary key). What
an agent sent goes through a `Wire`; what became of it is written to `FOLDER/NAME.json` as a `Report`. Judging is left
to the tests. `--alone` plays in a network namespace that has only loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.agents import environments
from tests.agents.cast import Agent
from tests.agents.coders import CAST
from tests.agents.mind import mind
from tests.agents.wire import Exchange, Wire
from tests.fakes.gateway_process import GatewayProcess, gateway_process

Json = dict[str, Any]
LIMIT_S = 120
SESSION_FIELDS = ("header:X-Claude-Code-Session-Id", "header:x-parent-session-id|x-session-id", "header:session-id")
"""How Claude Code, OpenCode and Codex name a session: their titles, sub-agents and summaries join by it."""
MODEL_TOKENS = 48
"""How long a real model may talk."""
FILES: Json = {"greeting.txt": "hello from the file\n"}
"""What lies in the folder that an agent works in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of one agent."""

    agent: str
    version: str
    dialect: str
    identity: str
    status: int
    """Of its process; -1: it was stopped because it took too long."""
    output: str
    seconds: float
    files: dict[str, str]
    exchanges: list[Exchange]
    episodes: list[Json]
    """Each with its `calls` and `samples`."""


async def play(gateway: GatewayProcess, wire: Wire, agent: Agent, identity: str, model: bool = False) -> Report:
    """Run one agent; its episode, if it had one opened, is not finished."""
    if not model:
        gateway.engine.otherwise = mind(agent.play)
    given = await _env(gateway, wire, agent, identity)
    exchanges = wire.begin()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"hone-{agent.name}-") as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        for name, text in FILES.items():
            (work / name).write_text(text)
        command = environments.command(agent.recipe)
        status, output = await _run(command, environments.environment(home, given), work)
        files = {path.name: path.read_text() for path in work.iterdir() if path.is_file()}
    return Report(
        agent=agent.name,
        version=environments.version(agent.kind, agent.package),
        dialect=agent.dialect,
        identity=identity,
        status=status,
        output=output,
        seconds=round(time.monotonic() - started_s, 1),
        files=files,
        exchanges=exchanges,
        episodes=[await _episode(gateway, episode_id) for episode_id in _episodes(exchanges)],
    )


async def _env(gateway: GatewayProcess, wire: Wire, agent: Agent, identity: str) -> Json:
    if identity == "key":
        key = gateway.agent_key
        env = {"OPENAI_BASE_URL": f"{wire.url}/v1", "ANTHROPIC_BASE_URL": wire.url}
        return {**env, "OPENAI_API_KEY": key, "ANTHROPIC_API_KEY": key, **agent.env}
    run = {}
    if agent.run:
        run = {"run": f"run-{agent.name}"}
        await gateway.ask("POST", "/v1/runs", {**run, **agent.run})
    opened = await gateway.ask("POST", "/v1/episodes", {"task": agent.name, **run})
    return {**opened["env"], **agent.env}


async def _run(command: Sequence[str], env: Json, work: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd=work,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            output = await process.stdout.read()
            return await process.wait(), output.decode("utf-8", "replace")
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        rest = await process.stdout.read()
        await process.wait()
        return -1, rest.decode("utf-8", "replace")


def _episodes(exchanges: Sequence[Exchange]) -> list[str]:
    return list(dict.fromkeys(e.hone["x-hone-episode"] for e in exchanges if "x-hone-episode" in e.hone))


async def _episode(gateway: GatewayProcess, episode_id: str) -> Json:
    path = f"/v1/episodes/{episode_id}"
    timeline = await gateway.ask("GET", f"{path}/timeline")
    return {
        "episode_id": episode_id,
        "calls": timeline["calls"],
        "samples": await gateway.ask("GET", f"{path}/samples"),
    }


async def play_all(agents: Sequence[Agent], identity: str, out: Path, env: Json) -> None:
    """Play one after another, and write what became of each."""
    data_dir = Path(tempfile.mkdtemp(prefix="gateway-", dir=out)) / "data"
    async with Wire() as wire, gateway_process(data_dir, HONE_PUBLIC_URL=wire.url, **env) as gateway:
        wire.target = gateway.url
        for agent in agents:
            report = await play(gateway, wire, agent, identity, model="HONE_ENGINES" in env)
            target = out / f"{agent.name}.json"
            target.write_text(json.dumps(asdict(report), ensure_ascii=False, indent=1))
            print(
                f"{agent.name}: exit {report.status}, {len(report.exchanges)} requests, {report.seconds} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--identity", choices=("episode", "key"), default="episode")
    parser.add_argument("--engine", help="URL of an engine that runs already, in place of the scripted one")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.alone:
        again = [argument for argument in sys.argv[1:] if argument != "--alone"]
        os.execvp(environments.LOOPBACK[0], [*environments.LOOPBACK, sys.executable, "-m", "tests.agents.play", *again])
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [agent for agent in CAST if not options.names or agent.name in options.names]
    env = {"HONE_EPISODE_FROM": ",".join(SESSION_FIELDS)}
    if options.engine:
        env |= {"HONE_ENGINES": options.engine, "HONE_MAX_OUTPUT_TOKENS": str(MODEL_TOKENS)}
    asyncio.run(play_all(chosen, options.identity, options.out, env))


if __name__ == "__main__":
    main()
