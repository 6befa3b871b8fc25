"""Serving an ASGI application in this process's own loop, on a free port of this machine, for as long as a block lasts.

For short-lived servers of one command: signals are left to whoever runs the loop, and what the server has to say goes
to a file.
"""

from __future__ import annotations

import asyncio
import copy
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from gateway.logs import LogFormat, log_config
from tracker.errors import SettingsError

HOST: Final = "127.0.0.1"
STOP_S: Final = 5
POLL_S: Final = 0.01


class _Server(uvicorn.Server):
    """uvicorn's own, which would take the signals to itself."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(port: int = 0) -> socket.socket:
    """A socket on this port, or on a free one, held from now on. Raises `SettingsError` where it is taken."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # named, else asyncio leaves Nagle on
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise SettingsError(f"Port {port} of {HOST} cannot be used: {error.strerror}.") from error
    return listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@asynccontextmanager
async def hosted(app: ASGIApp, listener: socket.socket, log: Path) -> AsyncGenerator[None]:
    """Serve until the block ends; raises `SettingsError` with the end of the log where the start is refused."""
    config = uvicorn.Config(
        app, log_config=_to_file(log), access_log=False, ws="none", lifespan="on", timeout_graceful_shutdown=STOP_S
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                raise SettingsError(f"It could not start. {_end_of(log)}")
            await asyncio.sleep(POLL_S)
        yield
    finally:
        server.should_exit = True
        await serving
        listener.close()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else ""


def _to_file(log: Path) -> dict[str, Any]:
    config = copy.deepcopy(log_config(LogFormat.TEXT))
    for handler in config["handlers"].values():
        handler.pop("stream", None)
        handler |= {"class": "logging.FileHandler", "filename": str(log), "delay": True}
    for formatter in config["formatters"].values():
        formatter["use_colors"] = False
    return config
