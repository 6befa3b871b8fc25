"""Draws the reward curve of a demo as a PNG: `python -m gateway.demo.chart DEMO.json CURVE.png`.

A process of its own, and imported by nobody, because only it needs matplotlib (extra `train`).
"""

# matplotlib types its keyword arguments in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import msgspec
from matplotlib.figure import Figure

from gateway.demo.intervals import moving_average
from gateway.demo.report import AVERAGE_GROUPS, Summary


def draw(summary: Summary, target: Path) -> None:
    """One dot for each training group, their moving average, and the held-out success before and after."""
    rewards = [point.reward for point in summary.curve]
    places = list(range(1, len(rewards) + 1))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(places, rewards, "o", alpha=0.35, label="one group of episodes")
    axes.plot(places, moving_average(rewards, AVERAGE_GROUPS), linewidth=2, label=f"average of {AVERAGE_GROUPS} groups")
    for place, held_out in ((0, summary.before), (len(rewards) + 1, summary.after)):
        spread = [[held_out.mean - held_out.low], [held_out.high - held_out.mean]]
        label = "held-out success, 95 %" if place == 0 else None
        axes.errorbar([place], [held_out.mean], yerr=spread, fmt="s", color="black", capsize=4, label=label)
    axes.set(
        xlabel="training group", ylabel="mean reward", ylim=(-0.02, 1.05), title=f"{summary.model}, seed {summary.seed}"
    )
    axes.legend(loc="lower right")
    figure.savefig(target, dpi=130)


def main() -> None:
    matplotlib.use("agg")
    source, target = map(Path, sys.argv[1:])
    draw(msgspec.json.decode(source.read_bytes(), type=Summary), target)


if __name__ == "__main__":
    main()
