"""Agents that call one server in a closed loop, at next to no cost; `python -m bench.traffic.agents PLAN.json OUT`.

Each agent has a connection of its own and the next call ready, and counts what comes back: how long an answer took, its
first byte, the gaps between its pieces, and whether every piece is there. A plain client library costs as much as the
gateways that are measured here; what is read of HTTP is the little that these servers send.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import uvloop

HEAD_END: Final = b"\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
DONE: Final = b"data: [DONE]"
EVENT: Final = b"data: {"


class Plan(msgspec.Struct, frozen=True):
    """What the agents do."""

    url: str
    """Where the server's `/v1` stands."""
    keys: tuple[str, ...]
    """One for each agent; repeated where there are fewer."""
    num_agents: int
    num_calls: int
    """Of each agent."""
    num_prompt: int
    """Words, which are the engine's tokens."""
    num_answer: int
    streams: bool
    first: int = 0
    """Number of the first call: an episode's calls have different prompts, also over several plans."""


class Figures(msgspec.Struct, frozen=True):
    """What the agents saw; times in milliseconds."""

    num_calls: int
    num_failed: int
    num_events: int
    """Pieces of streams that came, end marks aside."""
    seconds: float
    call_ms: tuple[float, ...]
    first_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    """A sample of the gaps between pieces."""
    failure: str = ""
    """What the first failed call was told."""


@dataclass(slots=True)
class Answer:
    """One answer as it comes in."""

    started_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_events: int = 0
    is_complete: bool = False
    status: bytes = b""
    words: bytes = b""


class Connection(asyncio.Protocol):
    """One agent's connection."""

    def __init__(self, gaps: list[float]) -> None:
        self._gaps = gaps
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._left = 0
        self._is_chunked = False
        self._in_body = False
        self._tail = b""
        self._answer = Answer(0.0)
        self._waiter: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own kind

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    async def call(self, request: bytes) -> Answer:
        """Send a request and wait for the end of its answer."""
        assert self._transport is not None
        self._head, self._in_body, self._tail = b"", False, b""
        self._waiter = asyncio.get_running_loop().create_future()
        self._answer = Answer(time.perf_counter())
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head += data
            head, found, data = self._head.partition(HEAD_END)
            if not found:
                return
            self._begin(head)
        if data:
            self._take(data)

    def _begin(self, head: bytes) -> None:
        self._in_body = True
        lines = head.lower().split(b"\r\n")
        self._answer.status = lines[0].split(b" ")[1]
        self._is_chunked = b"transfer-encoding: chunked" in lines
        length = next((line for line in lines if line.startswith(b"content-length:")), b":0")
        self._left = int(length.split(b":")[1])

    def _take(self, data: bytes) -> None:
        now_s, answer = time.perf_counter(), self._answer
        if answer.num_events:
            self._gaps.append(now_s - answer.last_s)
        answer.first_s = answer.first_s or now_s
        answer.last_s = now_s
        if not answer.words and answer.status != b"200":
            answer.words = data[:300]
        if not self._is_chunked:
            self._left -= len(data)
            answer.is_complete = self._left <= 0
        else:
            seen = self._tail + data
            answer.num_events += seen.count(EVENT) - self._tail.count(EVENT)
            self._tail = seen[-len(DONE) - len(LAST_CHUNK) - 4 :]
            answer.is_complete = seen.endswith(LAST_CHUNK)
        if answer.is_complete:
            self._end()

    def _end(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(self._answer)


def requests(plan: Plan, agent: int) -> list[bytes]:
    """Every request of one agent, ready to be sent."""
    key = plan.keys[agent % len(plan.keys)]
    parts = urlsplit(plan.url)
    head = (
        f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\n"
        f"host: {parts.netloc}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: "
    )
    made: list[bytes] = []
    for number in range(plan.first, plan.first + plan.num_calls):
        words = f"{number}" + " word" * (plan.num_prompt - 1)
        body = {"model": "solver", "messages": [{"role": "user", "content": words}], "max_tokens": plan.num_answer}
        if plan.streams:
            body["stream"] = True
        said = json.dumps(body).encode()
        made.append(f"{head}{len(said)}\r\n\r\n".encode() + said)
    return made


async def play(plan: Plan) -> Figures:
    """All agents side by side."""
    parts = urlsplit(plan.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    gaps: list[float] = []
    made = [requests(plan, agent) for agent in range(plan.num_agents)]
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    for _ in range(plan.num_agents):
        _, connection = await loop.create_connection(lambda: Connection(gaps), host, port)
        connections.append(connection)
    began_s = time.perf_counter()
    played = await asyncio.gather(*(_agent(*one) for one in zip(connections, made, strict=True)))
    seconds = time.perf_counter() - began_s
    answers = [answer for one in played for answer in one]
    good = [answer for answer in answers if answer.status == b"200" and answer.is_complete]
    bad = next((answer for answer in answers if answer not in good), None)
    return Figures(
        num_calls=len(answers),
        num_failed=len(answers) - len(good),
        num_events=sum(answer.num_events for answer in good),
        seconds=seconds,
        call_ms=tuple(1000 * (answer.last_s - answer.started_s) for answer in good),
        first_ms=tuple(1000 * (answer.first_s - answer.started_s) for answer in good),
        gap_ms=tuple(1000 * gap for gap in gaps[:: max(1, len(gaps) // 20_000)]),
        failure="" if bad is None else f"{bad.status.decode()} {bad.words.decode(errors='replace')}",
    )


async def _agent(connection: Connection, made: list[bytes]) -> list[Answer]:
    answers: list[Answer] = []
    for request in made:
        answers.append(await connection.call(request))
        if not answers[-1].is_complete:
            break  # its connection is gone
    connection.close()
    return answers


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(uvloop.run(play(plan))))


if __name__ == "__main__":
    main()
