"""Which server a connection to Redis leads to: the one a URL names, or the master that Sentinel tells at that moment.

`redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/NAME[/DB]` names sentinels and what they call the master. Each new
connection asks them anew, so a failover is over for us with the next connection. A master may die with what no replica
has: whoever records through Sentinel has each batch acknowledged by a replica (`num_replicas`) before it counts. The
user and password are those of Redis; sentinels that want their own are not supported.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

SCHEME: Final = "redis+sentinel"
SENTINEL_PORT: Final = 26379
ASK_S: Final = 0.3
"""How long one sentinel has to answer, before the next is asked."""
HOW: Final = "a URL of sentinels is redis+sentinel://HOST:PORT,HOST:PORT/NAME, with their name for the master"

UNREAD: Final = "the URL is not understood (in a password write %2F for /, %23 for #, %3F for ?, %40 for @)"


class Way:
    """How connections to one Redis are made. Raises `ValueError` for a URL that names none, in words that repeat
    nothing of it: what was taken for a port may be half of a password."""

    def __init__(self, url: str) -> None:
        self._sentinel: Sentinel | None = None
        self.num_replicas = 0
        """How many replicas must have what is recorded."""
        try:
            if url.partition("://")[0] == SCHEME:
                hosts, name, more = parse_sentinel_url(url)
                asked = {"socket_timeout": ASK_S, "socket_connect_timeout": ASK_S, "retry": Retry(NoBackoff(), 0)}
                self._sentinel = Sentinel(hosts, sentinel_kwargs=asked)
                self._pool: ConnectionPool = SentinelConnectionPool(name, self._sentinel, **more, **_how())
                self.num_replicas = 1
            else:
                self._pool = ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] - no types
                    url, **_how()
                )
            self.connection: AbstractConnection = self._pool.make_connection()
        except (ValueError, TypeError) as error:
            raise ValueError(HOW if str(error) == HOW else UNREAD) from None

    async def close(self) -> None:
        await self.connection.disconnect()
        for client in () if self._sentinel is None else self._sentinel.sentinels:
            await client.aclose()


def _how() -> dict[str, Any]:
    """redis-py must not repeat anything: that is the link's affair."""
    return {"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": None}


def parse_sentinel_url(url: str) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """Sentinels, the master's name, and user, password and database as redis-py takes them.

    >>> parse_sentinel_url("redis+sentinel://:secret@one:26379,two/hone/1")
    ([('one', 26379), ('two', 26379)], 'hone', {'db': 1, 'password': 'secret'})
    """
    parts = urlsplit(url)
    login, _, addresses = parts.netloc.rpartition("@")
    name, _, db = parts.path.strip("/").partition("/")
    if not addresses or not name or not (db or "0").isdigit():
        raise ValueError(HOW)
    user, _, password = login.partition(":")
    found: dict[str, Any] = {"db": int(db or 0), "username": unquote(user), "password": unquote(password)}
    more = {field: value for field, value in found.items() if value not in ("", None)}
    return [_address(address) for address in addresses.split(",") if address], name, more


def _address(text: str) -> tuple[str, int]:
    """A host, in brackets where it is an IPv6 address, and its port."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(HOW)
    return parts.hostname, parts.port or SENTINEL_PORT
