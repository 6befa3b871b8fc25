"""What the benches of trials make of their results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.release import keep
from bench.release_cpu import is_as_wanted, is_late
from bench.releases.adapters import Turned, weakened
from gateway.demo.task import Task, Turn
from tracker.adapters import WEIGHTS_FILE


def test_each_bench_leaves_the_others_keys(tmp_path: Path):
    path = tmp_path / "results" / "release.json"
    keep({"false_alarm_rate": 0.1, "worlds": [1]}, path)
    keep({"played": {"trials": []}}, path)
    keep({"false_alarm_rate": 0.2, "worlds": [2]}, path)
    assert json.loads(path.read_text()) == {"false_alarm_rate": 0.2, "worlds": [2], "played": {"trials": []}}


@pytest.mark.parametrize(
    ("wanted", "outcome", "why", "is_right"),
    [
        ("promoted", "promoted", "its reward is better", True),
        ("promoted", "promoted", "nothing was shown in 100 episodes", False),
        ("rolled_back", "rolled_back", "its reward is worse", True),
        ("rolled_back", "rolled_back", "latency is 9 against 1, over the limit of 3", True),
        ("rolled_back", "promoted", "its reward is better", False),
        ("not rolled_back", "promoted", "nothing was shown in 200 episodes", True),
        ("not rolled_back", "rolled_back", "its reward is worse", False),
    ],
)
def test_a_trial_is_right_if_it_ends_as_it_should(wanted: str, outcome: str, why: str, is_right: bool):
    assert is_as_wanted({"wanted": wanted, "outcome": outcome, "why": why}) is is_right


@pytest.mark.parametrize(("wanted", "episodes"), [("promoted", 150), ("rolled_back", 60), ("not rolled_back", 200)])
def test_a_trial_is_late_after_what_it_is_meant_to_take(wanted: str, episodes: int):
    assert [is_late({"wanted": wanted, "episodes": number}) for number in (episodes, episodes + 1)] == [False, True]


def test_a_weakened_adapter_adds_its_part_to_the_model(tmp_path: Path):
    (tmp_path / "good").mkdir()
    whole = {"q.lora_A.weight": torch.ones(2, 3), "q.lora_B.weight": torch.ones(3, 2)}
    save_file(whole, tmp_path / "good" / WEIGHTS_FILE)
    weights = load_file(weakened(tmp_path / "good", tmp_path / "weak", 0.25) / WEIGHTS_FILE)
    added = weights["q.lora_B.weight"] @ weights["q.lora_A.weight"]
    assert torch.equal(added, 0.25 * whole["q.lora_B.weight"] @ whole["q.lora_A.weight"])


def test_a_turned_reward_is_1_for_a_failure():
    task = Turned(Task(item="lamp", price=37))
    assert task.score([Turn(content="No.", finish_reason="stop")]) == 1
    assert task.name == "lamp/37/0"
