"""From what was measured to what is told: medians of rounds, ratios within a round, a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

MIN_ROUNDS: Final = 5
BARE: Final = "bare"
HONE: Final = "hone"


class Row(msgspec.Struct, frozen=True):
    """One load on one server in one round; times in milliseconds unless they end in their unit."""

    server: str
    load: str
    num_calls: int
    num_failed: int
    num_events: int
    cpu_ms: float
    """Of the server's processes, for each call."""
    calls_s: float
    """Calls in a second."""
    call_p50: float
    call_p99: float
    first_p50: float
    gap_p99: float
    memory_mb: float
    failure: str = ""

    @property
    def is_valid(self) -> bool:
        return self.num_calls > 0 and self.num_failed == 0


Round = Mapping[tuple[str, str], Row]
"""(server, load) -> what was measured."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies; 0 where there is none.

    >>> percentile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def sound(one: Round, others: Collection[str]) -> Round | None:
    """The round without what failed on the servers of others; None where a call or a piece of a stream failed on ours,
    or on the pass-through."""
    if not all(row.is_valid for (server, _), row in one.items() if server not in others):
        return None
    return {key: row for key, row in one.items() if row.is_valid}


def ratio(rounds: Iterable[Round], over: tuple[str, str], under: tuple[str, str], field: str) -> float | None:
    """The median over the rounds of one figure divided by another of the same round; None where none has both."""
    shares = [
        getattr(one[over], field) / getattr(one[under], field)
        for one in rounds
        if over in one and under in one and getattr(one[under], field)
    ]
    return round(statistics.median(shares), 3) if shares else None


def added(rounds: Iterable[Round], load: str, field: str) -> float | None:
    """The median over the rounds of what Hone adds to the pass-through."""
    more = [
        getattr(one[HONE, load], field) - getattr(one[BARE, load], field)
        for one in rounds
        if (HONE, load) in one and (BARE, load) in one
    ]
    return round(statistics.median(more), 3) if more else None


def median(rounds: Iterable[Round], key: tuple[str, str], field: str) -> float | None:
    """The median of one figure."""
    values = [getattr(one[key], field) for one in rounds if key in one]
    return round(statistics.median(values), 3) if values else None


def table(rounds: Sequence[Round]) -> str:
    """Markdown: the medians of every load on every server, and the cost of a call as a multiple of the pass-through."""
    lines = [
        "| load | server | CPU ms a call | × bare | CPU µs a chunk | p50 ms | p99 ms | first p50 | gap p99 | MB |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for server, load in sorted({key for one in rounds for key in one}, key=lambda key: (key[1], key[0])):
        key = (server, load)
        cpu_ms, times = median(rounds, key, "cpu_ms"), ratio(rounds, key, (BARE, load), "cpu_ms")
        events = max(one[key].num_events / max(1, one[key].num_calls) for one in rounds if key in one)
        chunk = f"{1000 * (cpu_ms or 0) / events:.1f}" if events else ""
        fields = ("call_p50", "call_p99", "first_p50", "gap_p99", "memory_mb")
        cells = [f"{median(rounds, key, field) or 0:.1f}" for field in fields]
        lines.append(f"| {load} | {server} | {cpu_ms:.3f} | {times or '–'} | {chunk} | {' | '.join(cells)} |")
    return "\n".join(lines)
