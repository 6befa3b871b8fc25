"""Runs the gateway under uvicorn: one process, or several workers before one pair of stores.

What one connection may do is bounded in `connections.py`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import uvicorn

from gateway.app import create_app, spare_the_collector
from gateway.connections import HttpProtocol, limits_of
from gateway.logs import log_config
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
    spare_the_collector()
    if settings.workers == 1:
        uvicorn.run(create_app(settings), **server_options(settings))
        return
    with _shared_counts():
        _serve_workers(settings)


def _serve_workers(settings: GatewaySettings) -> None:
    if settings.stores.redis_url is not None:
        uvicorn.run(WORKER_APP, factory=True, workers=settings.workers, **server_options(settings))
        return
    settings.stores.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    embedded = EmbeddedRedis(settings.stores.data_dir)
    asyncio.run(embedded.start())
    try:
        uvicorn.run(WORKER_APP, factory=True, workers=settings.workers, **server_options(settings))
    finally:
        asyncio.run(embedded.stop())


@contextmanager
def _shared_counts() -> Generator[None]:
    """A folder in which workers count together: prometheus-client has to know it when a worker first imports it.

    On this machine and for this start alone, never in the data folder, which several machines may share.
    """
    with tempfile.TemporaryDirectory(prefix="hone-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"PROMETHEUS_MULTIPROC_DIR": folder, "HONE_METRICS_DIR": folder}
        yield


def server_options(settings: GatewaySettings) -> dict[str, Any]:
    """What `uvicorn.run` is told beside the application."""
    return {
        "host": settings.host,
        "port": settings.port,
        "http": partial(HttpProtocol, limits=limits_of(settings)),
        "log_config": log_config(settings.log_format),
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
