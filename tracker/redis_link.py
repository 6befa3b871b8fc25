"""One connection to Redis, owned by one task: callers queue commands, the task sends what is queued together.

A cancelled caller takes nothing back: its commands run to their end, and the connection stays in step. What many calls
ask at once is one write and one fsync. A caller waits as long as it said and no longer, whatever Redis does; what it
asked to be repeated is sent again on a new connection until its time is up, so it must be safe to repeat. Where a
replica may take the server's place, nothing counts before one has it. Which commands those are, and what they mean, is
left to `redis_store.py`; where the connection leads to, to `redis_sentinel.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from tracker.errors import SettingsError, Unavailable, words_of
from tracker.redis_sentinel import Way

Command = Sequence[str | bytes | int]
MAX_BATCH: Final = 256
LATE_S: Final = 0.02
"""A timer this late says that this process was not running: Redis may have answered meanwhile."""
REPLICA_MS: Final = 500
"""How long replicas have to acknowledge a batch."""
GREETING: Final = ("PUBLISH", "hone", "")
"""What a new connection says first where replicas have to acknowledge. WAIT asks for what its own connection has
written: one that only finds what an earlier one wrote would be told that replicas have it. This goes to them behind
that, stores nothing, and is never refused for want of memory."""
_LENGTHS: Final = tuple(b"\r\n$%d\r\n" % length for length in range(512))
"""What stands before a value of so many bytes."""
NO_REPLICA: Final = "NOREPLICAS no replica"
NOT_NOW: Final = ("MISCONF", "NOREPLICAS", "BUSY")
"""Error replies that say the server cannot do it yet."""


class Unsent(Unavailable):
    """Redis cannot be reached, and the commands never left: they had no effect."""


class _Job:
    """Commands that are sent in one piece, and who waits for their replies."""

    __slots__ = ("expires_s", "future", "is_sent", "num_replies", "packed", "repeat_until_s")

    def __init__(self, packed: bytes, num_replies: int, expires_s: float, repeat_until_s: float | None) -> None:
        self.packed = packed
        self.num_replies = num_replies
        self.is_sent = False
        self.expires_s = expires_s
        self.repeat_until_s = repeat_until_s
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def answer(self, replies: list[Any]) -> None:
        if not self.future.done():
            self.future.set_result(replies)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def give_up(self, message: str) -> None:
        """Tell the caller, also whether the commands may have had an effect."""
        self.fail(Unavailable(message) if self.is_sent else Unsent(message))

    def expire(self) -> None:
        """Give up; if this process itself was late, wait for what may lie in the socket already."""
        loop = asyncio.get_running_loop()
        if loop.time() - self.expires_s > LATE_S:
            self.expires_s = loop.time() + LATE_S
            loop.call_at(self.expires_s, self.expire)
        else:
            self.give_up("Redis does not answer, so nothing can be recorded; try again.")

    @property
    def is_over(self) -> bool:
        """Nobody waits, and nobody asked for it to be repeated."""
        return self.future.done() and self.repeat_until_s is None


class RedisLink:
    """The owner of one connection. `start` it in the loop that uses it; `close` waits for what is queued."""

    def __init__(
        self, url: str, *, connect_timeout_s: float = 1.0, stall_timeout_s: float = 1.0, records: bool = False
    ) -> None:
        """`records`: what goes over it must not be lost with the server."""
        try:
            self._way = Way(url)
        except ValueError as error:
            raise SettingsError(
                f"HONE_REDIS_URL: {error}; write redis://HOST:6379/0, rediss://… or unix:///PATH."
            ) from error
        self._connection = self._way.connection
        self._num_replicas = self._way.num_replicas if records else 0
        self._connect_timeout_s = connect_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._queue: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.num_connects = 0
        """Rises with every new connection: what was true of the server before may not be any more."""
        self.connected_s = -math.inf
        """When the newest was made, by the loop's clock."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve(), name="redis link")

    @property
    def is_replicated(self) -> bool:
        """Whether replicas have to acknowledge what goes over it."""
        return self._num_replicas > 0

    async def close(self) -> None:
        """Send what is queued, then let go of the connection."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self._way.close()

    async def ask(self, *commands: Command, timeout_s: float, repeat_s: float | None = None) -> list[Any]:
        """The replies, in order; an error reply raises.

        Raises `Unavailable` (`Unsent` where that is known) after `timeout_s`, or at once when the connection is refused
        or breaks and `repeat_s` is None. With `repeat_s` the commands are sent again on new connections for that long,
        also if the caller left.
        """
        if self._closing:
            raise Unsent("The connection to Redis is closed.")
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        job = _Job(
            b"".join(map(packed, commands)),
            len(commands),
            now_s + timeout_s,
            None if repeat_s is None else now_s + repeat_s,
        )
        self._queue.append(job)
        self._wake.set()
        timer = loop.call_at(job.expires_s, job.expire)
        try:
            return await job.future
        finally:
            timer.cancel()

    async def _serve(self) -> None:
        while True:
            jobs = await self._next_jobs()
            if not jobs:
                return
            try:
                await self._exchange(jobs)
            except (RedisError, OSError, TimeoutError) as error:
                await self._recover(jobs, error)

    async def _next_jobs(self) -> list[_Job]:
        """Everything that is queued, up to a bound; nothing once closed and drained."""
        jobs: list[_Job] = []
        while not jobs and (self._queue or not self._closing):
            while self._queue and len(jobs) < MAX_BATCH:
                job = self._queue.popleft()
                if not job.is_over:
                    jobs.append(job)
            if not jobs and not self._closing:
                self._wake.clear()
                await self._wake.wait()
        return jobs

    async def _exchange(self, jobs: list[_Job]) -> None:
        """Send all, read all. A job that was answered is taken off the list, so the rest is what must be repeated.

        Whoever gave up while the connection was made is left out: what he was told was not sent, is not.
        """
        if not self._connection.is_connected:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._connection.connect()
                if self._num_replicas:
                    await self._greet()
            self.num_connects += 1
            self.connected_s = asyncio.get_running_loop().time()
        jobs[:] = [job for job in jobs if not job.is_over]
        for job in jobs:
            job.is_sent = True
        sent = [job.packed for job in jobs]
        if self._num_replicas:
            sent.append(packed(("WAIT", self._num_replicas, REPLICA_MS)))
        async with asyncio.timeout(self._stall_timeout_s) as stall:
            await self._connection.send_packed_command(sent, check_health=False)
            not_now = await (self._replicated(jobs, stall) if self._num_replicas else self._answered(jobs, stall))
        if not_now:
            self._queue.extendleft(reversed(not_now))
            await asyncio.sleep(LATE_S)

    async def _greet(self) -> None:
        """Raises the error reply of a server that does not take it: then nothing could be acknowledged."""
        await self._connection.send_packed_command([packed(GREETING)], check_health=False)
        await self._connection.read_response(disconnect_on_error=False)

    async def _answered(self, jobs: list[_Job], stall: asyncio.Timeout) -> list[_Job]:
        """Hand out each job's replies as they come; the jobs that have to be sent again."""
        not_now: list[_Job] = []
        while jobs:
            replies = await self._replies(jobs[0].num_replies, stall)
            job = jobs.pop(0)
            if not self._settle(job, replies):
                not_now.append(job)
        return not_now

    async def _replicated(self, jobs: list[_Job], stall: asyncio.Timeout) -> list[_Job]:
        """Hand out the replies of all jobs once replicas have what they wrote; the jobs that have to be sent again."""
        replies = [await self._replies(job.num_replies, stall) for job in jobs]
        [found] = await self._replies(1, stall)
        if not isinstance(found, int) or found < self._num_replicas:
            late = ResponseError(f"{NO_REPLICA} has acknowledged it within {REPLICA_MS} ms")
            replies = [[*told, late] for told in replies]
        done, jobs[:] = list(jobs), []
        return [job for job, told in zip(done, replies, strict=True) if not self._settle(job, told)]

    async def _replies(self, number: int, stall: asyncio.Timeout) -> list[Any]:
        """The next replies; each may take about as long as a connection may be silent."""
        replies: list[Any] = []
        for _ in range(number):
            self._bear(stall)
            replies.append(await self._reply())
        return replies

    def _bear(self, stall: asyncio.Timeout) -> None:
        """Begin to wait anew, unless it has hardly begun: many replies come together."""
        until_s = asyncio.get_running_loop().time() + self._stall_timeout_s
        if until_s - (stall.when() or 0.0) > self._stall_timeout_s / 8:
            stall.reschedule(until_s)

    async def _reply(self) -> Any:
        """One reply; an error reply is returned, so that those behind it are still read."""
        try:
            return cast("Any", await self._connection.read_response(disconnect_on_error=False))
        except BusyLoadingError:
            raise
        except ResponseError as error:
            return error

    def _settle(self, job: _Job, replies: list[Any]) -> bool:
        """Hand the replies over; False if the server cannot do it yet and the job may be sent again."""
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not errors:
            job.answer(replies)
            return True
        if not _is_passing(errors[0]):
            job.fail(errors[0])
            return True
        if _may_repeat(job):
            return False
        job.fail(Unavailable(f"Redis cannot do this now: {errors[0]}"))
        return True

    async def _recover(self, jobs: list[_Job], error: Exception) -> None:
        """Drop the connection, whose replies are out of step now; queue again what may be repeated."""
        with contextlib.suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)
        again = [job for job in jobs if _may_repeat(job)]
        for job in jobs:
            if not _may_repeat(job):
                job.give_up(f"Redis cannot be reached: {words_of(error)}")
        if again:
            self._queue.extendleft(reversed(again))
            await asyncio.sleep(LATE_S)


def packed(command: Command) -> bytes:
    r"""A command as Redis reads it; much cheaper than the client library's own way, which takes any value.

    >>> packed(("GET", b"k", 1))
    b'*3\r\n$3\r\nGET\r\n$1\r\nk\r\n$1\r\n1\r\n'
    """
    parts = [b"*%d" % len(command)]
    for value in command:
        told = value if type(value) is bytes else str(value).encode("utf-8", "surrogatepass")
        length = len(told)
        parts.append(_LENGTHS[length] if length < len(_LENGTHS) else b"\r\n$%d\r\n" % length)
        parts.append(told)
    parts.append(b"\r\n")
    return b"".join(parts)


def _may_repeat(job: _Job) -> bool:
    return job.repeat_until_s is not None and asyncio.get_running_loop().time() < job.repeat_until_s


def _is_passing(error: ResponseError) -> bool:
    """Whether the server may answer otherwise soon. redis-py keeps some codes in the message, others in the type."""
    return str(error).startswith(NOT_NOW) or isinstance(error, ReadOnlyError | ClusterDownError | TryAgainError)
