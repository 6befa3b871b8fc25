"""What `hone demo` tells at its end: a table, a curve for the terminal, and the same figures as JSON.

Every figure is computed here from what was played and from what the gateway's reading endpoints said; nothing is
estimated. The curve as PNG is drawn by `chart.py` from the JSON, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from gateway.demo.intervals import Interval, Scores, gain_interval, mean_interval, moving_average
from tracker.types import Record

CURVE_HEIGHT: Final = 11
CURVE_WIDTH: Final = 72
AVERAGE_GROUPS: Final = 8
"""Width of the moving average: the groups of two steps."""
__all__ = ["Evaluation", "GroupPoint", "Scores", "Summary", "TrainingFigures", "curve", "summarise", "tell"]


class GroupPoint(Record, frozen=True):
    """One group that was played for training."""

    version: int
    """The version that was live when it began."""
    reward: float
    solved: float
    """The share of its episodes with the full reward."""


class Evaluation(Record, frozen=True, omit_defaults=False):
    """Held-out success: the share of episodes with the full reward."""

    mean: float
    low: float
    high: float
    n: int
    """Episodes."""
    reward: float
    """The mean reward, which also counts half successes."""


class TrainingFigures(Record, frozen=True, omit_defaults=False):
    """What became of the calls of the training run."""

    episodes: int
    calls: int
    excluded: int
    steps: int
    trained_episodes: int
    """Episodes of the groups that were trained; a group whose scores are all equal teaches nothing and is skipped."""
    rows: int
    """Choices of calls that the loss saw."""
    branches: int
    """The sequences these were merged into."""
    raw_tokens: int
    """What the rows would cost one by one."""
    distinct_tokens: int
    """What they cost when each prefix is run once."""
    merge_ratio: float
    """Raw tokens to tokens of merged branches."""
    trained_tokens: int
    versions: int
    lag_mean: float
    """How many versions a trained call was behind, on average over steps."""
    logprob_gap_mean: float | None
    """Mean |trainer's - engine's log-probability| of the tokens trained at zero lag."""


class Summary(Record, frozen=True, omit_defaults=False):
    """The file that `hone demo --json` writes."""

    before: Evaluation
    after: Evaluation
    gain: Interval
    seconds: float
    version: int
    """The one that was live at the end."""
    versions: int
    calls: int
    rows: int
    raw_tokens: int
    distinct_tokens: int
    logprob_gap_mean: float | None
    training: TrainingFigures
    model: str
    seed: int
    temperature: float
    curve: tuple[GroupPoint, ...]


def evaluation(scores: Scores) -> Evaluation:
    """Success with its interval over items, and the mean reward."""
    interval = mean_interval(solved(scores))
    values = [value for group in scores.values() for value in group]
    return Evaluation(
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        n=len(values),
        reward=sum(values) / len(values) if values else 0.0,
    )


def solved(scores: Scores) -> dict[str, list[float]]:
    """Scores turned into successes.

    >>> solved({"lamp": [0.5, 1.0]})
    {'lamp': [0.0, 1.0]}
    """
    return {item: [float(value == 1.0) for value in values] for item, values in scores.items()}


def summarise(
    before: Scores,
    after: Scores,
    training: TrainingFigures,
    points: Sequence[GroupPoint],
    facts: Mapping[str, Any],
) -> Summary:
    """Everything the demo has to tell; `facts` are seconds, model, seed and temperature."""
    return Summary(
        before=evaluation(before),
        after=evaluation(after),
        gain=gain_interval(solved(before), solved(after)),
        versions=training.versions,
        calls=training.calls,
        rows=training.rows,
        raw_tokens=training.raw_tokens,
        distinct_tokens=training.distinct_tokens,
        logprob_gap_mean=training.logprob_gap_mean,
        training=training,
        curve=tuple(points),
        **facts,
    )


def to_json(summary: Summary) -> bytes:
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"


def curve(values: Sequence[float], width: int = CURVE_WIDTH, height: int = CURVE_HEIGHT) -> str:
    """Values between 0 and 1 as a dot for each group and a line for their moving average.

    >>> print(curve([0.0, 1.0], width=4, height=2))
     1.0 │  ██
     0.0 │██
    """
    columns = min(width, max(len(values), width))
    average = moving_average(values, AVERAGE_GROUPS) if len(values) > AVERAGE_GROUPS else list(values)
    grid = [[" "] * columns for _ in range(height)]
    for column in range(columns):
        place = column * len(values) // columns
        grid[_row(values[place], height)][column] = "·"
        grid[_row(average[place], height)][column] = "█"
    return "\n".join(f"{1 - row / (height - 1):4.1f} │{''.join(line)}".rstrip() for row, line in enumerate(grid))


def _row(value: float, height: int) -> int:
    return round((1 - min(max(value, 0.0), 1.0)) * (height - 1))


def tell(summary: Summary, console: Console) -> None:
    """Print the table, the curve and what became of the calls."""
    console.print(_success_table(summary))
    if summary.curve:
        console.print(
            f"\nMean reward of each training group (·) and its moving average over {AVERAGE_GROUPS} groups (█)"
        )
        console.print(curve([point.reward for point in summary.curve]), highlight=False)
    console.print(_calls_table(summary))


def _success_table(summary: Summary) -> Table:
    table = Table(title=f"Held-out tasks, sampled at temperature {summary.temperature:g}")
    for column in ("", "solved", "95 % interval", "mean reward", "episodes"):
        table.add_column(column, justify="left" if not column else "right")
    for name, row in (("before (version 0)", summary.before), (f"after (version {summary.version})", summary.after)):
        interval = f"{row.low:.1%} to {row.high:.1%}"
        table.add_row(name, f"{row.mean:.1%}", interval, f"{row.reward:.2f}", str(row.n))
    gain = summary.gain
    points = tuple(f"{100 * value:+.1f}" for value in (gain.mean, gain.low, gain.high))
    table.add_row("gain in points (paired)", points[0], f"{points[1]} to {points[2]}", "", "", style="bold")
    return table


def _calls_table(summary: Summary) -> Table:
    training = summary.training
    gap = training.logprob_gap_mean
    table = Table(title=f"What became of the calls of {training.episodes} training episodes", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("calls recorded", f"{training.calls:,}"),
        ("excluded with a reason", f"{training.excluded:,}"),
        ("episodes in groups that teach something", f"{training.trained_episodes:,}"),
        ("rows that the loss saw", f"{training.rows:,}"),
        ("branches they were merged into", f"{training.branches:,}"),
        ("tokens of the rows one by one", f"{training.raw_tokens:,}"),
        ("distinct tokens", f"{training.distinct_tokens:,}"),
        ("merge ratio", f"{training.merge_ratio:.2f}"),
        ("sampled tokens trained", f"{training.trained_tokens:,}"),
        ("steps, versions published", f"{training.steps}, {training.versions}"),
        ("mean lag, in versions", f"{training.lag_mean:.2f}"),
        ("log-probability gap at zero lag", "not measured" if gap is None else f"{gap:.4f}"),
        ("seconds in all", f"{summary.seconds:.0f}"),
    ):
        table.add_row(name, value)
    return table
