"""Runs the gateway under uvicorn: one process, or several workers before one pair of stores.

What one connection may do is bounded in `connections.py`.
"""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from gateway.app import create_app
from gateway.connections import HttpProtocol, limits_of
from gateway.settings import GatewaySettings
from tracker.redis_server import EmbeddedRedis

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good."""
KEEP_ALIVE_S: Final = 75
WORKER_SILENCE_S: Final = 60
"""How long a worker may say nothing before it is replaced: a busy machine takes its time to start one."""
WORKER_APP: Final = "gateway.app:create_app_of_environment"


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
        "http": partial(HttpProtocol, limits=limits_of(settings)),
        "log_config": log_config(),
        "access_log": settings.access_log,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_worker_healthcheck": WORKER_SILENCE_S,
        "timeout_graceful_shutdown": settings.shutdown_s,
        "lifespan": "on",
        "ws": "none",
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
        "ssl_ciphers": CIPHERS,
    }


def log_config() -> dict[str, Any]:
    """uvicorn's own, with our lines in the same form. Lines hold paths and ids, never keys or bodies."""
    config = copy.deepcopy(LOGGING_CONFIG)
    config["formatters"]["default"]["fmt"] = "%(asctime)s %(levelprefix)s %(name)s %(message)s"
    config["loggers"]["hone"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return config
