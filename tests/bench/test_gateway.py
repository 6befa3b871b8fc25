"""Every server that `make bench-gateway` measures starts and answers, and figures of a round become ratios."""

from pathlib import Path

import msgspec
import pytest

from bench import gateway
from bench.traffic.loads import STREAM, WHOLE

NOWHERE = Path("/nowhere/python")
FEW = [msgspec.structs.replace(load, num_agents=2, num_calls=2, num_warm=1, pace_s=0.0) for load in (WHOLE, STREAM)]


@pytest.mark.slow
@pytest.mark.parametrize("name", gateway.subjects(NOWHERE, NOWHERE))
def test_a_server_of_ours_answers_every_call_of_a_load(name: str) -> None:
    start = gateway.subjects(NOWHERE, NOWHERE)[name]

    rows = gateway.measure(name, start, FEW)

    assert [(row.server, row.num_calls, row.num_failed, row.failure) for row in rows] == [(name, 4, 0, "")] * 2
    assert rows[1].num_events >= 4 * FEW[1].num_answer
