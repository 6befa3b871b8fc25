"""From scores by word to the figures of `make bench-learn`. Pure; the intervals are those of the demo.

What is drawn again in the bootstrap is a word with all of its episodes. Over several seeds a word of one seed counts as
one of its own; a difference is paired by seed and word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.demo.intervals import Interval, gain_interval, mean_interval

Scores = dict[str, list[float]]
COMMAND = "make bench-learn"


def row_of(ours: Mapping[str, Any], stock: Mapping[str, Any] | None) -> dict[str, Any]:
    """The row of one task and seed; scores by word go along under `_...` for what is told over all seeds."""
    row: dict[str, Any] = {
        "task": ours["task"],
        "seed": ours["seed"],
        **figures(ours["before"], ours["after"], stock),
        "episodes_held_out": sum(map(len, ours["after"].values())),
        "sampled_tokens": ours["sampled_tokens"],
        "stock_sampled_tokens": stock and stock["sampled_tokens"],
        "steps": ours["steps"],
        "stock_steps": stock and stock["steps"],
        "episodes": ours["episodes"],
        "seconds": ours["seconds"],
        "stock_seconds": stock and stock["seconds"],
        "lag_mean": ours["lag_mean"],
        "logprob_gap_mean": ours["logprob_gap_mean"],
        "curve": [point["reward"] for point in ours["curve"]],
        "stock_curve": stock and stock["curve"],
        "date": ours["date"],
        "machine": ours["machine"],
        "commit": ours["commit"],
        "command": COMMAND,
    }
    return row | {"_before": ours["before"], "_after": ours["after"], "_stock": stock}


def figures(before: Scores, after: Scores, stock: Mapping[str, Any] | None) -> dict[str, Any]:
    """Means with their intervals, as numbers and pairs."""
    told = {"before": mean_interval(before), "after": mean_interval(after), "gain": gain_interval(before, after)}
    numbers = _plain(told)
    if stock is None:
        names = ("stock_before", "stock_after", "difference")
        return numbers | {name + end: None for name in names for end in ("", "_interval")}
    return numbers | _plain(
        {
            "stock_before": mean_interval(stock["before"]),
            "stock_after": mean_interval(stock["after"]),
            "difference": gain_interval(stock["after"], after),
        }
    )


def _plain(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    means = {name: interval.mean for name, interval in intervals.items()}
    return means | {f"{name}_interval": [interval.low, interval.high] for name, interval in intervals.items()}


def summary_of(task: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One task over all seeds."""
    stocks = [(row["seed"], row["_stock"]) for row in rows if row["_stock"]]
    stock = (
        {name: joined((seed, one[name]) for seed, one in stocks) for name in ("before", "after")} if stocks else None
    )
    return {
        "task": task,
        "seed": "all",
        "seeds": [row["seed"] for row in rows],
        **figures(
            joined((row["seed"], row["_before"]) for row in rows),
            joined((row["seed"], row["_after"]) for row in rows),
            stock,
        ),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
        "stock_sampled_tokens": sum(one["sampled_tokens"] for _, one in stocks) or None,
        "seconds": sum(row["seconds"] for row in rows),
        "command": COMMAND,
    }


def joined(scores: Any) -> Scores:
    """Seeds' scores in one.

    >>> joined([(0, {"lamp": [1.0]}), (1, {"lamp": [0.0]})])
    {'0/lamp': [1.0], '1/lamp': [0.0]}
    """
    return {f"{seed}/{item}": values for seed, items in scores for item, values in items.items()}


def put_between(text: str, block: str, start: str = "<!-- learn -->", end: str = "<!-- /learn -->") -> str:
    """Replace what stands between two marks.

    >>> put_between("a <!-- learn --> b <!-- /learn --> c", "new")
    'a <!-- learn -->\\nnew\\n<!-- /learn --> c'
    """
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{block}\n{end}{rest.partition(end)[2]}"


def percent(row: Mapping[str, Any], name: str) -> str:
    """`31.0% (25.1 to 37.2)`."""
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_interval"]
    return f"{100 * row[name]:.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def points(row: Mapping[str, Any], name: str) -> str:
    """`+31.0 (+25.1 to +37.2)`."""
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_interval"]
    return f"{100 * row[name]:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def paired(summary: Sequence[Mapping[str, Any]]) -> str:
    """One line: where the gain is certain, and how ours stands beside stock TRL."""
    certain = [str(one["task"]) for one in summary if one["gain_interval"][0] > 0]
    beside = [f"{one['task']}: {points(one, 'difference')}" for one in summary if one["difference"] is not None]
    return (
        f"gains above 0: {', '.join(certain) or 'none'}; ours - stock in points: {', '.join(beside) or 'not played'}."
    )
