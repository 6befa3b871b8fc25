"""`hone demo`: an agent that knows nothing of Hone gets better, on this machine, from one command.

It starts redis-server, engine, gateway and trainer in a data folder of its own (wiped at each start, but for the
converted model), plays held-out tasks at version 0, lets the trainer take its steps on other tasks, plays the same
held-out tasks again, and tells what came of it. The task is in `task.py`, the playing in `driver.py`, the
figures in `report.py`; the agent is `examples/lookup_agent.py`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gateway.client import AsyncHone
from gateway.demo.agents import Agents
from gateway.demo.driver import GROUP_SIZE, GROUPS_PER_STEP, POLICY, TRAIN_RUN, Driver, Training, evaluate
from gateway.demo.report import GroupPoint, Scores, Summary, TrainingFigures, summarise, tell, to_json
from gateway.demo.task import Playable, held_out_tasks, training_tasks
from gateway.local.plan import SOURCE_ROOT, plan_local
from gateway.local.up import LocalStack, local_stack
from tracker.errors import SettingsError
from tracker.types import Record

TEMPERATURE: Final = 1.0
NUM_AT_ONCE: Final = 32
NUM_LINES: Final = 40
"""A count up to this is told one by one where there is no terminal."""
KEPT: Final = "models"
MARKER: Final = ".hone-demo"
"""Only a folder with this file, or an empty one, is ever wiped."""


class DemoSettings(Record, frozen=True):
    """What `hone demo` was asked for."""

    data_dir: Path
    model: str = "smollm2"
    seed: int = 0
    steps: int = 10
    held_out_times: int = 4
    """How often each held-out word is asked for, before and after."""
    json_path: Path | None = None


class Course(Record, frozen=True):
    """What is played: the agent, the tasks that are held out, and those to train on, without end."""

    program: tuple[str, ...]
    held_out: tuple[Playable, ...]
    training: Iterator[Playable]


class Played(Record, frozen=True):
    """What came of a course."""

    before: Scores
    after: Scores
    version: int
    """The one that was live at the end."""
    figures: TrainingFigures
    points: tuple[GroupPoint, ...]


class ShownProgress:
    """Tells the driver's progress: as bars on a terminal, else a line for each quarter of an evaluation or step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._told: set[tuple[str, int]] = set()

    def tell(self, name: str, done: int, total: int, note: str = "") -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, note="")
        self._progress.update(self._bars[name], completed=done, note=note)
        quarter = (name, done * 4 // total if total > NUM_LINES else done)
        if not self._progress.console.is_terminal and quarter not in self._told:
            self._told.add(quarter)
            self._progress.console.print(f"{name}: {done} of {total}  {note}", highlight=False, soft_wrap=True)


async def run_demo(settings: DemoSettings, env: Mapping[str, str], console: Console) -> Summary:
    """Play the whole demo; the summary is also printed, and written where it was asked for."""
    started = time.monotonic()
    course = demo_course(settings)
    cwd = prepare_folder(settings)
    plan = plan_local(clean_env(env, settings.data_dir), cwd, [free_port()])
    console.print(f"Hone demo: model {settings.model}, seed {settings.seed}, data in {settings.data_dir}")
    async with local_stack(
        plan, lambda line: console.print(line, style="dim", highlight=False, soft_wrap=True)
    ) as stack:
        played = await play_course(settings, course, stack, console)
    facts = {
        "seconds": time.monotonic() - started,
        "version": played.version,
        "model": settings.model,
        "seed": settings.seed,
        "temperature": TEMPERATURE,
    }
    summary = summarise(played.before, played.after, played.figures, played.points, facts)
    tell(summary, console)
    write_files(summary, settings, console)
    return summary


def write_files(summary: Summary, settings: DemoSettings, console: Console) -> None:
    """The figures as JSON, and beside them the curve as a PNG."""
    target = settings.json_path or settings.data_dir / "demo.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(to_json(summary))
    picture = target.with_suffix(".png")
    subprocess.run([sys.executable, "-m", "gateway.demo.chart", str(target), str(picture)], check=True, cwd=SOURCE_ROOT)
    console.print(f"\nThe figures are in {target}, the curve in {picture}.", highlight=False)


async def play_course(settings: DemoSettings, course: Course, stack: LocalStack, console: Console) -> Played:
    """Held-out tasks at version 0, the steps of the trainer on other tasks, and the held-out tasks again."""
    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with (
        AsyncHone(stack.base_url, data_dir=stack.plan.settings.stores.data_dir) as hone,
        Agents(course.program, settings.data_dir / "logs" / "agents.log", NUM_AT_ONCE) as agents,
    ):
        with Progress(
            *columns, TextColumn("{task.fields[note]}"), console=console, disable=not console.is_terminal
        ) as progress:
            driver = Driver(hone, agents, ShownProgress(progress), settings.seed)
            before = await evaluate(driver, "held-out before", course.held_out, 0)
            training = Training(driver, course.training, settings.steps)
            version = await training.run()
            after = await evaluate(driver, "held-out after", course.held_out, version)
        figures = await training_figures(hone)
    return Played(before=before, after=after, version=version, figures=figures, points=tuple(training.points))


async def training_figures(hone: AsyncHone) -> TrainingFigures:
    """What the reading endpoints say of the training run."""
    episodes = [episode async for episode in hone.episodes(run=TRAIN_RUN)]
    steps = [batch.metrics async for batch in hone.batches() if batch.state == "trained"]
    gaps = [step["gap_at_no_lag"] for step in steps if step["gap_at_no_lag"]]
    rows = sum(step["rows"] for step in steps)
    raw, merged = sum(step["raw_tokens"] for step in steps), sum(step["merged_tokens"] for step in steps)
    return TrainingFigures(
        episodes=len(episodes),
        calls=sum(episode.num_calls or 0 for episode in episodes),
        excluded=sum(episode.num_excluded or 0 for episode in episodes),
        steps=len(steps),
        trained_episodes=sum(step["episodes"] for step in steps),
        rows=rows,
        branches=sum(step["branches"] for step in steps),
        raw_tokens=raw,
        distinct_tokens=sum(step["distinct_tokens"] for step in steps),
        merge_ratio=raw / merged if merged else 1.0,
        trained_tokens=sum(step["trained_tokens"] for step in steps),
        versions=sum(step["version"] is not None for step in steps),
        lag_mean=sum(step["lag_mean"] * step["rows"] for step in steps) / rows if rows else 0.0,
        logprob_gap_mean=weighted_mean([(gap["mean"], gap["num_tokens"]) for gap in gaps]),
    )


def weighted_mean(pairs: Sequence[tuple[float, int]]) -> float | None:
    """Mean of values by their counts; None where nothing was counted."""
    num_counted = sum(count for _, count in pairs)
    return sum(value * count for value, count in pairs) / num_counted if num_counted else None


def demo_course(settings: DemoSettings) -> Course:
    """The lookup task, played by the agent of the demo, which lies in the checkout, outside of the packages."""
    script = SOURCE_ROOT / "examples" / "lookup_agent.py"
    if not script.exists():
        raise SettingsError(f"{script} is missing: `hone demo` runs from a checkout of the repository (make demo).")
    return Course(
        program=(str(script),),
        held_out=held_out_tasks(settings.seed, settings.held_out_times),
        training=training_tasks(settings.seed),
    )


def prepare_folder(settings: DemoSettings) -> Path:
    """An empty data folder with the demo's `hone.toml`; only the converted model is kept from the last time."""
    folder = settings.data_dir
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    if any(folder.iterdir()) and not marker.exists():
        raise SettingsError(f"{folder} holds something else: give `hone demo` a folder of its own with --data-dir.")
    marker.touch()
    for entry in folder.iterdir():
        if entry.name not in (KEPT, MARKER):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (folder / "hone.toml").write_text(settings_file(settings))
    return folder


def clean_env(env: Mapping[str, str], data_dir: Path) -> dict[str, str]:
    """The environment without anyone's `HONE_*`: the demo is the same wherever it runs."""
    kept = {name: value for name, value in env.items() if not name.startswith("HONE_")}
    return kept | {"HONE_DATA_DIR": str(data_dir), "HONE_PORT": str(free_port()), "HONE_BEGIN_TIMEOUT_S": "10"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings_file(settings: DemoSettings) -> str:
    """The `hone.toml` of the demo: what was tried for this task (see docs/demo.md)."""
    return f"""\
[[policies]]
name = "{POLICY}"
model = {msgspec.json.encode(settings.model).decode()}

[[runs]]
run = "{TRAIN_RUN}"
group_size = {GROUP_SIZE}
groups_per_step = {GROUPS_PER_STEP}
staleness = 2

[trainer]
max_steps = {settings.steps}
learning_rate = 5e-4
warmup_steps = 2
seed = {settings.seed}
"""
