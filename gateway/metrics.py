"""What the gateway counts, as Prometheus reads it: every instrument, its labels and its words in one place.

Labels are bounded: routes are templates, policies are those of the settings, no id of an episode or a call is one. In
the path of a call an instrument is a bound child and a number added to it, eight of them a call and none a chunk; what
is happening now is plain counting in `Now`, shown when somebody asks. Several workers on one port keep their numbers in
files of one folder, so that whoever is asked tells of all. What stores and engines say is set by `gauges.py`.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client import multiprocess as shared
from prometheus_client.process_collector import ProcessCollector

from tracker.types import Call, Reason, Record

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NONE: Final = "none"
"""The label of what has no such thing: a call to no policy, one with nothing amiss."""
OTHER: Final = "other"
"""The label of what would be one of too many."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_CHILDREN: Final = 2_000
"""Of one instrument. Nothing that is meant to be counted comes near it."""
SHORT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LONG_S: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
MARKER: Final = "looked"
"""The file that tells when a worker looked at what all see."""
NEARLY: Final = 0.9
"""Of an interval: a worker that comes a little early goes ahead, so that none is left out."""
InstrumentT = TypeVar("InstrumentT", Counter, Gauge, Histogram)
Mode = Literal["livesum", "livemostrecent"]


class Listed(Record, frozen=True):
    """An instrument as the documentation lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    words: str


class Now:
    """What this process is doing at this moment."""

    __slots__ = ("num_calls", "num_held", "num_streams")

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_streams = 0
        self.num_held = 0


class Family(Generic[InstrumentT]):
    """The children of one instrument, each bound once."""

    __slots__ = ("_children", "_parent", "_size")

    def __init__(self, parent: InstrumentT, num_labels: int) -> None:
        self._parent = parent
        self._size = num_labels
        self._children: dict[Hashable, InstrumentT] = {}

    def of(self, *labels: str) -> InstrumentT:
        """The child with these labels; beyond any sensible number of them, the one for all others."""
        child = self._children.get(labels)
        if child is None:
            if not labels:
                return self._parent
            if len(self._children) >= MAX_CHILDREN:
                labels = (OTHER,) * self._size
            child = self._children[labels] = self._parent.labels(*labels)
        return child


class Metrics:
    """All instruments of one process. With a folder they are kept there, for all workers that share it."""

    def __init__(self, folder: Path | None = None) -> None:
        disable_created_metrics()  # a second number for each counter, which nobody asks for
        self._folder = folder
        self._registry = CollectorRegistry()
        self.listed: list[Listed] = []
        """Every instrument, in the order of the documentation."""
        self.now = Now()
        self.requests = self._counter("hone_requests", "Requests answered.", "route", "method", "dialect", "status")
        self.refusals = self._counter(
            "hone_refusals", "Requests answered with an error, by its status and code.", "status", "code"
        )
        self.calls = self._counter(
            "hone_calls", "Calls that ended, by how, and what was amiss when they did.", "policy", "state", "reason"
        )
        self.unrecorded = self._counter(
            "hone_calls_unrecorded", "Calls without a record: served all the same, or withheld.", "outcome"
        )
        self.excluded = self._counter(
            "hone_calls_excluded", "Calls of archived episodes of which nothing is trained, by why.", "reason"
        )
        self.prompt_tokens = self._counter("hone_prompt_tokens", "Prompt tokens of calls that ended.", "policy")
        self.sampled_tokens = self._counter("hone_sampled_tokens", "Sampled tokens of calls that ended.", "policy")
        self.swaps = self._counter("hone_swaps", "Attempts to publish or roll back a version.", "policy", "result")
        self.shadow_calls = self._counter(
            "hone_shadow_calls", "Copies of calls for a shadow: compared, dropped or failed.", "policy", "outcome"
        )
        self.first_token = self._histogram(
            "hone_first_token_seconds", "From a streamed call's request to its first event.", LONG_S, "dialect"
        )
        self.call_seconds = self._histogram(
            "hone_call_seconds", "From a call's intent to its record.", LONG_S, "policy"
        )
        self.redis_seconds = self._histogram(
            "hone_redis_seconds", "What writing an intent (begin) or a record (end) took.", SHORT_S, "operation"
        )
        self.swap_seconds = self._histogram("hone_swap_seconds", "What a swap took.", LONG_S, "policy")
        self._calls_now = self._gauge("hone_calls_in_flight", "Calls being served now.", "livesum")
        self._streams_now = self._gauge("hone_streams_in_flight", "Streamed calls being served now.", "livesum")
        self._held_now = self._gauge("hone_held_answers", "Answers held until their record is written.", "livesum")
        self.records_waiting = self._gauge(
            "hone_records_waiting", "Writes to the episode store that have not been answered.", "livesum"
        )
        self.engine_calls = self._gauge(
            "hone_engine_calls_in_flight", "Calls that an engine is answering now.", "livesum", "engine"
        )
        self._settle_gauges()
        if folder is None:
            ProcessCollector(registry=self._registry)
        self._children = (self.redis_seconds.of("begin"), self.redis_seconds.of("end"))

    def _settle_gauges(self) -> None:
        """What every worker sees alike: the newest word counts."""
        seen: Mode = "livemostrecent"
        gauge = self._gauge
        self.engine_state = gauge("hone_engine_state", "1 for the state an engine is in.", seen, "engine", "state")
        self.part_ready = gauge("hone_part_ready", "1 where a part of readiness is ready.", seen, "part")
        self.episodes = gauge("hone_episodes", "Episodes that are not archived, by state.", seen, "state")
        self.archive_backlog = gauge("hone_archive_backlog", "Ended episodes that are not archived yet.", seen)
        self.groups = gauge("hone_groups", "Groups, by state.", seen, "state")
        self.active_version = gauge("hone_active_version", "The version agents get.", seen, "policy")
        self.versions = gauge("hone_versions", "Versions, by state.", seen, "policy", "state")
        self.batches = gauge("hone_batches", "Batches that a trainer took, by state.", seen, "policy", "state")
        self.trainer_step = gauge("hone_trainer_step", "The last step that was trained.", seen, "policy")
        self.trainer_step_at = gauge(
            "hone_trainer_step_timestamp_seconds", "When the batch of the last step was taken.", seen, "policy"
        )
        self.trainer_lease = gauge(
            "hone_trainer_lease_timestamp_seconds", "Until when a trainer holds the policy.", seen, "policy"
        )
        self.trainer_lag = gauge(
            "hone_trainer_lag_versions", "Versions between sampling and training in the last step.", seen,
            "policy", "of",
        )  # fmt: skip
        self.trainer_reward = gauge("hone_trainer_reward", "Mean reward of the last step.", seen, "policy")
        self.parity_gap = gauge(
            "hone_parity_gap_nats", "Mean gap between trainer and engine at lag 0 in the last step.", seen, "policy"
        )
        self.trial_version = gauge("hone_trial_version", "The version on trial; 0 where none is.", seen, "policy")
        self.trial_evidence = gauge(
            "hone_trial_evidence_ratio", "Evidence over what a claim needs: 1 decides.", seen, "policy", "claim"
        )
        self.alarms = gauge("hone_alarms", "Reward alarms that are raised, by kind.", seen, "policy", "kind")
        self.looked_at = gauge("hone_overview_timestamp_seconds", "When SQL was last read for these gauges.", seen)

    def answered(self, route: str, method: str, dialect: str, status: int) -> None:
        """A request was answered; 0 stands for a client that left before."""
        self.requests.of(route, method, dialect, str(status) if status else NONE).inc()

    def refused(self, status: int, code: str | None) -> None:
        """A request was answered with an error of our tree."""
        self.refusals.of(str(status), code or NONE).inc()

    def ended(self, call: Call) -> None:
        """A call came to its end, however it ended."""
        policy = call.policy or NONE
        reason = call.reason or next((choice.reason for choice in call.choices if choice.reason), None)
        self.calls.of(policy, call.state, reason or NONE).inc()
        self.call_seconds.of(policy).observe((call.ended_ms - call.started_ms) / 1000)
        if call.prompt_ids:
            self.prompt_tokens.of(policy).inc(len(call.prompt_ids))
            self.sampled_tokens.of(policy).inc(sum(len(choice.sampled_ids) for choice in call.choices))

    def not_trained(self, reasons: Mapping[Reason, int]) -> None:
        """An episode was archived with calls of which nothing is trained."""
        for reason, number in reasons.items():
            self.excluded.of(reason).inc(number)

    def began_in(self, seconds: float) -> None:
        """An intent was written, or refused."""
        self._children[0].observe(seconds)

    def recorded_in(self, seconds: float) -> None:
        """A record was written, or given up."""
        self._children[1].observe(seconds)

    def show_now(self) -> None:
        """Set the gauges of what this process is doing."""
        self._calls_now.of().set(self.now.num_calls)
        self._streams_now.of().set(self.now.num_streams)
        self._held_now.of().set(self.now.num_held)

    def is_due(self, interval_s: float, now_s: float) -> bool:
        """Whether this process looks at what all workers see alike: one of them does, once in an interval."""
        if self._folder is None:
            return True
        marker = self._folder / MARKER
        try:
            age_s = abs(now_s - marker.stat().st_mtime)
        except FileNotFoundError:
            age_s = interval_s
        if age_s < interval_s * NEARLY:
            return False
        marker.touch()
        os.utime(marker, (now_s, now_s))
        return True

    def page(self) -> bytes:
        """Everything, of all workers, as Prometheus reads it."""
        if self._folder is None:
            return generate_latest(self._registry)
        _forget_the_dead(self._folder)
        registry = CollectorRegistry()
        shared.MultiProcessCollector(registry, str(self._folder))
        return generate_latest(registry)

    def _counter(self, name: str, words: str, *labels: str) -> Family[Counter]:
        counter = Counter(name, words, labels, registry=self._registry)
        return self._listed(f"{name}_total", counter, words, labels)

    def _gauge(self, name: str, words: str, mode: Mode, *labels: str) -> Family[Gauge]:
        gauge = Gauge(name, words, labels, registry=self._registry, multiprocess_mode=mode)
        return self._listed(name, gauge, words, labels)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Family[Histogram]:
        return self._listed(
            name, Histogram(name, words, labels, registry=self._registry, buckets=buckets), words, labels
        )

    def _listed(self, name: str, parent: InstrumentT, words: str, labels: tuple[str, ...]) -> Family[InstrumentT]:
        self.listed.append(Listed(name=name, kind=type(parent).__name__.lower(), labels=labels, words=words))
        return Family(parent, len(labels))


def _forget_the_dead(folder: Path) -> None:
    """Take away what workers that have ended said of the moment; what they counted stays."""
    for path in folder.glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
