"""One connection takes no more than its limits: heads, slow senders, clients that do not read, too many of them."""

from __future__ import annotations

import asyncio
import pickle
import socket
from functools import partial
from typing import Any

import pytest

from gateway.connections import SURPLUS, ConnectionLimits, HttpProtocol
from tests.fakes.running import until
from tests.security.wire import HOST, PATIENCE_S, error_of, exchange, running, served, until_closed

pytestmark = pytest.mark.slow
QUICK = ConnectionLimits(header_timeout_s=0.12, write_timeout_s=0.2)
GET = b"GET / HTTP/1.1\r\n" + HOST


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading the body."""
    client = scope["client"][0].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(client))]})
    await send({"type": "http.response.body", "body": client})


# the head


@pytest.mark.parametrize(
    "head",
    [
        GET + b"".join(b"x-%d: y\r\n" % k for k in range(201)) + b"\r\n",
        GET + b"".join(b"x-%d: " % k + b"y" * 1000 + b"\r\n" for k in range(70)) + b"\r\n",
        GET + b"x: " + b"y" * 66_000 + b"\r\n\r\n",
        GET + b"x" * 66_000 + b": y\r\n\r\n",
    ],
    ids=["too many", "too large together", "one large value", "one large name"],
)
async def test_a_head_over_its_limits_is_refused_by_name_and_the_connection_closed(head: bytes) -> None:
    async with served(hello) as port:
        status, error = error_of(await exchange(port, head))
    assert (status, error["code"]) == (431, "headers_too_large")
    assert "HONE_MAX_HEADERS" in error["message"]


async def test_a_head_without_end_is_refused_before_it_fills_memory() -> None:
    async with served(hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"x: ")
        num_sent = 0
        try:
            while not reader.at_eof() and num_sent < 2**24:
                writer.write(b"y" * 8192)
                num_sent += 8192
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
    assert num_sent < 2**24


async def test_a_head_as_large_as_agents_send_is_served() -> None:
    head = GET + b"".join(b"x-%d: " % k + b"y" * 400 + b"\r\n" for k in range(100)) + b"Connection: close\r\n\r\n"
    async with served(hello) as port:
        assert (await exchange(port, *(head[k : k + 5000] for k in range(0, len(head), 5000)))).startswith(
            b"HTTP/1.1 200"
        )


# slow senders


async def test_a_head_in_drips_is_given_up() -> None:
    async with served(hello, QUICK) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        read = asyncio.create_task(until_closed(reader))
        while not read.done():
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.01)
        writer.close()
    status, error = error_of(read.result())
    assert (status, error["code"]) == (408, "header_timeout")


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with served(hello, QUICK) as port:
        assert await exchange(port) == b""


@pytest.mark.parametrize("between", [b"\r\n", b"G"], ids=["empty lines", "the first letter of a request"])
async def test_after_an_answer_bytes_that_are_no_request_do_not_keep_the_connection(between: bytes) -> None:
    async with served(hello, QUICK) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n")
        assert (await reader.readuntil(b"127.0.0.1")).startswith(b"HTTP/1.1 200")
        writer.write(between)
        told = await until_closed(reader)
        writer.close()
    assert told.startswith(b"HTTP/1.1 408")


async def test_a_body_that_nobody_waits_for_any_more_does_not_keep_the_connection() -> None:
    async with served(hello, QUICK) as port:
        head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert (await reader.readuntil(b"127.0.0.1")).startswith(b"HTTP/1.1 200")
        read = asyncio.create_task(until_closed(reader))
        while not read.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        writer.close()


async def test_the_head_of_a_next_request_may_wait_for_the_answer_to_the_one_before() -> None:
    release = asyncio.Event()
    looked = asyncio.Event()

    async def patient(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await hello(scope, receive, send)

    async with served(patient, QUICK) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n" + b"GET /second HTTP/1.1\r\n")
        asyncio.get_running_loop().call_later(4 * QUICK.header_timeout_s, looked.set)
        await looked.wait()
        release.set()
        writer.write(HOST + b"Connection: close\r\n\r\n")
        answers = await until_closed(reader)
        writer.close()
    assert answers.count(b"HTTP/1.1 200") == 2


# clients that do not read


async def test_a_client_that_does_not_read_its_stream_is_cut_off_and_the_application_is_told() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        left = asyncio.create_task(receive())
        while not left.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        told.set_result(left.result()["type"])

    async with served(endless, QUICK) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(GET + b"\r\n")
            assert await asyncio.wait_for(told, PATIENCE_S) == "http.disconnect"


async def test_an_answer_that_nobody_fetches_does_not_keep_a_closed_connection() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"16777216"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * 2**24})

    async with running(large, QUICK) as (port, connections):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(GET + b"\r\n")
            await until(lambda: connections)
            await until(lambda: not connections)


# too many


async def test_connections_beyond_the_limit_are_told_so_and_those_before_are_served() -> None:
    async with served(hello, ConnectionLimits(max_connections=1)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"127.0.0.1")
        status, error = error_of(await exchange(port, GET + b"\r\n"))
        assert (status, error["code"]) == (503, "too_many_connections")
        messages = await exchange(port, b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b'"type":"error"' in messages
        assert b"retry-after: 2" in messages
        writer.write(GET + b"Connection: close\r\n\r\n")
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await exchange(port, GET + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_far_beyond_the_limit_nobody_is_heard() -> None:
    async with served(hello, ConnectionLimits(max_connections=1)) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SURPLUS + 1)]
        assert await exchange(port) == b""
        for _, writer in opened:
            writer.close()


def test_several_workers_get_the_same_limits() -> None:
    """Each is handed the server's options as a pickle."""
    made = pickle.loads(pickle.dumps(partial(HttpProtocol, limits=QUICK)))
    assert made.keywords == {"limits": QUICK}


# who speaks


FORWARDED = b"X-Forwarded-For: 6.6.6.6, 203.0.113.9\r\nX-Forwarded-Proto: https\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(("trusted", "seen"), [((), b"127.0.0.1"), (("127.0.0.0/8",), b"203.0.113.9")])
async def test_a_forwarded_address_is_believed_from_trusted_proxies_alone(
    trusted: tuple[str, ...], seen: bytes
) -> None:
    async with served(hello, ConnectionLimits(trusted_proxies=trusted)) as port:
        assert (await exchange(port, GET + FORWARDED)).endswith(b"\r\n\r\n" + seen)
