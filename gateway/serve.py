"""Runs the gateway under uvicorn: one process, or several workers before one pair of stores.

What is no HTTP at all is refused here, before any application sees it, in the form of every other error.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Final

import msgspec
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.answers import JSON
from gateway.app import create_app
from gateway.dialects.openai_form import error_body
from gateway.settings import GatewaySettings
from tracker.errors import BadRequest
from tracker.redis_server import EmbeddedRedis

MAX_REQUEST_LINE_BYTES: Final = 64 * 1024
KEEP_ALIVE_S: Final = 75
WORKER_SILENCE_S: Final = 60
"""How long a worker may say nothing before it is replaced: a busy machine takes its time to start one."""
WORKER_APP: Final = "gateway.app:create_app_of_environment"


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's own, which would answer what it cannot parse in plain text."""

    def send_400_response(self, msg: str) -> None:
        """Refuse and close: where the next request would begin is not known."""
        body = msgspec.json.encode(error_body(BadRequest(msg, code="invalid_http")))
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(head.encode() + b"\r\n\r\n" + body)
        self.transport.close()


def serve(settings: GatewaySettings) -> None:
    """Serve until told to stop. Several workers share the embedded Redis: their parent starts it, any revives it."""
    if settings.workers == 1:
        uvicorn.run(create_app(settings), **_options(settings))
        return
    if settings.stores.redis_url is not None:
        uvicorn.run(WORKER_APP, factory=True, workers=settings.workers, **_options(settings))
        return
    settings.stores.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    embedded = EmbeddedRedis(settings.stores.data_dir)
    asyncio.run(embedded.start())
    try:
        uvicorn.run(WORKER_APP, factory=True, workers=settings.workers, **_options(settings))
    finally:
        asyncio.run(embedded.stop())


def _options(settings: GatewaySettings) -> dict[str, Any]:
    return {
        "host": settings.host,
        "port": settings.port,
        "http": HttpProtocol,
        "log_config": log_config(),
        "access_log": settings.access_log,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": MAX_REQUEST_LINE_BYTES,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_worker_healthcheck": WORKER_SILENCE_S,
        "timeout_graceful_shutdown": settings.shutdown_s,
        "lifespan": "on",
        "ws": "none",
    }


def log_config() -> dict[str, Any]:
    """uvicorn's own, with our lines in the same form. Lines hold paths and ids, never keys or bodies."""
    config = copy.deepcopy(LOGGING_CONFIG)
    config["formatters"]["default"]["fmt"] = "%(asctime)s %(levelprefix)s %(name)s %(message)s"
    config["loggers"]["hone"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return config
