"""What it costs: tokens, engines' time and bills, for each success and by day. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from gateway.dashboard.charts import columns
from tracker.outcomes import Outcome
from tracker.types import KeyUsage

DAYS = 14
SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Costs:
    """Of the episodes that are looked at."""

    num_episodes: int
    num_successes: int
    tokens: int
    sampled: int
    engine_s: float
    tokens_per_success: float | None
    engine_s_per_success: float | None
    upstream_cost: float | None
    upstream_cost_per_success: float | None
    num_unknown: int
    """Episodes that were archived before costs were noted."""


def costs_of(outcome: Outcome) -> Costs:
    """The price of what these episodes came to."""
    spent, wins = outcome.spent, outcome.num_successes if outcome.num_spent else 0
    cost = spent.upstream_cost
    return Costs(
        num_episodes=outcome.num_episodes,
        num_successes=outcome.num_successes,
        tokens=spent.prompt_tokens + spent.sampled_tokens,
        sampled=spent.sampled_tokens,
        engine_s=spent.engine_ms / 1000,
        tokens_per_success=outcome.tokens_per_success,
        engine_s_per_success=spent.engine_ms / 1000 / wins if wins else None,
        upstream_cost=cost,
        upstream_cost_per_success=cost / wins if cost is not None and wins else None,
        num_unknown=outcome.num_episodes - outcome.num_spent,
    )


def day_bars(usage: Mapping[int, KeyUsage], today: int) -> Markup:
    """Tokens of each of the last days, this one included."""
    days = range(today - DAYS + 1, today + 1)
    return columns("Tokens by day", [(day_name(day), float(usage.get(day, KeyUsage()).tokens)) for day in days])


def day_name(day: int) -> str:
    """A day that is counted from 1970-01-01.

    >>> day_name(0)
    '01 Jan'
    """
    return datetime.fromtimestamp(day * SECONDS_A_DAY, UTC).strftime("%d %b")
