"""One task and seed through the whole of Hone: `python -m bench.learning.ours TASK SEED FILE`.

As in the demo: Redis, engine, gateway and trainer are started in a folder of their own, the agent plays held-out tasks
at version 0, then tasks to train on, then the held-out ones again. FILE gets the scores by word, as JSON.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.learning.lessons import LESSONS, Lesson
from gateway.client import Client
from gateway.demo.driver import TRAIN_RUN
from gateway.demo.report import Scores, solved
from gateway.demo.show import (
    KEPT,
    MARKER,
    Course,
    DemoSettings,
    Played,
    clean_env,
    free_port,
    play_course,
    prepare_folder,
)
from gateway.local.plan import plan_local
from gateway.local.up import local_stack
from tracker.types import Scope

DATA = Path(".hone/learn/data").resolve()
MODELS = DATA.parent / "models"
"""The converted model, shared by all runs."""


async def play(lesson: Lesson, seed: int) -> dict[str, Any]:
    """The whole way of one seed."""
    started = time.monotonic()
    folder = data_folder(lesson.name, seed)
    settings = DemoSettings(data_dir=folder, seed=seed, steps=lesson.num_steps, held_out_times=lesson.times)
    course = Course(
        program=lesson.program, held_out=lesson.held_out(seed, lesson.times), training=lesson.training(seed)
    )
    plan = plan_local(clean_env(os.environ, settings.data_dir), prepare_folder(settings), [free_port()])
    console = Console()
    async with local_stack(plan, lambda line: console.print(line, style="dim")) as stack:
        played = await play_course(settings, course, stack, console)
        async with stack.client(Scope.ADMIN) as reader:
            tokens = await num_sampled_tokens(reader)
    return {"task": lesson.name, "seed": seed, "sampled_tokens": tokens} | told(played, time.monotonic() - started)


def data_folder(task: str, seed: int) -> Path:
    """A folder of its own, so that runs can go on beside each other; the model in it is that of all."""
    folder = DATA / f"{task}-{seed}"
    MODELS.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        (folder / KEPT).symlink_to(MODELS)
    return folder


async def num_sampled_tokens(reader: Client) -> int:
    """Of all calls of the training run, whether they were trained or not."""
    total = 0
    async for episode in reader.episodes(TRAIN_RUN):
        timeline = await reader.timeline(episode["episode_id"])
        total += sum(choice["num_sampled_ids"] for call in timeline["calls"] for choice in call["choices"])
    return total


def told(played: Played, seconds: float) -> dict[str, Any]:
    figures = played.figures
    return {
        "before": by_word(played.before),
        "after": by_word(played.after),
        "curve": [{"reward": point.reward, "solved": point.solved} for point in played.points],
        "steps": figures.steps,
        "versions": figures.versions,
        "episodes": figures.episodes,
        "trained_episodes": figures.trained_episodes,
        "trained_tokens": figures.trained_tokens,
        "lag_mean": figures.lag_mean,
        "logprob_gap_mean": figures.logprob_gap_mean,
        "seconds": round(seconds, 1),
    }


def by_word(scores: Scores) -> dict[str, list[float]]:
    return {item: list(values) for item, values in sorted(solved(scores).items())}


def main() -> None:
    task, seed, target = sys.argv[1:]
    Path(target).write_text(json.dumps(asyncio.run(play(LESSONS[task], int(seed)))) + "\n")


if __name__ == "__main__":
    main()
