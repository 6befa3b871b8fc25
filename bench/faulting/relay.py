"""A small TCP proxy that a bench puts before a server, to do to the network what networks do.

Bytes pass as they come until they are told otherwise. `cut` resets every connection and goes on resetting new ones;
`swallow` takes whatever is sent and gives it to nobody, as a firewall that has forgotten a connection does: those
connections stay silent also after `join`, only new ones work. `slow` holds each piece back. Nothing is ever changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 2**16


class Mode(enum.Enum):
    """What becomes of connections and bytes."""

    PASS = "pass"
    CUT = "cut"
    SWALLOW = "swallow"


class _Line:
    """One connection through the relay, both ways."""

    def __init__(self, writers: list[asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.is_silent = False

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Relay:
    """Listens on a port of its own and passes on to one server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode = Mode.PASS
        self._delay_s = 0.0
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Reset everything, now and until `join`."""
        self._mode = Mode.CUT
        for line in list(self._lines):
            line.reset()

    def swallow(self) -> None:
        """Pass nothing on; what is connected now never hears of anything again."""
        self._mode = Mode.SWALLOW
        for line in self._lines:
            line.is_silent = True

    def slow(self, delay_s: float) -> None:
        """Hold every piece back for this long."""
        self._delay_s = delay_s

    def join(self) -> None:
        """The network is whole again: new connections work, and quickly."""
        self._mode = Mode.PASS
        self._delay_s = 0.0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            return  # one side is gone, or the bench ends
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is Mode.CUT:
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        line = _Line([writer, far_writer])
        line.is_silent = self._mode is Mode.SWALLOW
        self._lines.add(line)
        pumps = [
            asyncio.ensure_future(self._pump(line, reader, far_writer)),
            asyncio.ensure_future(self._pump(line, far_reader, writer)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._lines.discard(line)
            far_writer.transport.abort()

    async def _pump(self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one direction on to its end. Of a silent line even the end is not told."""
        while data := await reader.read(CHUNK_BYTES):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if not line.is_silent:
                writer.write(data)
                await writer.drain()
        if not line.is_silent and writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    """A relay before a port of this machine."""
    relay = Relay("127.0.0.1", port)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.close()
