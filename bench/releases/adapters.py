"""Adapters that really were trained, for trials on this machine: one that learned, one that was trained to fail, and
the first at a part of its strength.

`good` and `turned` come from Hone's trainer on the task `label` of `make bench-learn`; `turned` was trained with the
sign of its reward turned, as a mistake in a reward function would. They are kept in a folder, and trained where they
are not there.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file, save_file

from bench.learning.lessons import LESSONS
from gateway.demo.show import KEPT, MARKER, Course, DemoSettings, clean_env, free_port, play_course, prepare_folder
from gateway.demo.task import Playable, Turn
from gateway.local.plan import plan_local
from gateway.local.up import local_stack
from tracker.adapters import WEIGHTS_FILE
from tracker.types import Record

LESSON = LESSONS["label"]
TURNED_STEPS = 2
"""After these it fails nearly always, and groups that have nothing but ones teach nothing more."""


class Turned(Record, frozen=True):
    """A task whose reward has its sign turned: 1 for every failure."""

    task: Playable

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def item(self) -> str:
        return self.task.item

    def job(self) -> dict[str, Any]:
        return self.task.job()

    def score(self, turns: Sequence[Turn]) -> float:
        return 1 - self.task.score(turns)


async def trained(folder: Path, seed: int, console: Console) -> dict[str, Path]:
    """The folder of each adapter, by name; what is not there yet is trained."""
    turned: Iterator[Playable] = (Turned(task) for task in LESSON.training(seed))
    wanted = {"good": (LESSON.training(seed), LESSON.num_steps), "turned": (turned, TURNED_STEPS)}
    found = {name: folder / f"{name}-{seed}" for name in wanted}
    for name, (tasks, num_steps) in wanted.items():
        if not found[name].exists():
            console.print(f"training {name} ...")
            keep(await _train(folder / "training", seed, tasks, num_steps, console), found[name])
    return found


def weakened(adapter: Path, target: Path, factor: float) -> Path:
    """What an adapter adds to the model, times a factor below 1."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(adapter, target)
    weights = load_file(target / WEIGHTS_FILE)
    scaled = {name: weight * factor if ".lora_B." in name else weight for name, weight in weights.items()}
    save_file(scaled, target / WEIGHTS_FILE, metadata={"format": "pt"})
    return target


async def _train(folder: Path, seed: int, tasks: Iterator[Playable], num_steps: int, console: Console) -> Path:
    """One training from the bare model: the folder of its last version."""
    prepare_data(folder)
    settings = DemoSettings(data_dir=folder, seed=seed, steps=num_steps)
    course = Course(program=LESSON.program, held_out=(), training=tasks)
    plan = plan_local(clean_env(os.environ, folder), prepare_folder(settings), [free_port()])
    async with local_stack(plan, lambda line: console.print(line, style="dim")) as stack:
        played = await play_course(settings, course, stack, console)
    (last,) = plan.settings.stores.adapters_dir.glob(f"*@{played.version}-*")
    return last


def prepare_data(folder: Path) -> None:
    """A data folder beside the others; the converted model is that of all."""
    models = folder.parent / KEPT
    models.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        folder.mkdir()
        (folder / MARKER).touch()
        (folder / KEPT).symlink_to(models)


def keep(version: Path, target: Path) -> None:
    """Copied aside first: a folder that is there is whole."""
    aside = target.with_suffix(".part")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(version, aside)
    aside.rename(target)
