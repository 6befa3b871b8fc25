"""A private gateway for one rehearsal: its own data folder and Redis, keys of its own, before any engine.

It takes policies, runs, limits and upstreams from the user's settings, so that a rehearsal shows what they will do; it
listens on this machine only and everything it wrote is gone with its folder. What it recorded is read straight from
its stores, since token ids are shown nowhere else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.app import create_app
from gateway.auth import mint
from gateway.client import Client
from gateway.desk import open_ledger
from gateway.doctor.report import Rehearsed
from gateway.doctor.watch import Watch
from gateway.hosting import HOST, hosted, listen, port_of
from gateway.settings import GatewaySettings, load
from tracker.codec import decode_calls
from tracker.errors import NotFound
from tracker.ledger import SqlLedger
from tracker.redis_server import EmbeddedRedis
from tracker.redis_store import RedisStore
from tracker.types import DEFAULT, Call, EpisodeRow, Key, Scope

MAX_EPISODES: Final = 200
SETTLE_S: Final = 5.0
"""How long calls that were in flight when the command ended may take to be recorded."""
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PrivateGateway:
    """A running one."""

    url: str
    settings: GatewaySettings
    watch: Watch
    ledger: SqlLedger
    store: RedisStore

    async def agent_key(self) -> str:
        """An ordinary key, as an agent of the user's would have."""
        key, digest = mint()
        await self.ledger.add_key(Key(key_id=f"key-{digest[:16]}", digest=digest, scopes=(Scope.AGENT,)))
        return key

    async def open_episode(self, key: str, task: str) -> str:
        """One explicit episode; its session key."""
        async with Client(self.url, key) as client:
            opened = await client.start_episode(task, idempotency_key="rehearsal")
        return str(opened["api_key"])

    async def rehearsed(self) -> tuple[Rehearsed, ...]:
        """Every episode in the order they began, once no call is in flight."""
        rows, _ = await self.ledger.list_episodes(
            DEFAULT, run=None, task=None, status=None, limit=MAX_EPISODES, cursor=None
        )
        return tuple([await self._rehearsed(row) for row in reversed(rows)])

    async def _rehearsed(self, row: EpisodeRow) -> Rehearsed:
        run = await self.ledger.get_run(row.head.tenant, row.head.run)
        return Rehearsed(episode_id=row.head.episode_id, run=run, calls=await self._calls(row.head.episode_id))

    async def _calls(self, episode_id: str) -> tuple[Call, ...]:
        until_s = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            try:
                view = await self.store.view(episode_id)
            except NotFound:
                blob = await self.ledger.get_timeline(episode_id)
                return () if blob is None else decode_calls(blob)
            if not view.intents or asyncio.get_running_loop().time() > until_s:
                return view.calls
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def private_gateway(
    env: Mapping[str, str], cwd: Path, folder: Path, *, is_plain: bool = False
) -> AsyncGenerator[PrivateGateway]:
    """Start one with these settings, in this folder; it ends with the block. `is_plain`: no exact prompting."""
    listener = listen()
    settings = private_settings(env, cwd, folder, listener)
    if is_plain:
        policies = tuple(policy.model_copy(update={"prompting": "plain"}) for policy in settings.stores.policies)
        stores = settings.stores.model_copy(update={"policies": policies})
        settings = settings.model_copy(update={"stores": stores})
    watch = Watch(create_app(settings))
    async with hosted(watch, listener, folder / "gateway.log"), open_ledger(settings.stores) as ledger:
        store = await RedisStore.connect(EmbeddedRedis(settings.stores.data_dir).url)
        try:
            yield PrivateGateway(settings.base_url, settings, watch, ledger, store)
        finally:
            await store.close()


def private_settings(env: Mapping[str, str], cwd: Path, folder: Path, listener: socket.socket) -> GatewaySettings:
    """The user's settings with everything replaced that would touch what is the user's."""
    own = {
        "HONE_DATA_DIR": str(folder / "data"),
        "HONE_DATABASE_URL": f"sqlite:///{folder / 'data' / 'hone.db'}",
        "HONE_HOST": HOST,
        "HONE_PORT": str(port_of(listener)),
        "HONE_WORKERS": "1",
        "HONE_BEGIN_TIMEOUT_S": "10",  # a busy machine is no fault of the agent's
    }
    settings = load({**env, **own}, cwd)
    stores = settings.stores.model_copy(update={"redis_url": None})
    return settings.model_copy(update={"stores": stores, "public_url": ""})
