"""Is it healthy: parts, engines and trainers in the words of a page. Pure: records in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.engines import EngineState, Fitness
from gateway.readiness import Part
from tracker.overview import Overview

NAMES: Final[Mapping[str, str]] = {
    "redis": "Redis",
    "sql": "Database",
    "schema": "Schema",
    "engines": "Engines",
    "versions": "Versions served",
    "duties": "Background duties",
}


@dataclass(frozen=True, slots=True)
class PartView:
    """One part of readiness."""

    name: str
    ready: bool
    detail: str


@dataclass(frozen=True, slots=True)
class TrainerView:
    """How training of one policy stands."""

    policy: str
    active: int
    state: str
    """`at work`, `away` or `never seen`."""
    step: int | None
    taken_ms: int | None
    reward: float | None
    lag_mean: float | None
    lag_max: float | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine."""

    url: str
    fitness: str
    detail: str
    scoring: str
    num_in_flight: int
    bases: tuple[tuple[str, str], ...]
    """(policy, the name of its base model there)."""
    loaded: tuple[tuple[str, int | None, str], ...]
    """(policy, version, adapter's name); a name that is not ours has no version."""
    is_silent: bool


def part_views(parts: Mapping[str, Part]) -> tuple[PartView, ...]:
    """In the order in which they depend on each other."""
    return tuple(PartView(NAMES.get(name, name), part.ready, part.detail) for name, part in parts.items())


def headline(parts: Mapping[str, Part]) -> str:
    """One line for all parts.

    >>> headline({"redis": Part(ready=True), "sql": Part(ready=False)})
    'Not ready: Database'
    """
    amiss = [NAMES.get(name, name) for name, part in parts.items() if not part.ready]
    return f"Not ready: {', '.join(amiss)}" if amiss else "All parts are ready"


def trainer_views(overview: Overview, now_ms: int) -> tuple[TrainerView, ...]:
    """Each policy's trainer, by its lease and its last step."""
    return tuple(
        TrainerView(
            policy=row.policy,
            active=row.active,
            state="never seen" if row.lease_ms is None else "at work" if row.lease_ms > now_ms else "away",
            step=None if row.last is None else row.last.step,
            taken_ms=None if row.last is None else row.last.taken_ms,
            reward=None if row.last is None else row.last.reward_mean,
            lag_mean=None if row.last is None else row.last.lag_mean,
            lag_max=None if row.last is None else row.last.lag_max,
            gap=None if row.last is None else row.last.gap_mean,
        )
        for row in overview.policies
    )


def engine_view(state: EngineState, num_in_flight: int) -> EngineView:
    """An engine as it was last seen."""
    return EngineView(
        url=state.url,
        fitness=state.fitness.value,
        detail=state.detail or ("it serves every live version" if state.fitness is Fitness.READY else ""),
        scoring=state.scoring.value,
        num_in_flight=num_in_flight,
        bases=tuple(sorted(state.bases.items())),
        loaded=tuple(sorted((_named(name) for name in state.adapters), key=lambda each: (each[0], each[1] or 0))),
        is_silent=state.is_silent,
    )


def _named(adapter: str) -> tuple[str, int | None, str]:
    """The policy and version that an adapter's name tells: `POLICY@N-DIGEST8`.

    >>> _named("solver@3-0a1b2c3d"), _named("of somebody else")
    (('solver', 3, 'solver@3-0a1b2c3d'), ('', None, 'of somebody else'))
    """
    policy, _, rest = adapter.rpartition("@")
    number = rest.partition("-")[0]
    if policy and number.isascii() and number.isdigit():
        return policy, int(number[:9]), adapter
    return "", None, adapter
