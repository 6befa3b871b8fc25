"""A gateway and an engine on this machine, and adapters that are published to them, measured and put on trial.

Everything goes over REST, as a trainer, a driver and an administrator do it. Tasks of a trial are words that are
trained on, those of a measurement the words that are held out, at a version that is named, which is in no trial.
"""

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress

from bench.releases.adapters import LESSON, prepare_data
from gateway.client import AsyncHone
from gateway.demo.agents import Agents
from gateway.demo.driver import POLICY, Driver, evaluate, play
from gateway.demo.show import DemoSettings, ShownProgress, clean_env, free_port, prepare_folder
from gateway.demo.task import Playable
from gateway.local.plan import plan_local
from gateway.local.up import LocalStack, local_stack
from tracker.adapters import WEIGHTS_FILE
from tracker.types import Scope

RUN = "released"
GROUP = 4
"""Attempts at each task."""
AT_ONCE = 16
"""Episodes."""
MAX_EPISODES = 200
"""Of a trial, both arms together."""
LOOK_S = 0.5
PATIENCE_S = 900.0
ENDS = ("promoted", "rolled_back")
SETTINGS = f"""\
[[policies]]
name = "{POLICY}"
model = "smollm2"
[policies.release]
mode = "canary"
max_episodes = {MAX_EPISODES}
[[runs]]
run = "{RUN}"
group_size = {GROUP}
"""
Json = dict[str, Any]


class Stage:
    """What runs, and who plays."""

    def __init__(self, stack: LocalStack, driver: Driver, http: httpx.AsyncClient) -> None:
        self._stack = stack
        self._driver = driver
        self._http = http
        self._tasks: Iterator[Playable] = LESSON.training(driver.seed)
        self._num_published = 0

    async def release(self) -> Json:
        """How the versions of the policy stand."""
        return await self._ask(Scope.READ, "GET", "release")

    async def by_hand(self, what: str, version: int) -> None:
        """`promote` a version, or `rollback` to one."""
        await self._ask(Scope.ADMIN, "POST", what, {"version": version})

    async def publish(self, adapter: Path) -> int:
        """Put an adapter on trial, under a number of its own."""
        self._num_published += 1
        name = f"{adapter.name}-{self._num_published}"
        target = self._stack.plan.settings.stores.adapters_dir / name
        await asyncio.to_thread(shutil.copytree, adapter, target)
        digest = hashlib.sha256((target / WEIGHTS_FILE).read_bytes()).hexdigest()
        said = await self._ask(Scope.TRAINER, "POST", "versions", {"folder": name, "digest": digest})
        assert said["state"] == "running", said
        return int(said["version"])

    async def measured(self, name: str, version: int) -> list[float]:
        """The rewards at the words that are held out, in their order."""
        tasks = LESSON.held_out(self._driver.seed, LESSON.times)
        scores = await evaluate(self._driver, f"held-out {name}", tasks, version)
        return [fmean(scores[item]) for item in sorted(scores)]

    async def play(self, num_episodes: int) -> None:
        """Episodes that are in no trial: what a run has behind it."""
        limit = asyncio.Semaphore(AT_ONCE // GROUP)

        async def one(task: Playable) -> None:
            async with limit:
                await self._play_group(task)

        await asyncio.gather(*(one(next(self._tasks)) for _ in range(num_episodes // GROUP)))

    async def trial(self, version: int) -> Json:
        """Play until the trial of this version has ended: how, by what, and after how many episodes."""
        started = time.monotonic()
        playing: set[asyncio.Task[None]] = set()
        num_groups = 0
        async with asyncio.timeout(PATIENCE_S):
            while (await self.release())["canary"] is not None:
                while len(playing) < AT_ONCE // GROUP:
                    playing.add(asyncio.create_task(self._play_group(next(self._tasks))))
                    num_groups += 1
                done, playing = await asyncio.wait(playing, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
            await asyncio.gather(*playing)
        events = (await self.release())["events"]
        ended = next(event for event in events if event["version"] == version and event["kind"] in ENDS)
        numbers = ended["numbers"]
        told = ("mean_stable", "mean_canary", "lower", "upper", "evidence_worse", "evidence_better")
        return {
            "outcome": ended["kind"],
            "why": ended["why"],
            "episodes": numbers["num_stable"] + numbers["num_canary"],
            "canary_episodes": numbers["num_canary"],
            **{name: round(numbers[name], 4) for name in told},
            "played": num_groups * GROUP,
            "seconds": round(time.monotonic() - started, 1),
        }

    async def _play_group(self, task: Playable) -> None:
        """All attempts at once, as drivers do it."""
        async with asyncio.TaskGroup() as group:
            for number in range(GROUP):
                group.create_task(play(self._driver, RUN, task, number))

    async def _ask(self, scope: Scope, method: str, what: str, body: Json | None = None) -> Json:
        headers = {"Authorization": f"Bearer {self._stack.keys[scope]}"}
        answer = await self._http.request(method, f"/v1/policies/{POLICY}/{what}", headers=headers, json=body)
        assert answer.is_success, answer.text
        return answer.json()


@asynccontextmanager
async def open_stage(folder: Path, seed: int, console: Console) -> AsyncGenerator[Stage]:
    """Start redis, engine and gateway in a folder that is emptied first, and no trainer."""
    prepare_data(folder)
    prepare_folder(DemoSettings(data_dir=folder))
    (folder / "hone.toml").write_text(SETTINGS)
    plan = plan_local(clean_env(os.environ, folder), folder, [free_port()])
    async with (
        local_stack(plan, lambda line: console.print(line, style="dim"), trains=False) as stack,
        AsyncHone(stack.base_url, data_dir=folder) as hone,
        Agents(LESSON.program, folder / "logs" / "agents.log", AT_ONCE) as agents,
        httpx.AsyncClient(base_url=stack.base_url, timeout=PATIENCE_S) as http,
    ):
        with Progress(console=console, disable=not console.is_terminal) as progress:
            yield Stage(stack, Driver(hone, agents, ShownProgress(progress), seed), http)
