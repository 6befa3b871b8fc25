"""The steps of a policy as curves: which number of a step's metrics is drawn where, and how it is to be read. Pure.

Metrics are what a trainer told (`trainer/metrics.py`), read here as any JSON: what is missing or no number is a gap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from gateway.dashboard.charts import Chart, Line, Values, averaged
from tracker.overview import StepTold

SPAN: Final = 8
"""Over how many steps a noisy curve is averaged."""
MANY: Final = 12
"""From so many steps on it is."""
MAX_FAMILIES: Final = 5
Metrics = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepView:
    """A batch with its metrics read."""

    told: StepTold
    metrics: Metrics

    def number(self, *path: str) -> float | None:
        """A number of the metrics; `None` where there is none."""
        value: Any = self.metrics
        for name in path:
            value = cast("Metrics", value).get(name) if isinstance(value, dict) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and math.isfinite(value) else None

    @property
    def idle_share(self) -> float | None:
        """The share of a step's time in which the trainer waited for groups."""
        waited, trained, published = self.number("wait_s"), self.number("train_s"), self.number("publish_s")
        total = (waited or 0.0) + (trained or 0.0) + (published or 0.0)
        return None if waited is None or trained is None or total <= 0 else waited / total

    @property
    def saved_share(self) -> float | None:
        """The share of the rows' tokens that the trie did not have to run."""
        raw, run = self.number("raw_tokens"), self.number("run_tokens")
        return None if not raw or run is None else 1 - run / raw

    @property
    def ratio(self) -> float | None:
        """Mean of exp(ours - engine's) over all trained tokens, whichever version sampled them."""
        gaps = self.metrics.get("gap_by_version")
        told = list(cast("dict[str, object]", gaps)) if isinstance(gaps, dict) else []
        pairs = [
            (self.number("gap_by_version", v, "ratio"), self.number("gap_by_version", v, "num_tokens")) for v in told
        ]
        known = [(ratio, tokens) for ratio, tokens in pairs if ratio is not None and tokens]
        total = sum(tokens for _, tokens in known)
        return sum(ratio * tokens for ratio, tokens in known) / total if total else None

    @property
    def families(self) -> list[str]:
        """The families of tasks that the step tells a reward of."""
        found = self.metrics.get("families")
        return sorted(cast("dict[str, object]", found)) if isinstance(found, dict) else []

    @property
    def problem(self) -> str:
        """Why the step did not step, or was dropped; empty where it did."""
        found = self.metrics.get("problem")
        return found if isinstance(found, str) else ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with the line that says how to read it."""

    chart: Chart
    how: str


def read_step(told: StepTold) -> StepView:
    """Metrics that are none are empty."""
    try:
        found: Any = json.loads(told.metrics)
    except ValueError:
        found = {}
    return StepView(told, cast("Metrics", found) if isinstance(found, dict) else {})


def figures(newest_first: Sequence[StepView]) -> list[Figure]:
    """The charts of a policy's trained steps, the most telling first."""
    steps = [step for step in reversed(newest_first) if step.told.state == "trained"]
    drawn = _Drawn(steps)
    return [
        drawn.of("Reward", "Mean reward of the step's episodes.", drawn.noisy("reward", _named("reward_mean"))),
        *_families(drawn),
        drawn.of("Loss", "The policy's loss; it need not fall.", drawn.noisy("loss", _named("loss"))),
        drawn.of(
            "KL to the base model",
            "Nats a token; measured where the run has a KL term.",
            drawn.line("kl", _named("kl")),
        ),
        drawn.of(
            "Entropy", "Nats a token. A collapse to zero ends exploration.", drawn.noisy("entropy", _named("entropy"))
        ),
        drawn.of(
            "Probability ratio",
            "Trainer over engine, mean over tokens; 1 where both compute the same.",
            [
                *drawn.line("all tokens", lambda step: step.ratio),
                *drawn.line("no version between", _named("gap_at_no_lag", "ratio")),
            ],
        ),
        drawn.of(
            "Log-probability gap",
            "Mean distance between trainer and engine in nats, no version between them.",
            drawn.line("gap", _named("gap_at_no_lag", "mean")),
            floor=0.0,
        ),
        drawn.of(
            "Staleness",
            "Versions between the one that sampled a row and the newest.",
            [*drawn.line("mean", _named("lag_mean")), *drawn.line("most", _named("lag_max"))],
            floor=0.0,
        ),
        drawn.share("Idle", "Share of a step's time that the trainer waited for groups.", lambda step: step.idle_share),
        drawn.share(
            "Tokens saved by the trie", "Share of the rows' tokens that need not be run.", lambda step: step.saved_share
        ),
        drawn.share("Effective sample size", "1 where all off-policy weights are the same.", _named("ess")),
        drawn.of("Gradient norm", "Before clipping.", drawn.noisy("gradient", _named("grad_norm")), floor=0.0),
    ]


Told = Callable[[StepView], float | None]


def _named(*path: str) -> Told:
    return lambda step: step.number(*path)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Steps, oldest first, about to be drawn."""

    steps: Sequence[StepView]

    def values(self, told: Told) -> Values:
        return tuple(told(step) for step in self.steps)

    def line(self, name: str, told: Told) -> list[Line]:
        return [Line(name, self.values(told))]

    def noisy(self, name: str, told: Told) -> list[Line]:
        """The average, with what it is the average of behind it."""
        values = self.values(told)
        if len(values) < MANY:
            return [Line(name, values)]
        return [Line(name, values, is_faint=True), Line(f"{name}, mean of {SPAN} steps", averaged(values, SPAN))]

    def smooth(self, name: str, told: Told) -> list[Line]:
        """The average alone, where many lines would hide each other."""
        values = self.values(told)
        return [Line(name, values if len(values) < MANY else averaged(values, SPAN))]

    @property
    def over(self) -> str:
        """What a smooth line is the mean of, in words."""
        return "" if len(self.steps) < MANY else f", mean of {SPAN} steps"

    def of(self, title: str, how: str, lines: Iterable[Line], floor: float | None = None) -> Figure:
        labels = tuple(str(step.told.step) for step in self.steps)
        return Figure(Chart(title, labels, tuple(lines), marks=self.rollbacks(), floor=floor), how)

    def share(self, title: str, how: str, told: Told) -> Figure:
        labels = tuple(str(step.told.step) for step in self.steps)
        chart = Chart(
            title,
            labels,
            tuple(self.line("share", told)),
            marks=self.rollbacks(),
            floor=0.0,
            ceiling=1.0,
            is_percent=True,
        )
        return Figure(chart, how)

    def rollbacks(self) -> tuple[tuple[int, str], ...]:
        """Where an epoch begins: the policy was rolled back before it."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return tuple(
            (place, f"epoch {after.told.epoch} begins: rolled back")
            for place, (before, after) in enumerate(pairs, 1)
            if after.told.epoch != before.told.epoch
        )


def _families(drawn: _Drawn) -> list[Figure]:
    """Rewards by family of tasks, where a run has some."""
    names = sorted({name for step in drawn.steps for name in step.families})[:MAX_FAMILIES]
    if not names:
        return []
    lines = [line for name in names for line in drawn.smooth(name, _named("families", name, "reward_mean"))]
    return [drawn.of("Reward by family", f"Mean reward of each family of tasks{drawn.over}.", lines)]
