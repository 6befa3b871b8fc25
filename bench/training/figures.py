"""The table and the plot of `bench/train.py`, from the rows of its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

VARIANTS: Final = ("stock", "calls", "merged", "trie")
LABELS: Final = {
    "stock": "stock TRL, one row a call",
    "calls": "one row a call, no padding",
    "merged": "merged rows",
    "trie": "trie",
}
COLOURS: Final = {"stock": "#9a9a9a", "calls": "#d9a441", "merged": "#6aa5c9", "trie": "#1f6f5c"}
BAR: Final = 0.2


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a workload."""
    head = (
        f"{'':18}{'raw':>7}{'distinct':>9} |{'stock s':>8}{'calls':>7}{'merged':>7}{'trie':>7} |"
        f"{'calls/trie':>11}{'limit':>7}{'reached':>8}{'trie/merged':>12} |"
        f"{'stock MB':>9}{'calls':>6}{'merged':>7}{'trie':>6}"
    )
    return "\n".join([head, *map(_line, rows)])


def _line(row: dict[str, Any]) -> str:
    seconds, peak = row["seconds"], row["peak_mb"]
    return (
        f"{row['workload']:18}{row['raw_tokens']:7}{row['distinct_tokens']:9} |{seconds['stock']:8.2f}"
        f"{seconds['calls']:7.2f}{seconds['merged']:7.2f}{seconds['trie']:7.2f} |{row['speedup']:11.2f}"
        f"{row['flop_limit']:7.2f}{row['speedup'] / row['flop_limit']:8.2f}{row['trie_over_merged']:12.2f} |"
        f"{peak['stock']:9}{peak['calls']:6}{peak['merged']:7}{peak['trie']:6}"
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of `docs/training.md`."""
    seconds = ("stock s", "calls s", "merged s", "trie s")
    quotients = ("calls / trie", "FLOP limit", "trie / merged", "stock / trie")
    columns = ("raw", "distinct", *seconds, *quotients, "peak MiB: stock", "calls", "merged", "trie")
    head = f"| workload | {' | '.join(columns)} |\n|:--|{'--:|' * len(columns)}"
    return "\n".join([head, *(f"| {row['workload']} | {' | '.join(_cells(row))} |" for row in rows)])


def _cells(row: dict[str, Any]) -> list[str]:
    seconds, peak = row["seconds"], row["peak_mb"]
    return [
        f"{row['raw_tokens']:,}",
        f"{row['distinct_tokens']:,}",
        *(f"{seconds[variant]:.1f}" for variant in VARIANTS),
        f"**{row['speedup']:.1f}**",
        f"{row['flop_limit']:.1f}",
        f"{row['trie_over_merged']:.2f}",
        f"{seconds['stock'] / seconds['trie']:.1f}",
        *(f"{peak[variant]:,}" for variant in VARIANTS),
    ]


def write_between(path: Path, mark: str, text: str) -> None:
    """Put a text in place of what stands between a document's two marks."""
    before, rest = path.read_text().split(f"<!-- {mark} -->\n")
    _, after = rest.split(f"<!-- /{mark} -->")
    path.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- /{mark} -->{after}")


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed against one row a call, with the limit, and peak memory below it."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 7.5), sharex=True, height_ratios=(3, 2))
    for place, variant in enumerate(VARIANTS):
        offsets = [number + (place - 1.5) * BAR for number in range(len(rows))]
        speeds = [row["seconds"]["calls"] / row["seconds"][variant] for row in rows]
        above.bar(offsets, speeds, BAR, label=LABELS[variant], color=COLOURS[variant])
        below.bar(offsets, [row["peak_mb"][variant] for row in rows], BAR, color=COLOURS[variant])
    places = range(len(rows))
    limits = [row["flop_limit"] for row in rows]
    above.hlines(
        limits, [one + 0.1 for one in places], [one + 0.5 for one in places], "black", label="FLOP limit of sharing"
    )
    above.set_ylabel("steps in the time of one\nwith one row a call")
    above.set_title("The same gradient of the same recorded calls: speed and peak memory")
    above.legend(frameon=False)
    below.set_ylabel("peak memory above\nthe loaded model, MiB")
    names = [row["workload"].replace(", ", "\n").replace("thinking ", "thinking\n") for row in rows]
    below.set_xticks(list(places), names)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
