"""SQL as the ledger uses it: one engine, read and write transactions, and the schema's migrations.

`HONE_DATABASE_URL` names SQLite (`sqlite:///PATH`) or PostgreSQL (`postgresql://…`); the driver is added here. Work is
a plain function over a `Connection`, run in one transaction: a write is seen whole or not at all, a read sees one
moment. SQLite writes begin IMMEDIATE, so that a transaction waits for its turn at its start and never fails midway, and
processes that open a new file together wait for the one that makes it; on PostgreSQL the functions lock the rows they
decide on, and a transaction that lost a race is run again. A PostgreSQL that is away, stops or falls silent is
`Unavailable`, after a bounded time: nobody waits for a connection that will never speak again. What the statements say
is left to the modules of the ledger, what the tables are to `tables.py`.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import secrets
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import aiosqlite
import asyncpg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Table, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_connection
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, InvalidRequestError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from tracker.errors import SettingsError, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

BUSY_S: Final = 60.0
"""How long SQLite waits for another process: one that migrates on a busy machine takes its time."""
BUSY_PAUSE_S: Final = 0.01
BUSY_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
PING_S: Final = 3.0
ATTEMPTS: Final = 8
GREET_S: Final = 2.0
"""How long a connection to PostgreSQL that was used before has to say that it still works. One that does not, or was
silently cut, is dropped, and with it all others of its age."""
REACH_S: Final = 10.0
"""How long it may take in all until there is a connection that works."""
WORK_S: Final = 30.0
"""How long a transaction may take on PostgreSQL; SQLite cannot fall silent."""
IDLE_S: Final = 15
"""When PostgreSQL ends a transaction in which nothing comes any more: whoever was cut off from it would hold its locks,
and keep all others waiting."""
SESSION: Final = "session"
END_SESSIONS: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY(:names)"
)
AWAY: Final = ("08", "53", "57P", "58", "25006", "25P03")
"""How the codes begin with which PostgreSQL says that it cannot do anything now: its connection broke, it has no room,
it stops or starts, its disk fails, it is a standby, it has waited too long."""
BROKEN: Final = (OSError, PoolTimeout, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What is raised where a connection cannot be made, or broke under a statement: asyncpg also says then that its own
state is not what it should be."""
RACES: Final = frozenset({"40001", "40P01"})
"""PostgreSQL's serialization failure and deadlock: the same transaction succeeds when it is run again."""
MIGRATION_LOCK: Final = 0x686F6E65
"""PostgreSQL's advisory lock under which the schema changes."""
WRITES: Final = "hone_writes"


def driver_url(database_url: str) -> URL:
    """The URL with the asynchronous driver that Hone uses.

    What libpq calls `sslmode` is `ssl` to asyncpg.

    >>> driver_url("sqlite:////data/hone.db").render_as_string()
    'sqlite+aiosqlite:////data/hone.db'
    >>> driver_url("postgresql://me@db/hone?sslmode=require").render_as_string()
    'postgresql+asyncpg://me@db/hone?ssl=require'
    """
    url = make_url(database_url)
    match url.get_backend_name():
        case "sqlite":
            return url.set(drivername="sqlite+aiosqlite")
        case "postgresql":
            query = {{"sslmode": "ssl"}.get(name, name): value for name, value in url.query.items()}
            return url.set(drivername="postgresql+asyncpg", query=query)
        case other:
            raise SettingsError(f"HONE_DATABASE_URL: write sqlite:///PATH or postgresql://…, not {other}.")


