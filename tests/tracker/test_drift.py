"""Alarms: what raises them, and what does not."""

from __future__ import annotations

import random
from collections.abc import Callable

from tracker.drift import AlarmKind, History, Point, alarms

Half = Callable[[random.Random, bool], Point]


def found(point: Half, number: int = 200) -> set[AlarmKind]:
    rng = random.Random(2)
    points = tuple(point(rng, place >= number // 2) for place in range(number))
    return {alarm.kind for alarm in alarms(History(tenant="t", run="r", policy="p", points=points))}


def test_a_reward_that_rises_alone_is_told():
    def gamed(rng: random.Random, is_new: bool) -> Point:
        return Point(reward=float(rng.random() < 0.3 + 0.5 * is_new), judges={"judge": float(rng.random() < 0.5)})

    assert found(gamed) == {AlarmKind.JUDGE_LEFT_BEHIND}


def test_a_judge_that_follows_is_no_alarm():
    def learned(rng: random.Random, is_new: bool) -> Point:
        mean = 0.3 + 0.5 * is_new
        return Point(reward=float(rng.random() < mean), judges={"judge": float(rng.random() < mean)})

    assert found(learned) == set()


def test_lengths_refusals_and_circles_are_told():
    def drifted(rng: random.Random, is_new: bool) -> Point:
        return Point(
            num_tokens=rng.uniform(80, 120) * (2 if is_new else 1),
            refusals=float(rng.random() < 0.4 * is_new),
            repeated=float(rng.random() < 0.4 * is_new),
        )

    assert found(drifted) == {AlarmKind.LENGTH, AlarmKind.REFUSALS, AlarmKind.REPETITION}


def test_nothing_is_told_of_few_episodes_or_of_what_stays():
    def same(rng: random.Random, _: bool) -> Point:
        return Point(reward=rng.random(), judges={"judge": rng.random()}, num_tokens=rng.uniform(50, 150))

    assert found(same) == set()
    assert found(lambda _, is_new: Point(num_tokens=100.0 + 900 * is_new), 20) == set()


def test_steady_runs_raise_hardly_any():
    rng = random.Random(8)
    raised = 0
    for _ in range(100):
        points = tuple(Point(reward=rng.random(), num_tokens=rng.lognormvariate(4, 0.5)) for _ in range(400))
        raised += bool(alarms(History(tenant="t", run="r", policy="p", points=points)))
    assert raised <= 1
