"""What reading endpoints show of releases and alarms. Pure: records in, JSON values out. Shares are percent here."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.answers import plain
from gateway.releasing import Release, shadow_kl
from tracker.drift import Alarm
from tracker.trials import ReleaseEvent, Tally, Trial, TrialState


def release_view(release: Release) -> dict[str, Any]:
    """How a policy's versions stand."""
    trial, shadow = release.trial, release.shadow
    waiting = [one.version for one in release.trials if one.state is TrialState.WAITING]
    return {
        "policy": release.policy.policy,
        "mode": release.settings.release.mode,
        "epoch": release.policy.epoch,
        "stable": release.policy.active,
        "canary": None if trial is None else {**trial_view(trial), "episodes": release.counts},
        "verdict": None if release.verdict is None else plain(release.verdict),
        "waiting": waiting,
        "shadow": None if shadow is None else {"version": shadow.version, "share": round(100 * shadow.share, 6)},
        "comparisons": [tally_view(tally) for tally in release.tallies],
        "rules": plain(release.settings.release.rules),
        "trials": [trial_view(one) for one in release.trials],
        "events": [event_view(event) for event in release.events],
    }


def trial_view(trial: Trial) -> dict[str, Any]:
    """One version's trial; what arms are drawn with stays here."""
    return {
        "policy": trial.policy,
        "version": trial.version,
        "state": trial.state.value,
        "stable": trial.stable,
        "share": round(100 * trial.share, 6),
        "created_ms": trial.created_ms,
        "started_ms": trial.started_ms,
        "ended_ms": trial.ended_ms,
    }


def event_view(event: ReleaseEvent) -> dict[str, Any]:
    """What was decided, by whom, why and with which numbers."""
    return {
        "seq": event.seq,
        "at_ms": event.at_ms,
        "version": event.version,
        "kind": event.kind,
        "by": event.by,
        "why": event.why,
        "numbers": msgspec.json.decode(event.numbers),
    }


def tally_view(tally: Tally) -> dict[str, Any]:
    """How a shadow's answers compare with those that agents got."""
    numbers = tally.numbers
    calls = numbers.get("num_calls", 0.0)

    def of_calls(name: str) -> float | None:
        return numbers.get(name, 0.0) / calls if calls else None

    return {
        "version": tally.version,
        "against": tally.against,
        "num_calls": int(calls),
        "num_dropped": int(numbers.get("num_dropped", 0.0)),
        "num_failed": int(numbers.get("num_failed", 0.0)),
        "gap_nats": shadow_kl(tally),
        "agreement": of_calls("agreement"),
        "mean_tokens": of_calls("tokens"),
        "mean_tokens_against": of_calls("tokens_against"),
        "truncated": of_calls("truncated"),
        "truncated_against": of_calls("truncated_against"),
    }


def alarm_view(alarm: Alarm) -> dict[str, Any]:
    """What is amiss with a run; the tenant is the reader's own."""
    return {
        "run": alarm.run,
        "policy": alarm.policy,
        "kind": alarm.kind.value,
        "detail": alarm.detail,
        "numbers": alarm.numbers,
        "raised_ms": alarm.raised_ms,
    }
