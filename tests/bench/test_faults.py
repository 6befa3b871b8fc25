"""The suite of faults in small: what `make faults` does to 2,000 episodes, done to a few."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faulting.catalogue import FAULTS
from bench.faulting.load import GROUP_SIZE
from bench.faulting.stage import open_stage
from bench.faulting.trial import tried
from bench.faults import row_of, table

pytestmark = pytest.mark.slow

NUM_EPISODES = 16


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("postgres", ["gateway_killed", "postgres_restarted"]),
        ("sentinel", ["redis_failed_over"]),
    ],
)
async def test_nothing_is_lost_doubled_or_stuck(tmp_path: Path, kind: str, names: list[str]) -> None:
    async with open_stage(tmp_path / "stage", kind) as stage:
        for fault in FAULTS:
            if fault.name in names:
                outcome = await tried(fault, stage, NUM_EPISODES, fault.name)
                assert outcome.verdict.holds, outcome.verdict.problems
                assert outcome.verdict.answered >= NUM_EPISODES
                assert outcome.verdict.groups == NUM_EPISODES // GROUP_SIZE
                assert fault.name in table([row_of(outcome)])
