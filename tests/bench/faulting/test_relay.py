"""The relay passes bytes on, and does to connections what it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.faulting.relay import Relay, relay_to


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(100):
            writer.write(data)
    finally:
        writer.close()


@asynccontextmanager
async def before_an_echo() -> AsyncIterator[Relay]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, relay_to(server.sockets[0].getsockname()[1]) as relay:
        yield relay


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    async with asyncio.timeout(30):
        return await reader.read(100)


async def test_bytes_pass_until_it_cuts_and_again_when_it_joins():
    async with before_an_echo() as relay:
        one = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await said(*one, b"hi") == b"hi"
        relay.cut()
        with pytest.raises(ConnectionResetError):
            await said(*one, b"lost")
        two = await asyncio.open_connection("127.0.0.1", relay.port)
        with contextlib.suppress(ConnectionResetError):  # the reset may be quicker than the bytes
            assert await said(*two, b"lost too") == b""
        relay.join()
        three = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await said(*three, b"again") == b"again"
        for _, writer in (one, two, three):
            writer.close()


async def test_a_connection_that_was_swallowed_stays_silent_and_new_ones_speak():
    async with before_an_echo() as relay:
        old = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await said(*old, b"hi") == b"hi"
        relay.swallow()
        relay.join()
        new = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await said(*new, b"ho") == b"ho"
        old[1].write(b"is anybody there")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(old[0].read(1), 0.05)
        for _, writer in (old, new):
            writer.close()
