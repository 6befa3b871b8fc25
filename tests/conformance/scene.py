"""What one rule works with: an own corner of gateway and engine, so that rules can run side by side.

Every question of a rule holds words that no other rule uses; the engine's scripts are kept for those words.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from tests.conformance.forms import CHAT, Answered, Form, Json
from tests.conformance.gateway import Engine, Gateway, Received
from tests.fakes.scripted_answers import Answer, Script

T = TypeVar("T")
END, SEP = 99, 98


class NotApplicable(Exception):
    """The gateway has no such thing."""


@dataclass(frozen=True, slots=True)
class Episode:
    """An open episode; of a gateway that has none, just the key to call with."""

    api_key: str
    episode_id: str = ""
    group_id: str | None = None
    said: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scene:
    """Gateway, engine and the words of one rule."""

    gateway: Gateway
    engine: Engine
    tag: str = field(default_factory=lambda: f"tag{secrets.token_hex(6)}z")

    # episodes

    async def open(self, task: str | None = None, **fields: Any) -> Episode:
        if "episodes" not in self.gateway.capabilities:
            return Episode(self.gateway.keys.agent)
        body = {"task": task or self.tag, **fields}
        answered = await self.gateway.send("POST", "/v1/episodes", body, key=self.gateway.keys.agent)
        assert answered.status in (200, 201), (answered.status, answered.raw)
        said = answered.json
        return Episode(said["api_key"], said["episode_id"], said["group_id"], said)

    async def run(self, **settings: Any) -> str:
        """A run of this rule's own with these settings; its name."""
        name = f"run-{secrets.token_hex(6)}"
        await self.admin("POST", "/v1/runs", {"run": name, "mode": "train", **settings})
        return name

    # the engine

    def words(self, about: str = "") -> str:
        return f"{self.tag}-{about}" if about else self.tag

    async def answers(self, *scripts: Script, about: str = "", gate: str | None = None) -> None:
        """What requests with this rule's words get, in order; the last stays."""
        await self.engine.script(self.words(about), scripts, f"{self.tag}-{gate}" if gate else None)

    async def release(self, gate: str) -> None:
        await self.engine.open_gate(f"{self.tag}-{gate}")

    async def received(self, about: str = "") -> list[Received]:
        """The completion requests with this rule's words, as the engine got them."""
        return [one for one in await self.engine.received(self.words(about)) if one.path.endswith("completions")]

    async def sent(self, about: str = "") -> Json:
        """The body of the one request with these words."""
        received = await self.received(about)
        assert len(received) == 1, f"the engine got {len(received)} requests"
        return received[0].body

    # the agent

    async def ask(
        self,
        episode: Episode,
        form: Form = CHAT,
        about: str = "",
        *,
        headers: dict[str, str] | None = None,
        path: str | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> Answered:
        """Put one question; `fields` stand over the dialect's own."""
        body = {"model": self.gateway.model, **form.body(f"{self.words(about)} hi", **fields)}
        return await self.gateway.send("POST", path or form.path, body, key=key or episode.api_key, **(headers or {}))

    async def converse(self, episode: Episode, *turns: Script, form: Form = CHAT) -> list[Answered]:
        """Put one question for each of these answers, and get them all."""
        answered = []
        for number, script in enumerate(turns):
            await self.answers(script, about=f"turn{number}z")
            one = await self.ask(episode, form, f"turn{number}z")
            assert one.status == 200, (one.status, one.raw)
            answered.append(one)
        return answered

    @asynccontextmanager
    async def stream(
        self, episode: Episode, form: Form = CHAT, about: str = "", **fields: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A streamed answer to be read piece by piece, over a connection of its own."""
        body = {"model": self.gateway.model, **form.body(f"{self.words(about)} hi", stream=True, **fields)}
        headers = {"Authorization": f"Bearer {episode.api_key}"}
        async with (
            aiohttp.ClientSession() as client,
            client.post(self.gateway.url + form.path, json=body, headers=headers) as response,
        ):
            yield response

    # what the gateway tells

    async def samples(self, episode: Episode) -> Json:
        return await self.read(f"/v1/episodes/{episode.episode_id}/samples")

    async def calls(self, episode: Episode) -> list[Json]:
        return (await self.read(f"/v1/episodes/{episode.episode_id}/timeline"))["calls"]

    async def only_call(self, episode: Episode) -> Json:
        """The episode's one call, once it is recorded."""

        async def recorded() -> list[Json]:
            return await self.calls(episode)

        (call,) = await self.until(recorded)
        return call

    async def told(self, episode: Episode) -> Json:
        return await self.read(f"/v1/episodes/{episode.episode_id}")

    async def read(self, path: str) -> Any:
        answered = await self.gateway.send("GET", path, key=self.gateway.keys.read)
        assert answered.status == 200, (path, answered.status, answered.raw)
        return answered.json

    async def admin(self, method: str, path: str, body: Json | bytes | None = None) -> Any:
        answered = await self.gateway.send(method, path, body, key=self.gateway.keys.admin)
        assert answered.status < 300, (path, answered.status, answered.raw)
        return answered.json

    async def send_reward(self, body: Json | bytes, key: str | None = None) -> Answered:
        return await self.gateway.send("POST", "/v1/reward", body, key=key or self.gateway.keys.reward)

    async def reward(self, episode: Episode, value: object, **fields: Any) -> Json:
        answered = await self.send_reward({"episode_id": episode.episode_id, "reward": value, **fields})
        assert answered.status in (200, 201), (answered.status, answered.raw)
        return answered.json

    async def until(self, ask: Callable[[], Awaitable[T]], timeout_s: float = 15.0) -> T:
        """The first answer that is true."""
        until_s = time.monotonic() + timeout_s
        while not (answer := await ask()):
            if time.monotonic() > until_s:
                raise AssertionError(f"after {timeout_s:g} s still {answer!r}")
            await asyncio.sleep(0.03)
        return answer


def turn(prompt: list[int], sampled: list[int], finish: str = "stop", logprobs: list[float] | None = None) -> Script:
    """An answer by its ids."""
    return Script(prompt_ids=prompt, choices=(Answer(ids=sampled, logprobs=logprobs, finish_reason=finish),))


def rows(samples: Json) -> list[tuple[list[int], list[int]]]:
    """(ids, mask) of each row, in order."""
    return sorted((sample["input_ids"], sample["loss_mask"]) for sample in samples["samples"])


def trained(samples: Json) -> list[int]:
    """The ids of every trained token."""
    return [
        i
        for sample in samples["samples"]
        for i, mask in zip(sample["input_ids"], sample["loss_mask"], strict=True)
        if mask
    ]


def reasons(samples: Json) -> list[str]:
    return [excluded["reason"] for excluded in samples["excluded"]]
