"""What stores, engines and training look like, set as gauges in the background, never for a scrape.

What this process knows by itself is cheap and set often; what SQL must be asked for is asked seldom, and by one of the
workers, since they all see the same. A scrape shows what was set last: how often
somebody scrapes costs no store anything.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from gateway.dependencies import Services
from gateway.engines import Fitness
from gateway.metrics import Metrics
from gateway.readiness import parts_of
from tracker.overview import LastStep, Overview, PolicyOverview
from tracker.types import EpisodeState, GroupState, VersionState

NOW_S: Final = 2.0
"""Between two settings of what this process knows."""
OVERVIEW_S: Final = 15.0
"""Between two looks at SQL, by all workers together."""
BATCH_STATES: Final = ("taken", "trained", "dropped")
WAITING: Final = (EpisodeState.FINISHING, EpisodeState.SEALED)


async def show_now(services: Services) -> None:
    """What this process knows by itself."""
    metrics, engines = services.metrics, services.engines
    metrics.show_now()
    metrics.records_waiting.of().set(services.store.num_waiting)
    for state in engines.states():
        engine = address_of(state.url)
        metrics.engine_calls.of(engine).set(engines.num_in_flight_at(state.url))
        for fitness in Fitness:
            metrics.engine_state.of(engine, fitness).set(state.fitness is fitness)


async def show_overview(services: Services) -> None:
    """What SQL and the parts of readiness say."""
    metrics, now_s = services.metrics, services.clock.now_ms() / 1000
    if not metrics.is_due(OVERVIEW_S, now_s):
        return
    for name, part in (await parts_of(services)).items():
        metrics.part_ready.of(name).set(part.ready)
    _show(metrics, await services.ledger.overview())
    await _show_trials(services)
    metrics.looked_at.of().set(now_s)


async def _show_trials(services: Services) -> None:
    """What is on trial, and how near it is to a claim."""
    trials = {trial.policy: trial for trial in await services.ledger.open_trials()}
    for policy in services.settings.stores.policies:
        trial = trials.get(policy.name)
        services.metrics.trial_version.of(policy.name).set(0 if trial is None else trial.version)
        if trial is not None:
            verdict = await services.releasing.verdict(trial, bounded=False)
            evidence = services.metrics.trial_evidence
            evidence.of(policy.name, "worse").set(verdict.evidence_worse / verdict.needed_worse)
            evidence.of(policy.name, "better").set(verdict.evidence_better / verdict.needed_better)


def _show(metrics: Metrics, overview: Overview) -> None:
    for state in EpisodeState:
        if state is not EpisodeState.ARCHIVED:
            metrics.episodes.of(state).set(overview.episodes.get(state, 0))
    metrics.archive_backlog.of().set(sum(overview.episodes.get(state, 0) for state in WAITING))
    for group in GroupState:
        metrics.groups.of(group).set(overview.groups.get(group, 0))
    for policy in overview.policies:
        _show_policy(metrics, policy)


def _show_policy(metrics: Metrics, told: PolicyOverview) -> None:
    policy = told.policy
    metrics.active_version.of(policy).set(told.active)
    for version in VersionState:
        metrics.versions.of(policy, version).set(told.versions.get(version, 0))
    for batch in BATCH_STATES:
        metrics.batches.of(policy, batch).set(told.batches.get(batch, 0))
    if told.lease_ms is not None:
        metrics.trainer_lease.of(policy).set(told.lease_ms / 1000)
    if told.last is not None:
        _show_step(metrics, policy, told.last)


def _show_step(metrics: Metrics, policy: str, step: LastStep) -> None:
    metrics.trainer_step.of(policy).set(step.step)
    metrics.trainer_step_at.of(policy).set(step.taken_ms / 1000)
    for gauge, value in (
        (metrics.trainer_lag.of(policy, "mean"), step.lag_mean),
        (metrics.trainer_lag.of(policy, "max"), step.lag_max),
        (metrics.trainer_reward.of(policy), step.reward_mean),
        (metrics.parity_gap.of(policy), step.gap_mean),
    ):
        if value is not None:
            gauge.set(value)


def address_of(url: str) -> str:
    """An engine's host and port: no label holds a key that stands in a URL.

    >>> address_of("http://me:secret@gpu-1:8000")
    'gpu-1:8000'
    """
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.hostname}{port}"
