"""Running an agent's command before a server of ours: the environment it finds that server by, and how it ends.

The command gets base URLs and a key as SDKs read them, and nothing else changes for it. Ctrl-C ends the command and not
whoever started it, who has something to say about it; a command that does not end in its grace is killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from tracker.errors import SettingsError
from tracker.types import Record

GRACE_S: Final = 5.0
NO_PROXY: Final = ("NO_PROXY", "no_proxy")
LOOPBACK: Final = "127.0.0.1,localhost"


class AgentCommand(Record, frozen=True):
    """What is to be run."""

    argv: tuple[str, ...]
    timeout_s: float | None = None


class Ended(Record, frozen=True):
    """How the command ended."""

    status: int
    was_stopped: bool
    timeout_s: float | None = None
    """The time limit that ended it, if one did."""


def agent_env(env: Mapping[str, str], url: str, key: str) -> dict[str, str]:
    """The environment of the command: the caller's, with what SDKs read to find the server."""
    own = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
    }
    if env.get("ANTHROPIC_AUTH_TOKEN"):
        own["ANTHROPIC_AUTH_TOKEN"] = key  # it is sent beside the other one, and they must agree
    own |= {name: ",".join(filter(None, (env.get(name), LOOPBACK))) for name in NO_PROXY}
    return {**env, **own}


async def run_agent(
    command: AgentCommand,
    env: Mapping[str, str],
    cwd: Path,
    output: TextIO | None = None,
    stop: asyncio.Event | None = None,
) -> Ended:
    """Run the command to its end, with its output shown (in `output`); `stop`, once set, ends it."""
    try:
        process = await asyncio.create_subprocess_exec(*command.argv, env=env, cwd=cwd, stdout=output)
    except OSError as error:
        raise SettingsError(f"{command.argv[0]} could not be run: {error.strerror}.") from error
    async with _signals_end(process) as stopped:
        stopping = None if stop is None else asyncio.create_task(_end_at(stop, process))
        try:
            status = await asyncio.wait_for(process.wait(), command.timeout_s)
            return Ended(status=status, was_stopped=stopped.is_set())
        except TimeoutError:
            _end(process)
            return Ended(status=await process.wait(), was_stopped=False, timeout_s=command.timeout_s)
        finally:
            if stopping is not None:
                stopping.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _end_at(stop: asyncio.Event, process: asyncio.subprocess.Process) -> None:
    await stop.wait()
    _end(process)


@asynccontextmanager
async def _signals_end(process: asyncio.subprocess.Process) -> AsyncGenerator[asyncio.Event]:
    """Ctrl-C ends the command (which gets it from the terminal too) and not the report about it; set once it did."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        _end(process)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to end; kill it if it does not within its grace."""
    with suppress(ProcessLookupError):
        process.terminate()
    asyncio.get_running_loop().call_later(GRACE_S, _kill, process)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
