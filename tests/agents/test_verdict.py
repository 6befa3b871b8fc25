"""The judge of agents' runs: it passes what is right and names each thing that is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.agents.coders import CAST
from tests.agents.verdict import complaints

Json = dict[str, Any]
PI = next(agent for agent in CAST if agent.name == "pi")
ASKED = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "answer": ""}
RIGHT: Json = {
    "status": 0,
    "output": PI.says,
    "files": dict(PI.writes),
    "exchanges": [ASKED, ASKED, ASKED],
    "episodes": [{"calls": [{}, {}, {}], "samples": {"samples": [{}], "excluded": []}}],
}


def test_a_run_as_it_must_be_passes() -> None:
    assert complaints(PI, RIGHT) == []


def test_a_busy_answer_that_was_asked_again_is_no_fault() -> None:
    assert complaints(PI, {**RIGHT, "exchanges": [{**ASKED, "status": 503}, ASKED, ASKED, ASKED]}) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda report: report.update(status=1), "ended with status 1"),
        (lambda report: report.update(output="?"), "it said '?'"),
        (lambda report: report["files"].clear(), "its file answer.txt"),
        (lambda report: report["exchanges"].append({**ASKED, "status": 400}), "was answered 400"),
        (lambda report: report["episodes"].append({}), "2 episodes"),
        (lambda report: report["episodes"].clear(), "0 episodes"),
        (lambda report: report["episodes"][0]["calls"].pop(), "became 2 calls"),
        (lambda report: report["episodes"][0]["samples"]["samples"].append({}), "2 rows"),
        (
            lambda report: report["episodes"][0]["samples"]["excluded"].append({"call_id": "c", "reason": "no_ids"}),
            "excluded: no_ids",
        ),
    ],
)
def test_whatever_is_wrong_is_told(spoil: Callable[[Json], None], said: str) -> None:
    report = copy.deepcopy(RIGHT)
    report["exchanges"] = [dict(exchange) for exchange in report["exchanges"]]
    spoil(report)
    assert any(said in told for told in complaints(PI, report))


def test_an_agent_that_cannot_work_must_fail_and_say_why() -> None:
    refused = next(agent for agent in CAST if agent.fails)
    assert complaints(refused, {**RIGHT, "status": 1, "output": f"Error: {refused.says}"}) == []
    assert complaints(refused, RIGHT) != []
