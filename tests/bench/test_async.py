"""The bench of schedules plays both to their end, and says of each what it is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from bench.schedules import Workload, open_stage, played, slow_script

pytestmark = pytest.mark.slow

TINY = Workload(slots=4, group_size=2, groups_per_step=2, num_groups=5, staleness=3, episode_s=0.02, step_s=0.02)


@pytest.fixture
def bench() -> ModuleType:
    """`async` is a word that no import statement takes."""
    return importlib.import_module("bench.async")


def test_an_attempt_takes_its_time_from_the_seed_and_never_from_the_schedule():
    load = Workload(slow_share=0.5)
    times = [load.turn_s(1, group, attempt) for group in range(10) for attempt in range(4)]
    assert times == [load.turn_s(1, group, attempt) for group in range(10) for attempt in range(4)]
    assert times != [load.turn_s(2, group, attempt) for group in range(10) for attempt in range(4)]
    num_slow = sum(time > 5 * load.episode_s / load.num_turns for time in times)
    assert 0 < num_slow < len(times)


def test_the_engine_takes_as_long_as_the_conversation_says():
    body = {"messages": [{"role": "user", "content": "attempt 1: think for 0.2500 s"}]}
    assert slow_script(body).delay_s == 0.25
    assert slow_script({"messages": [{"role": "user", "content": "hi"}]}).delay_s == 0


async def test_both_schedules_train_the_same_budget(tmp_path: Path, bench: ModuleType) -> None:
    async with open_stage(tmp_path / "data") as stage:
        outcomes = {name: [await played(name, TINY, 0, stage)] for name in bench.SCHEDULES}
    for (outcome,) in outcomes.values():
        assert outcome.num_trained + outcome.num_expired + outcome.num_left == TINY.num_groups
        assert outcome.diary.num_steps == outcome.num_trained // TINY.groups_per_step
        assert 0 < outcome.idle < 1
    assert set(outcomes["barrier"][0].diary.lags) == {0}
    report = bench.report_of(outcomes, TINY)
    assert report["wall_s"].keys() == report["idle"].keys() == {"hone", "barrier"}
    assert "| groups trained |" in bench.table(report)
