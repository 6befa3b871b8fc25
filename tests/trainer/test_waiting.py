"""Which groups go first, which are waited for, and that under `wait` nothing passes its bound that ends in time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.in_flight import is_enough
from tracker.types import Group, GroupState, InFlight, RunSettings
from trainer.choosing import choose
from trainer.waiting import held_up_by, in_order, why_held

WAIT = RunSettings(run="r", on_stale="wait", staleness=2, group_timeout_s=600)
READY, OPEN, TAKEN = GroupState.READY, GroupState.OPEN, GroupState.TAKEN
NAMED = ("default", "r")


def flying(name: str, state: GroupState, lag: int, **fields: object) -> InFlight:
    known = {"group_id": name, "tenant": "default", "run": "r", "task": f"task {name}", "round": 0, "size": 2}
    known |= {"state": state, "lag": lag, "num_live": int(state is OPEN), "num_seated": 2, "created_ms": 0}
    return msgspec.convert(known | fields, InFlight)


def ready(*names: str) -> list[Group]:
    return [Group(group_id=name, tenant="default", run="r", task="t", round=0, size=2) for name in names]


@pytest.mark.parametrize(
    ("on_stale", "wanted"), [("train", "abcd"), ("expire", "cabd"), ("wait", "dcba")], ids=lambda given: str(given)
)
def test_groups_are_taken_as_they_complete_but_for_those_that_would_get_too_stale(on_stale: str, wanted: str) -> None:
    in_flight = [flying(name, READY, lag) for name, lag in (("a", 0), ("b", 1), ("c", 2), ("d", 3))]
    run = msgspec.structs.replace(WAIT, on_stale=on_stale)
    assert "".join(group.group_id for group in in_order(ready(*"abcd"), in_flight, run)) == wanted


def held(*in_flight: InFlight, chosen: str = "c", run: RunSettings = WAIT, now_ms: int = 0) -> list[str]:
    return [group.group_id for group in held_up_by(in_flight, chosen, {NAMED: run}, now_ms)]


def test_a_step_waits_for_a_group_at_its_bound_that_is_still_played():
    chosen, played = flying("c", READY, 0), flying("g", OPEN, 2)
    assert held(chosen, played) == ["g"]
    assert held(chosen, msgspec.structs.replace(played, lag=1)) == [], "one version more is within its bound"
    assert held(chosen, msgspec.structs.replace(played, lag=3)) == [], "it is lost already"
    for on_stale in ("expire", "train"):
        assert held(chosen, played, run=msgspec.structs.replace(WAIT, on_stale=on_stale)) == []


def test_what_nobody_plays_is_not_waited_for_and_nothing_is_beyond_its_timeout():
    chosen, left = flying("c", READY, 0), flying("g", OPEN, 2, num_live=0, num_seated=1)
    assert held(chosen, left) == []
    assert held(chosen, msgspec.structs.replace(left, num_seated=2)) == ["g"], "its last reward may be on its way"
    played = flying("g", OPEN, 2)
    assert held(chosen, played, now_ms=599_999) == ["g"]
    assert held(chosen, played, now_ms=600_000) == []


def test_a_step_waits_where_more_groups_would_be_due_than_the_next_one_takes():
    due = [flying("g", OPEN, 1), flying("h", READY, 1)]
    assert held(flying("c", READY, 0), *due) == ["g"]
    assert held(flying("c", READY, 0), *due, run=msgspec.structs.replace(WAIT, groups_per_step=2)) == []
    assert held(flying("c", READY, 1), *due) == [], "waiting gains nothing: the step takes one that is due"


def test_a_step_of_one_run_waits_for_the_groups_of_another():
    other = flying("g", OPEN, 2, run="other")
    runs = {NAMED: msgspec.structs.replace(WAIT, on_stale="expire"), ("default", "other"): WAIT}
    found = held_up_by([flying("c", READY, 0), other], ["c"], runs, 0)
    assert found == [other]
    assert "task 'task g' (round 0) of run other: 1 of 2 attempts" in why_held(found, runs)


@dataclass
class Played:
    """A group in the play below."""

    born: int
    """Versions that were active before it began."""
    ends_at: int
    taken: bool = False


class Play:
    """A door, players and a trainer of one run, tick by tick."""

    def __init__(self, run: RunSettings, durations: list[int], steps: list[int]) -> None:
        self.run = run
        self.groups: dict[str, Played] = {}
        self.num_trained = 0
        self._to_open = list(enumerate(durations))
        self._step = itertools.cycle(steps)
        self._version = 0
        self._done_at = 0

    def tick(self, now: int) -> None:
        trained = [name for name, group in self.groups.items() if group.taken]
        if trained and now >= self._done_at:
            self._version += 1
            self.num_trained += len(trained)
            self.groups = {name: group for name, group in self.groups.items() if not group.taken}
            trained = []
        while self._to_open and not is_enough(["t"] * len(self.groups), "t", self.run):
            number, duration = self._to_open.pop(0)
            self.groups[f"g{number}"] = Played(self._version, now + duration)
        if not trained:
            self._take(now)

    def in_flight(self, now: int) -> list[InFlight]:
        return [
            flying(name, TAKEN if group.taken else READY if group.ends_at <= now else OPEN, self._version - group.born)
            for name, group in self.groups.items()
        ]

    def _take(self, now: int) -> None:
        found = self.in_flight(now)
        done = sorted((group.ends_at, name) for name, group in self.groups.items() if group.ends_at <= now)
        choice = choose(in_order(ready(*(name for _, name in done)), found, self.run), self.run, {})
        if choice.group_ids and not held_up_by(found, choice.group_ids, {NAMED: self.run}, 0):
            self._done_at = now + next(self._step)
            for name in choice.group_ids:
                self.groups[name].taken = True


@given(
    staleness=st.integers(0, 3),
    groups_per_step=st.integers(1, 3),
    durations=st.lists(st.integers(1, 30), min_size=1, max_size=25),
    steps=st.lists(st.integers(1, 8), min_size=1, max_size=5),
)
def test_under_wait_no_group_passes_its_bound_however_long_it_takes(
    staleness: int, groups_per_step: int, durations: list[int], steps: list[int]
) -> None:
    play = Play(
        RunSettings(run="r", on_stale="wait", staleness=staleness, groups_per_step=groups_per_step), durations, steps
    )
    for now in range(30 * len(durations) + 8 * len(durations) + 1):
        play.tick(now)
        assert all(group.lag <= staleness for group in play.in_flight(now))
    assert len(play.groups) == len(durations) % groups_per_step, "nobody waits for ever"
