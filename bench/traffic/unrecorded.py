"""Hone's own gateway with a store that keeps no call: what recording costs is told by comparison with it.

Everything else is as in `hone gateway`, its settings too; never a way to run one. `python -m bench.traffic.unrecorded`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from gateway.app import Gateway, spare_the_collector
from gateway.dashboard.app import Dashboard
from gateway.door import Door
from gateway.routes import episodes, health
from gateway.serve import server_options
from gateway.settings import GatewaySettings, load
from gateway.startup import open_services
from tracker.claims import Note
from tracker.store import Begun, EpisodeStore
from tracker.types import Call, Intent


class KeepsNothing:
    """An episode store that takes calls and forgets them; what else is asked goes to the real one."""

    def __init__(self, store: EpisodeStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def begin_call(self, intent: Intent, pin: str, engines: Sequence[str] | None, mark: bytes = b"") -> Begun:
        del intent, pin, mark
        return Begun(index=0, version=0, engine=engines[0] if engines else None)

    async def end_call(self, call: Call, note: Note | None = None) -> bool:
        del call, note
        return True


def create_app(settings: GatewaySettings) -> Gateway:
    """The gateway without its records."""

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
        async with open_services(settings) as services:
            api.state.services = services
            forgets: Any = KeepsNothing(services.store)
            api.state.door = door = Door(dataclasses.replace(services, store=forgets))
            yield
            await door.close()

    api = FastAPI(lifespan=lifespan)
    api.include_router(episodes.router)
    api.include_router(health.router)
    return Gateway(api, Dashboard())


def main() -> None:
    settings = load(os.environ, Path.cwd())
    spare_the_collector()
    uvicorn.run(create_app(settings), **server_options(settings))


if __name__ == "__main__":
    main()
