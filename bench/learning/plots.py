"""The plots of `make bench-learn`: reward by training group, and held-out success before and after."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.learning.lessons import LESSONS
from gateway.demo.intervals import moving_average
from gateway.demo.report import AVERAGE_GROUPS

Rows = Sequence[Mapping[str, Any]]
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:red")
BARS = (("before", "lightgray"), ("after", "tab:blue"), ("stock_after", "tab:brown"))
WIDTH = 0.27


def draw_curves(rows: Rows, target: Path) -> None:
    """A panel for each task: a dot for each group, a line for the moving average of each seed; stock TRL dashed."""
    tasks = [task for task in LESSONS if any(row["task"] == task for row in rows)]
    figure = Figure(figsize=(4.6 * len(tasks), 4), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for row in (row for row in rows if row["task"] == task):
            color = COLORS[row["seed"] % len(COLORS)]
            places = range(1, len(row["curve"]) + 1)
            axes.plot(places, row["curve"], ".", color=color, alpha=0.3)
            axes.plot(places, moving_average(row["curve"], AVERAGE_GROUPS), color=color, label=f"seed {row['seed']}")
            if row["stock_curve"]:
                average = moving_average(row["stock_curve"], AVERAGE_GROUPS)
                label = f"stock TRL, seed {row['seed']}"
                axes.plot(range(1, len(average) + 1), average, "--", color=color, alpha=0.8, label=label)
        axes.set(title=LESSONS[task].title, xlabel="training group", ylabel="mean reward", ylim=(-0.02, 1.02))
        axes.title.set_fontsize(9)
        axes.legend(fontsize=7, loc="lower right")
    figure.suptitle(f"Training reward, average over {AVERAGE_GROUPS} groups", fontsize=10)
    figure.savefig(target, dpi=110)


def draw_bars(rows: Rows, target: Path) -> None:
    """Held-out success of each task and seed with its 95 % interval."""
    figure = Figure(figsize=(1.2 * len(rows) + 2, 4), layout="constrained")
    axes = figure.add_subplot()
    ordered = sorted(rows, key=lambda row: (list(LESSONS).index(row["task"]), row["seed"]))
    for number, (name, color) in enumerate(BARS):
        shown = [(place, row) for place, row in enumerate(ordered) if row[name] is not None]
        if not shown:
            continue
        places = [place + (number - 1) * WIDTH for place, _ in shown]
        heights = [row[name] for _, row in shown]
        low = [row[name] - row[f"{name}_interval"][0] for _, row in shown]
        high = [row[f"{name}_interval"][1] - row[name] for _, row in shown]
        label = name.replace("stock_after", "stock TRL, after")
        axes.bar(places, heights, WIDTH, yerr=[low, high], color=color, capsize=2, label=label)
    axes.set_xticks(range(len(ordered)), [f"{row['task']}\nseed {row['seed']}" for row in ordered], fontsize=8)
    axes.set(ylabel="held-out success, 95 % interval", ylim=(0, 1.02))
    axes.legend(fontsize=8)
    figure.savefig(target, dpi=110)
