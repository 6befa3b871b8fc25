"""Whether a Redis is strong enough to hold calls: refused at start, with the words that would mend it.

An acknowledged call must survive a killed server, and nothing may be evicted. Anything weaker than an append-only file
with an fsync before each answer loses calls that agents were answered on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tracker.errors import SettingsError

MIN_VERSION: Final = (7, 0)
WANTED: Final = {
    "maxmemory-policy": ("noeviction", "else Redis drops calls when it is full"),
    "appendonly": ("yes", "else a killed Redis loses every call"),
    "appendfsync": ("always", "`everysec` loses the calls of the last seconds"),
}

REPLICAS: Final = "min-replicas-to-write"
"""Wanted where Sentinel may make a replica the master."""


def check_server(info: Mapping[str, str]) -> None:
    """Raise `SettingsError` for a Redis that Hone does not work with at all; `info` is its INFO server."""
    version = info.get("redis_version", "0.0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < MIN_VERSION:
        raise SettingsError(f"HONE_REDIS_URL: Redis is {version}; use 7.0 or later.")
    if info.get("redis_mode") == "cluster":
        raise SettingsError("HONE_REDIS_URL: Redis Cluster is not supported yet; use one Redis, or Sentinel.")


def check_durability(config: Mapping[str, str]) -> None:
    """Raise `SettingsError` for a Redis that could lose what it acknowledged; `config` is its CONFIG GET."""
    for name, (wanted, why) in WANTED.items():
        found = config.get(name, "unknown")
        if found != wanted:
            raise SettingsError(f"Redis: {name} is {found}, {why}. Set: CONFIG SET {name} {wanted}")


def check_replication(config: Mapping[str, str]) -> None:
    """Raise `SettingsError` for a master that would go on without its replicas; `config` is its CONFIG GET."""
    found = config.get(REPLICAS, "unknown")
    if not found.isdigit() or int(found) < 1:
        raise SettingsError(
            f"Redis: {REPLICAS} is {found}, so a master that was cut off takes what its successor never gets. "
            f"Set, on every node: CONFIG SET {REPLICAS} 1"
        )


def parse_info(text: str) -> dict[str, str]:
    """INFO's lines as a mapping.

    >>> parse_info("# Server\\r\\nredis_version:7.2.4\\r\\n")
    {'redis_version': '7.2.4'}
    """
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
