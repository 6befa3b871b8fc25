"""How long each kind of request to Redis may take, and over which of the two links it goes.

Scripts go over one link; reads of whole episodes go over the other, so that they do not stand in the way of calls. A
new connection leads to a server that may have changed: it is checked again before it counts as fit. What is asked is
left to `redis_scripts.py` and `redis_store.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from tracker.errors import SettingsError
from tracker.redis_claim_lua import CLAIM_SCRIPTS
from tracker.redis_link import Command, RedisLink
from tracker.redis_lua import ALL, Script
from tracker.redis_quota_lua import QUOTA_SCRIPTS
from tracker.redis_reading import pairs
from tracker.redis_scripts import Argument, Run
from tracker.redis_strength import REPLICAS, WANTED, check_durability, check_replication, check_server, parse_info
from tracker.types import Record


class Patience(Record, frozen=True):
    """How long each kind of request waits for Redis."""

    begin_s: float = 0.09
    """A new call, and readiness: the agent hears of it within 100 ms."""
    control_s: float = 5.0
    """Opening, finishing, reading."""
    end_s: float = 10.0
    """A call that ends: it is sent again on new connections for this long."""
    stall_s: float = 1.0
    """A connection on which nothing comes for this long is given up."""
    settle_s: float = 0.0
    """How long after a new connection nobody is taken for dead: while Redis was away no worker could say that it
    lives."""


class RedisRunner:
    """Runs scripts and reads. `start` it in the loop that uses it."""

    def __init__(self, url: str, patience: Patience, *, strict: bool) -> None:
        self._patience = patience
        self._strict = strict
        self._calls = RedisLink(url, stall_timeout_s=patience.stall_s, records=True)
        self._reads = RedisLink(url, stall_timeout_s=patience.control_s)
        self._checked_connect = 0

    async def start(self) -> None:
        """Raises `Unavailable` or `SettingsError` unless Redis is there and fit."""
        self._calls.start()
        self._reads.start()
        await self._check(self._patience.control_s)
        sources = (("SCRIPT", "LOAD", script.source) for script in (*ALL, *CLAIM_SCRIPTS, *QUOTA_SCRIPTS))
        await self._calls.ask(*sources, timeout_s=self._patience.control_s)

    async def close(self) -> None:
        await self._calls.close()
        await self._reads.close()

    async def ping(self) -> None:
        """Whether Redis answers as fast as a new call needs it."""
        await self._check(self._patience.begin_s)

    @property
    def is_settled(self) -> bool:
        """Whether Redis has been there long enough for all who live to have said so."""
        connected_s = max(self._calls.connected_s, self._reads.connected_s)
        return asyncio.get_running_loop().time() - connected_s >= self._patience.settle_s

    async def hurried(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """For a new call: an answer soon, or none."""
        return await self._run(script, (len(keys), *keys, *arguments), self._patience.begin_s, None)

    async def control(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """For what can wait a little, and fails at once where Redis is away."""
        return await self._run(script, (len(keys), *keys, *arguments), self._patience.control_s, None)

    def patient(self) -> Run:
        """For a call that ends: repeats until the time of this one call is up, over all scripts it takes."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience.end_s

        async def run(script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
            left_s = max(0.0, until_s - loop.time())
            return await self._run(script, (len(keys), *keys, *arguments), left_s, left_s)

        return run

    async def read(self, *command: str | bytes | int) -> Any:
        """The reply to one command."""
        [reply] = await self.read_all(command)
        return reply

    async def read_all(self, *commands: Command) -> list[Any]:
        """The replies to some commands, each of its own moment."""
        return await self._reads.ask(*commands, timeout_s=self._patience.control_s) if commands else []

    async def read_at_once(self, *commands: Command) -> list[Any]:
        """Replies that all tell of the same moment."""
        return (await self.read_all(("MULTI",), *commands, ("EXEC",)))[-1]

    async def _run(self, script: Script, operands: Sequence[Argument], timeout_s: float, repeat_s: float | None) -> Any:
        """Run a script by its digest; send its source where Redis does not know it (a new server, SCRIPT FLUSH)."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        by_digest: Command = ("EVALSHA", script.digest, *operands)
        try:
            [reply] = await self._calls.ask(by_digest, timeout_s=timeout_s, repeat_s=repeat_s)
        except NoScriptError:
            left_s = max(0.0, until_s - loop.time())
            by_source: Command = ("EVAL", script.source, *operands)
            repeat_s = None if repeat_s is None else left_s
            [reply] = await self._calls.ask(by_source, timeout_s=left_s, repeat_s=repeat_s)
        return reply

    async def _check(self, timeout_s: float) -> None:
        """Whether Redis answers; on a new connection also whether it is still strong enough."""
        await self._calls.ask(("PING",), timeout_s=timeout_s)
        connect = self._calls.num_connects
        if connect == self._checked_connect:
            return
        [info] = await self._calls.ask(("INFO", "server"), timeout_s=timeout_s)
        check_server(parse_info(info.decode()))
        if self._strict:
            await self._check_strength(timeout_s)
        self._checked_connect = connect

    async def _check_strength(self, timeout_s: float) -> None:
        config = await self._config(timeout_s)
        check_durability(config)
        if self._calls.is_replicated:
            check_replication(config)

    async def _config(self, timeout_s: float) -> dict[str, str]:
        try:
            [config] = await self._calls.ask(("CONFIG", "GET", *WANTED, REPLICAS), timeout_s=timeout_s)
        except ResponseError as error:
            raise SettingsError(
                f"Redis does not tell its settings ({error}), so what it would lose is unknown; let the user of "
                "HONE_REDIS_URL run CONFIG GET."
            ) from error
        return {name.decode(): value.decode() for name, value in pairs(config)}
