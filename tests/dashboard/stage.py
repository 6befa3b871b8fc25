"""A running gateway for pages to look at: it serves in a thread of its own, before a scripted engine, and has stories.

The stories are real: agents call through the gateway, rewards come over HTTP, a trainer without a model takes groups,
stores manifests and publishes versions. So a page shows nothing here that a user's gateway could not hold. Tests read
it, and may add to it; one that would spoil it for others starts a stage of its own (`staged`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from gateway.auth import mint
from tests.dashboard.stories import Told, tell_stories
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.types import Key, Scope

T = TypeVar("T")
HONE_TOML = """
[[upstreams]]
name = "oracle"
base_url = "{engine}/v1"
models = ["oracle"]
key = "sk-of-the-oracle"
input_price = 2.5
output_price = 10.0
"""
"""A model that is no policy, so that there is a bill."""
ENV = {"HONE_POLICIES": "solver=base,checker=base", "HONE_TRUSTED_PROXIES": "127.0.0.1"}
"""Tests say from which address they come, so that those who fail on purpose slow nobody else."""


@dataclass(slots=True)
class Stage:
    """A gateway that serves, and keys for it."""

    url: str
    gateway: RunningGateway
    engine: ScriptedEngine
    data_dir: Path
    loop: asyncio.AbstractEventLoop
    told: Told
    key_ids: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """`admin`, `read`, `agent`, `reward`, `trainer` of tenant default, and `other` (read) and `other-admin` of tenant
    other."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the gateway's loop, as with its ledger or its clients."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=120)

    def key(self, *scopes: Scope, tenant: str = "default", **fields: Any) -> tuple[str, str]:
        """A new key and its id."""
        return self.run(_key(self.gateway, scopes, tenant, **fields))


@contextmanager
def staged(
    data_dir: Path, tell: Callable[..., Coroutine[Any, Any, Told]] = tell_stories, policies: str = ""
) -> Iterator[Stage]:
    """A stage for as long as the block lasts; `policies` are tables of `hone.toml` in place of the usual two."""
    ready, over = Event(), Event()
    found: list[Stage] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        async with _serving(data_dir, tell, policies) as stage:
            found.append(stage)
            ready.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as failure:  # noqa: BLE001 - raised again below, by the thread that waits
            failed.append(failure)
        finally:
            ready.set()

    thread = Thread(target=run, name="stage")
    thread.start()
    try:
        ready.wait()
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


@asynccontextmanager
async def _serving(
    data_dir: Path, tell: Callable[..., Coroutine[Any, Any, Told]], policies: str
) -> AsyncIterator[Stage]:
    async with ScriptedEngine(models=("base", "oracle")) as engine:
        (data_dir / "hone.toml").write_text(HONE_TOML.format(engine=engine.url) + policies)
        env = {**ENV, "HONE_POLICIES": ""} if policies else ENV
        async with running_gateway(engine, data_dir, env) as gateway:
            told = await tell(gateway, engine)
            stage = Stage(gateway.url, gateway, engine, data_dir, asyncio.get_running_loop(), told)
            for name, scopes, tenant in (
                ("admin", tuple(Scope), "default"),
                ("read", (Scope.READ,), "default"),
                ("agent", (Scope.AGENT,), "default"),
                ("reward", (Scope.REWARD,), "default"),
                ("trainer", (Scope.TRAINER,), "default"),
                ("other", (Scope.READ,), "other"),
                ("other-admin", (Scope.ADMIN,), "other"),
            ):
                stage.keys[name], stage.key_ids[name] = await _key(
                    gateway, scopes, tenant, label=f"{name} of the tests"
                )
            yield stage


async def _key(gateway: RunningGateway, scopes: tuple[Scope, ...], tenant: str, **fields: Any) -> tuple[str, str]:
    key, digest = mint()
    key_id = f"key-{digest[:16]}"
    created_ms = fields.pop("created_ms", 1_790_000_000_000)
    made = Key(key_id=key_id, digest=digest, tenant=tenant, scopes=scopes, created_ms=created_ms, **fields)
    await gateway.ledger.add_key(made)
    return key, key_id
