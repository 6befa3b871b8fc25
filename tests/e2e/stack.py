"""Hone as `hone up` runs it, over a tiny model, and a driver that plays and scores without end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from gateway.client import Client
from gateway.local.plan import plan_local
from gateway.local.up import LocalStack, local_stack
from tracker.types import Scope

RUN = "loop"
POLICY = "solver"
GROUP_SIZE = 2
Json = dict[str, Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_settings(folder: Path, model: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hone.toml").write_text(f"""
sweep_interval_s = 0.1
poll_interval_s = 0.5

[[policies]]
name = "{POLICY}"
model = "{model}"

[[runs]]
run = "{RUN}"
group_size = {GROUP_SIZE}
groups_per_step = 2
group_timeout_s = 20
reward_grace_s = 10

[engine]
dtype = "float32"

[vllm]
dtype = "float32"
max_model_len = 1024

[trainer]
dtype = "float32"
learning_rate = 1e-2
warmup_steps = 0
""")


@contextlib.asynccontextmanager
async def running_stack(folder: Path, model: Path, **more: str) -> AsyncIterator[LocalStack]:
    """Everything up, in a folder of its own and on free ports; what the children said is printed at the end."""
    write_settings(folder, model)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    env |= {
        "HONE_DATA_DIR": str(folder / "data"),
        "HONE_PORT": str(free_port()),
        "OMP_NUM_THREADS": "2",
        "HONE_BEGIN_TIMEOUT_S": "10",
        **more,
    }
    try:
        async with local_stack(plan_local(env, folder, [free_port()]), print) as stack:
            yield stack
    finally:
        for log in sorted((folder / "data" / "logs").glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")


@dataclass
class Player:
    """Plays groups of two-call episodes; the first member wins, the others lose, so every group can be trained."""

    stack: LocalStack
    starter: Client
    scorer: Client
    reader: Client
    http: httpx.AsyncClient
    episodes: list[str] = field(default_factory=list)
    num_groups: int = 0

    async def group(self) -> None:
        """One group, all members at once."""
        self.num_groups += 1
        task = f"task-{self.num_groups}"
        await asyncio.gather(*(self.episode(task, number) for number in range(GROUP_SIZE)))

    async def episode(self, task: str, number: int) -> str:
        """One episode. A call that was refused for good ends the conversation, as it would an agent's."""
        episode = await self.starter.start_episode(task, run=RUN, idempotency_key=f"{task}-{number}")
        self.episodes.append(episode["episode_id"])
        messages: list[Any] = [{"role": "user", "content": f"{task}: count to three"}]
        with contextlib.suppress(openai.APIError):
            for _ in range(2):
                answer = await self.ask(episode["env"], messages)
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
        await self.scorer.reward(episode["episode_id"], float(number == 0), idempotency_key=f"{task}-{number}")
        return str(episode["episode_id"])

    async def ask(self, env: Json, messages: Sequence[Any]) -> str:
        client = openai.AsyncOpenAI(
            base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], http_client=self.http, max_retries=3
        )
        answer = await client.chat.completions.create(model=POLICY, messages=list(messages), max_tokens=12)
        return answer.choices[0].message.content or ""

    async def active(self) -> int:
        return next(int(item["active"]) for item in await self.reader.policies() if item["policy"] == POLICY)

    async def until_version(self, version: int, timeout_s: float = 600) -> None:
        """Play until this version is live."""
        async with asyncio.timeout(timeout_s):
            while await self.active() < version:
                await self.group()

    async def batches(self) -> list[Json]:
        """Oldest first."""
        return [batch async for batch in self.reader.batches()][::-1]


@contextlib.asynccontextmanager
async def player(stack: LocalStack) -> AsyncIterator[Player]:
    async with (
        stack.client(Scope.AGENT) as starter,
        stack.client(Scope.REWARD) as scorer,
        stack.client(Scope.ADMIN) as reader,
        httpx.AsyncClient(timeout=120) as http,
    ):
        yield Player(stack, starter, scorer, reader, http)


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float = 180, every_s: float = 0.02) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(timeout_s):
        while not await holds():
            await asyncio.sleep(every_s)
