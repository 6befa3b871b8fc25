"""One engine process: a socket, uvicorn on it, one line when it is ready.

The rule: what is printed is true: the line comes after the model is loaded and names the port that is really bound.
SIGTERM ends the process within a step; requests in flight get an error. What is served is left to the app.
"""

import socket
import sys

import uvicorn

from trainer.engine.app import EngineApp, create_app
from trainer.engine.config import EngineConfig


class ReadyServer(uvicorn.Server):
    """Says once that it is ready, and where."""

    def __init__(self, config: uvicorn.Config, app: EngineApp, line: str) -> None:
        super().__init__(config)
        self._app = app
        self._line = line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(self._line + "\n")
            sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop generating first: uvicorn waits for open requests, and they end only when they are told."""
        await self._app.stop()
        await super().shutdown(sockets)


def serve(settings: EngineConfig) -> int:
    """Serve until a signal ends it; returns the exit status."""
    bound = socket.create_server((settings.host, settings.port), family=_family(settings.host), backlog=2048)
    port = bound.getsockname()[1]
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        # Clients get this long to take what is left once the model's thread has stopped.
        timeout_graceful_shutdown=1,
    )
    server = ReadyServer(config, app, f"hone engine ready on http://{settings.host}:{port} model={settings.model}")
    with bound:
        server.run(sockets=[bound])
    return 0 if server.started else 1


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
