"""The scripted load: drivers that open episodes in groups, agents that call in them, rewards, and what all of them saw.

Everything is HTTP, sent to the gateways in turn as a load balancer would: one that cannot be connected to is passed
over. Calls are tried again as OpenAI's SDK does it (a retry count, `Retry-After`, never after a stream has begun); an
agent whose SDK gave up asks the same anew, as agents do. What an episode is like (how many turns, streamed or whole,
one agent or two at once, which rewards) follows from its number. Only what was read to its end counts as answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.faulting.verdict import Accepted, Answered, Seen

Json = dict[str, Any]
POLICY = "solver"
GROUP_SIZE = 8
SDK_RETRIES = 2
PATIENCE_S = 90.0
"""How long an agent or a driver goes on asking."""
REPLY_S = 30.0
FAILED = (aiohttp.ClientError, TimeoutError, OSError)


class Refused(Exception):
    """An answer that no retry changes."""


class Failed(Exception):
    """The SDK gave up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in one episode."""

    number: int

    @property
    def num_turns(self) -> int:
        return 1 + self.number % 3

    @property
    def num_agents(self) -> int:
        return 2 if self.number % 4 == 3 else 1

    @property
    def rewards_call(self) -> bool:
        return self.number % 4 == 1

    @property
    def is_keyed(self) -> bool:
        """Whether its rewards have idempotency keys."""
        return self.number % 2 == 0

    @property
    def value(self) -> float:
        """Differs within every group, so that it can be trained."""
        return float(self.number % GROUP_SIZE < GROUP_SIZE // 2)

    def streams(self, turn: int) -> bool:
        return (self.number + turn) % 2 == 0


class Load:
    """Plays episodes through gateways that may fail; `seen` says what came back."""

    def __init__(self, urls: Sequence[str], key: str, http: aiohttp.ClientSession, run: str) -> None:
        self.urls = list(urls)
        self.seen = Seen()
        self._key = key
        self._http = http
        self._run = run
        self._turn = 0
        self._chance = random.Random(run)

    async def play(self, num_episodes: int, num_at_once: int) -> None:
        """All episodes, so many at a time, in the order of their numbers."""
        slots = asyncio.Semaphore(num_at_once)
        async with asyncio.TaskGroup() as playing:
            for number in range(num_episodes):
                await slots.acquire()
                playing.create_task(self._episode(Plan(number))).add_done_callback(lambda _: slots.release())

    async def episode_id(self, number: int) -> str:
        """Open an episode; the same number is the same episode."""
        body = {"task": f"{self._run}/{number // GROUP_SIZE}", "run": self._run}
        told = await self._send("/v1/episodes", {**body, "idempotency_key": f"{self._run}:{number}"})
        return str(told["episode_id"])

    async def ask(self, episode_id: str, messages: Sequence[Json], *, streams: bool) -> Answered:
        """One model call, as an agent's SDK makes it; raises `Failed` or `Refused`."""
        body = {"model": POLICY, "messages": list(messages), "stream": streams}
        for attempt in range(SDK_RETRIES + 1):
            pause_s = min(8.0, 0.5 * 2**attempt) * self._chance.uniform(0.75, 1.0)
            try:
                headers = {"X-Hone-Episode": episode_id, "x-stainless-retry-count": str(attempt)}
                async with self._post("/v1/chat/completions", body, headers) as response:
                    if response.status == 200:
                        return await _read(response, episode_id, streams)
                    pause_s = _pause_of(response, pause_s, await response.text())
            except FAILED as error:
                if isinstance(error, _CutStream):
                    raise Failed(str(error)) from error
            self.seen.num_retries += 1
            await asyncio.sleep(pause_s)
        raise Failed("the SDK's retries are used up")

    async def _episode(self, plan: Plan) -> None:
        try:
            episode_id = await self.episode_id(plan.number)
            self.seen.episodes[plan.number] = episode_id
            calls = await asyncio.gather(*(self._agent(plan, episode_id, agent) for agent in range(plan.num_agents)))
            if plan.rewards_call and calls[0]:
                await self._reward(plan, "call", {"call_id": calls[0][0]})
            await self._reward(plan, "final", {"episode_id": episode_id})
        except (Refused, TimeoutError) as error:
            self.seen.given_up.append(f"episode {plan.number}: {error!r}")
        finally:
            self.seen.num_done += 1

    async def _agent(self, plan: Plan, episode_id: str, agent: int) -> list[str]:
        """One conversation; the ids of its answers."""
        messages: list[Json] = [{"role": "user", "content": f"{self._run} {plan.number}: I am agent {agent}."}]
        calls: list[str] = []
        for turn in range(plan.num_turns):
            answered = await self._until_answered(episode_id, messages, streams=plan.streams(turn))
            calls.append(answered.call_id)
            messages += [{"role": "assistant", "content": answered.text}, {"role": "user", "content": f"Go on: {turn}"}]
        return calls

    async def _until_answered(self, episode_id: str, messages: Sequence[Json], *, streams: bool) -> Answered:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answered = await self.ask(episode_id, messages, streams=streams)
                except Failed:
                    self.seen.num_errors += 1
                    await asyncio.sleep(self._chance.uniform(0.1, 0.5))
                else:
                    self.seen.answered.append(answered)
                    return answered

    async def _reward(self, plan: Plan, name: str, target: Json) -> None:
        """One reward, sent until it is accepted. With a key it is one however often it is sent; without, each attempt
        has a name of its own, so that what was stored of them can be told apart."""
        for attempt in range(10_000):
            nonce = f"{self._run}:{plan.number}:{name}" + ("" if plan.is_keyed else f":{attempt}")
            body = {**target, "name": name, "reward": plan.value, "metadata": {"nonce": nonce}}
            if plan.is_keyed:
                body["idempotency_key"] = nonce
                self.seen.keyed.add(nonce)
            try:
                told = await self._once("/v1/reward", body)
            except Failed:
                self.seen.refused.append(nonce)
                await asyncio.sleep(self._chance.uniform(0.3, 0.7))
                if attempt * 0.5 > PATIENCE_S:
                    raise TimeoutError("a reward was not accepted") from None
            else:
                self.seen.accepted.append(Accepted(told["reward_id"], nonce))
                return

    async def _send(self, path: str, body: Json) -> Json:
        """A request that may be repeated, until it is answered."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self._once(path, body)
            except Failed:
                if time.monotonic() > until:
                    raise TimeoutError(path) from None
                await asyncio.sleep(self._chance.uniform(0.3, 0.7))

    async def _once(self, path: str, body: Json) -> Json:
        """One request of a driver; `Failed` where it may work later."""
        try:
            async with self._post(path, body, {}) as response:
                if response.status < 300:
                    return dict(await response.json())
                _pause_of(response, 0.0, await response.text())
        except FAILED as error:
            raise Failed(repr(error)) from error
        raise Failed(path)

    @asynccontextmanager
    async def _post(self, path: str, body: Json, headers: Mapping[str, str]) -> AsyncGenerator[aiohttp.ClientResponse]:
        """To the next gateway that can be connected to."""
        self._turn += 1
        sent = {"Authorization": f"Bearer {self._key}", **headers}
        for left in reversed(range(len(self.urls))):
            url = self.urls[(self._turn + left) % len(self.urls)]
            asking = self._http.post(url + path, json=body, headers=sent, timeout=aiohttp.ClientTimeout(total=REPLY_S))
            try:
                response = await asking
            except aiohttp.ClientConnectorError:
                if not left:
                    raise
            else:
                async with response:
                    yield response
                return


class _CutStream(aiohttp.ClientError):
    """A stream that began and did not come to its end."""


def _pause_of(response: aiohttp.ClientResponse, otherwise_s: float, said: str) -> float:
    """How long to wait before the next attempt; raises `Refused` where there is none."""
    if response.headers.get("x-should-retry") == "false":
        raise Refused(f"{response.status}: {said[:300]}")
    if response.status in (408, 409, 429) or response.status >= 500:
        return float(response.headers.get("retry-after", otherwise_s))
    raise Refused(f"{response.status}: {said[:300]}")


async def _read(response: aiohttp.ClientResponse, episode_id: str, streams: bool) -> Answered:
    """The answer, read to its end."""
    call_id = response.headers["x-hone-call"]
    if not streams:
        told = await response.json()
        return Answered(call_id, episode_id, told["choices"][0]["message"]["content"])
    try:
        return Answered(call_id, episode_id, _text_of(await response.read()))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _CutStream(repr(error)) from error


def _text_of(raw: bytes) -> str:
    """What a stream said; raises `_CutStream` unless it has a finish reason and its end mark, and no error."""
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    if not events or events.pop() != b"[DONE]":
        raise _CutStream("no end mark")
    told = [json.loads(event) for event in events]
    choices = [event["choices"][0] for event in told if event.get("choices")]
    if any("error" in event for event in told) or not any(choice["finish_reason"] for choice in choices):
        raise _CutStream("an error event")
    return "".join(choice["delta"].get("content") or "" for choice in choices)