def open_engine(database_url: str) -> AsyncEngine:
    """An engine for this database; no connection is made before the first transaction."""
    url = driver_url(database_url)
    if url.get_backend_name() == "postgresql":
        engine = create_async_engine(url)
        event.listen(engine.sync_engine, "connect", _prepare_postgres)
        event.listen(engine.sync_engine, "checkout", _check_postgres)
        return engine
    engine = create_async_engine(url, pool_size=8, max_overflow=0)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_postgres(connection: AsyncAdapt_asyncpg_connection, entry: ConnectionPoolEntry) -> None:
    """Give the session a name of its own, and have PostgreSQL notice soon that nobody is there any more."""
    entry.info[SESSION] = name = f"hone-{secrets.token_hex(8)}"
    settings = {
        "application_name": name,
        "idle_in_transaction_session_timeout": IDLE_S * 1000,
        "tcp_keepalives_idle": IDLE_S,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    try:
        connection.run_async(partial(_execute, statement=";".join(f"SET {k} = '{v}'" for k, v in settings.items())))
    except (asyncpg.PostgresError, *BROKEN) as error:
        raise ConnectionError(f"{error!r}") from error


def _check_postgres(connection: AsyncAdapt_asyncpg_connection, *_: object) -> None:
    """Whether a connection of the pool still works; SQLAlchemy's own check waits for ever where nobody answers."""
    try:
        connection.run_async(partial(_execute, statement="SELECT 1"))
    except (asyncpg.PostgresError, *BROKEN) as error:
        raise InvalidatePoolError(f"{error!r}") from error


async def _execute(connection: asyncpg.Connection, statement: str) -> None:
    await connection.execute(statement, timeout=GREET_S)  # pyright: ignore[reportUnknownMemberType] - of its *args


def _prepare_sqlite(connection: AsyncAdapt_aiosqlite_connection, _: ConnectionPoolEntry) -> None:
    """Leave BEGIN to us (the driver would send it late), and set what holds for a connection's life."""
    connection.isolation_level = None
    connection.run_async(_set_up_sqlite)


async def _set_up_sqlite(connection: aiosqlite.Connection) -> None:
    await _set(connection, f"busy_timeout = {BUSY_S * 1000:.0f}")
    await _set_wal(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        await _set(connection, pragma)


async def _set_wal(connection: aiosqlite.Connection) -> None:
    """Set the file's journal mode. SQLite does not wait here, whatever the timeout: two that do it at once would be a
    deadlock, so one of them is told that the database is locked, and finds it done a moment later."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + BUSY_S
    while True:
        try:
            return await _set(connection, "journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in BUSY_CODES or loop.time() > until_s:
                raise
        await asyncio.sleep(BUSY_PAUSE_S)


async def _set(connection: aiosqlite.Connection, pragma: str) -> None:
    async with connection.execute(f"PRAGMA {pragma}"):
        return


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Database:
    """Runs functions over a connection in transactions of one engine; the ledger's parts build on it."""

    def __init__(self, engine: AsyncEngine, *, work_s: float | None = WORK_S) -> None:
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._reach_s = None if self._is_sqlite else REACH_S
        self._work_s = None if self._is_sqlite else work_s
        self._writer = engine.execution_options(**{WRITES: True})
        self._reader = engine if self._is_sqlite else engine.execution_options(isolation_level="REPEATABLE READ")
        self._turn = asyncio.Lock()
        self._abandoned: list[str] = []
        """Sessions of PostgreSQL that were given up without its knowing: they may hold locks."""
        if not self._is_sqlite:
            event.listen(engine.sync_engine, "invalidate", self._note_abandoned)
        self._running: set[asyncio.Task[Any]] = set()

    async def ping(self) -> None:
        """Raise `Unavailable` unless the database answers soon."""
        try:
            async with asyncio.timeout(PING_S):
                await self.read(_ping)
        except TimeoutError as error:
            raise Unavailable("The database does not answer.") from error

    async def close(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._engine.dispose()

    async def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on one snapshot."""
        return await self._run(self._read(work, *args, **kwargs))

    async def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in one transaction and commit it; an error rolls all of it back."""
        return await self._run(self._write(work, *args, **kwargs))

    async def _run(self, transaction: Coroutine[Any, Any, T]) -> T:
        """SQLite works in threads that nobody can cancel, and one left alone would still hold its lock, or its file
        when the loop is gone: whoever cancels, a transaction there ends, and `close` waits for it."""
        if not self._is_sqlite:
            return await transaction
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with self._connected(self._reader) as connection:
                return await connection.run_sync(work, *args, **kwargs)
        except DBAPIError as error:
            if _is_unavailable(error):
                raise _away(error) from error
            raise
        except BROKEN as error:
            raise _away(error) from error

    async def _write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._wait_for_turn(), self._connected(self._writer) as connection, connection.begin():
                    return await connection.run_sync(work, *args, **kwargs)
            except DBAPIError as error:
                if attempt < ATTEMPTS and _lost_a_race(error):
                    continue
                if _is_unavailable(error):
                    raise _away(error) from error
                raise
            except BROKEN as error:
                raise _away(error) from error
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _connected(self, engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
        """A connection that answers, for a bounded time. Whatever runs out of time is cancelled, and SQLAlchemy drops a
        connection on which something was cancelled: nobody gets a silent one twice."""
        try:
            async with asyncio.timeout(self._reach_s):
                connection = await engine.connect()
        except InvalidRequestError as error:  # nor does a second, new one work
            raise _away(error) from error
        async with asyncio.timeout(self._work_s), aclosing(connection):
            if self._abandoned:
                await self._end_abandoned(connection)
            yield connection

    def _note_abandoned(self, _connection: object, entry: ConnectionPoolEntry, _error: object) -> None:
        if SESSION in entry.info:
            self._abandoned.append(entry.info[SESSION])

    async def _end_abandoned(self, connection: AsyncConnection) -> None:
        """Have PostgreSQL end what was given up. No time of its own does: in the middle of a statement it waits for the
        client's next word as long as TCP lets it, with all the locks it holds."""
        names = list(self._abandoned)
        await connection.execute(END_SESSIONS, {"names": names})
        await connection.rollback()
        self._abandoned = [name for name in self._abandoned if name not in names]

    def _wait_for_turn(self) -> AbstractAsyncContextManager[Any]:
        """SQLite has one writer: within a process, tasks queue in order rather than compete for its lock."""
        return self._turn if self._is_sqlite else nullcontext()


def _ping(connection: Connection) -> None:
    connection.execute(text("SELECT 1"))


def _lost_a_race(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in RACES


def _is_unavailable(error: DBAPIError) -> bool:
    """Whether the database could not be reached; a broken statement or constraint is a bug, and stays one."""
    says_so = str(getattr(error.orig, "sqlstate", None) or "").startswith(AWAY)
    is_broken = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return says_so or is_broken or _lost_a_race(error)


def _away(error: Exception) -> Unavailable:
    """What callers are told."""
    said = error.orig if isinstance(error, DBAPIError) else error
    return Unavailable(f"The database cannot be reached: {str(said) or 'it does not answer'}")


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with the same key stands there; whether it was inserted.

    It waits for a transaction that is inserting the same key, so a row that was in the way can be read afterwards.
    """
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return connection.execute(make(table).values(values).on_conflict_do_nothing()).rowcount == 1


async def upgrade(database_url: str, revision: str = "head") -> None:
    """Bring the schema up to `revision`; processes that start together wait for each other.

    A schema that a newer Hone has brought further is left as it is: revisions only add what older code can do without,
    so an older gateway goes on, and can be started again, while the others are replaced one by one.
    """
    await _migrate(database_url, _upgrade_unless_ahead, revision)


async def downgrade(database_url: str, revision: str) -> None:
    """Take the schema down to `revision` (`base`: no tables)."""
    await _migrate(database_url, command.downgrade, revision)


async def _migrate(database_url: str, move: Callable[[Config, str], None], revision: str) -> None:
    database = Database(open_engine(database_url), work_s=None)
    try:
        await database.write(_run_alembic, move, revision)
    finally:
        await database.close()


def _upgrade_unless_ahead(config: Config, revision: str) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if known.issuperset(MigrationContext.configure(config.attributes["connection"]).get_current_heads()):
        command.upgrade(config, revision)


def _run_alembic(connection: Connection, move: Callable[[Config, str], None], revision: str) -> None:
    """Alembic inside our transaction, from the installed `migrations` package."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    with importlib.resources.as_file(importlib.resources.files("migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        move(config, revision)
