"""`hone replay`: serves recorded answers on a port, to a command or to whoever asks, until the first mismatch.

With a command its end is the end, and its exit status the replay's, unless a request was not recorded: then the command
is ended and the status is 1, as it is with `strict` where something recorded was never asked for.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from gateway.agent_command import AgentCommand, agent_env, run_agent
from gateway.hosting import HOST, hosted, listen, port_of
from gateway.replay.door import ReplayDoor
from gateway.replay.recordings import Mismatch, Recordings, Source, recordings_of
from gateway.terminal import visible
from tracker.settings import StoreSettings
from tracker.types import Record

KEY: Final = "replay"
"""What the agent is told as its key: any is taken."""
MISMATCH: Final = 1


class Play(Record, frozen=True):
    """What is to be replayed, and how."""

    source: Source
    port: int = 0
    command: tuple[str, ...] = ()
    strict: bool = False
    """Whether all that was recorded has to be asked for."""
    timeout_s: float | None = None


async def replay(stores: StoreSettings, play: Play, env: Mapping[str, str], cwd: Path, console: Console) -> int:
    """Serve until it ends; the exit status."""
    recordings = await recordings_of(stores, play.source)
    listener = listen(play.port)
    url = f"http://{HOST}:{port_of(listener)}"
    door = ReplayDoor(recordings)
    with tempfile.TemporaryDirectory(prefix="hone-replay-") as folder:
        async with hosted(door, listener, Path(folder) / "log"):
            _say(console, f"{recordings.num_recorded} recorded answers at {url}")
            status = await (
                _run(console, play, agent_env(env, url, KEY), cwd, door) if play.command else _wait(door, url, console)
            )
    return _told(console, recordings, door, status, strict=play.strict)


async def _run(console: Console, play: Play, env: Mapping[str, str], cwd: Path, door: ReplayDoor) -> int:
    command = AgentCommand(argv=play.command, timeout_s=play.timeout_s)
    ended = await run_agent(command, env, cwd, stop=door.failed)
    if ended.timeout_s is not None:
        _say(console, f"the command was ended after {ended.timeout_s:g} s")
    return 128 - ended.status if ended.status < 0 else ended.status


async def _wait(door: ReplayDoor, url: str, console: Console) -> int:
    """Until the first mismatch, Ctrl-C or SIGTERM."""
    for name, value in agent_env({}, url, KEY).items():
        if name.startswith(("OPENAI", "ANTHROPIC")):
            console.print(f"export {name}={value}", highlight=False, soft_wrap=True)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    waits = [asyncio.create_task(event.wait()) for event in (door.failed, stopped)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 0


def _told(console: Console, recordings: Recordings, door: ReplayDoor, status: int, *, strict: bool) -> int:
    """Say how it went; the exit status."""
    if door.mismatch is not None:
        _say(console, f"mismatch after {recordings.num_given} answers: {door.mismatch.message}")
        lines = door.mismatch.lines if isinstance(door.mismatch, Mismatch) else ()
        for line in lines:
            style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")
            console.print(Text(visible(line), style=style), soft_wrap=True)
        return MISMATCH
    left = recordings.num_recorded - recordings.num_given
    _say(console, f"{recordings.num_given} answers given, {left} recorded ones were not asked for")
    return MISMATCH if strict and left and not status else status


def _say(console: Console, line: str) -> None:
    console.print(Text(f"replay: {line}", style="dim"), soft_wrap=True)
