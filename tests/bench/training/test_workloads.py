"""The recorded episodes of the training bench: what they share, and that they stay under the cap."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from bench.training.workloads import CAP, GROUP, SHAPES, SUB_AGENTS, SUB_TURNS, Shape, with_logprobs, workload

VOCABULARY = 6000
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


@every_shape
def test_a_workload_stays_under_the_cap_with_its_groups_whole(shape: Shape) -> None:
    one = workload(shape, VOCABULARY)
    assert one.num_raw_tokens <= CAP
    calls = Counter(row.episode_id for row in one.rows)
    assert len(calls) == GROUP * shape.groups
    assert len(set(calls.values())) == 1
    assert len(one.advantages) == len(one.rows) == len({row.call_id for row in one.rows})


@every_shape
def test_the_same_shape_gives_the_same_rows(shape: Shape) -> None:
    assert workload(shape, VOCABULARY) == workload(shape, VOCABULARY)


@every_shape
def test_members_of_a_group_share_their_prompt(shape: Shape) -> None:
    one = workload(shape, VOCABULARY)
    firsts = {row.episode_id: row.prompt_ids for row in reversed(one.rows)}
    for group in range(shape.groups):
        assert len({firsts[f"{group}-{member}"] for member in range(GROUP)}) == 1
    assert len(set(firsts.values())) == shape.groups


def test_tool_calls_go_on_from_each_other() -> None:
    shape = next(shape for shape in SHAPES if shape.name == "10 turns, long")
    rows = [row for row in workload(shape, VOCABULARY).rows if row.episode_id == "0-0"]
    assert len(rows) == 10
    for before, after in pairwise(rows):
        whole = before.prompt_ids + before.sampled_ids
        assert after.prompt_ids[: len(whole)] == whole


def test_stripped_thinking_forks_where_it_began() -> None:
    shape = next(shape for shape in SHAPES if shape.kind == "thinking")
    rows = [row for row in workload(shape, VOCABULARY).rows if row.episode_id == "0-0"]
    for before, after in pairwise(rows):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
        assert after.prompt_ids[len(before.prompt_ids) :][:3] != before.sampled_ids[:3]
        answer = before.sampled_ids[-3:]
        assert answer in zip(*(after.prompt_ids[start:] for start in range(3)), strict=False)


def test_sub_agents_have_a_prompt_of_their_own_and_report_to_the_main_agent() -> None:
    shape = next(shape for shape in SHAPES if shape.kind == "sub-agents")
    rows = [row for row in workload(shape, VOCABULARY).rows if row.episode_id == "0-0"]
    main, sub = ([row for row in rows if row.role == role] for role in ("main", "subagent"))
    assert (len(main), len(sub)) == (shape.turns, (shape.turns - 1) * SUB_AGENTS * SUB_TURNS)
    assert {row.prompt_ids[: shape.system] for row in sub}.isdisjoint({main[0].prompt_ids[: shape.system]})
    reports = [row.sampled_ids for row in sub[SUB_TURNS - 1 :: SUB_TURNS]][:SUB_AGENTS]
    assert main[1].prompt_ids == main[0].prompt_ids + main[0].sampled_ids + sum(reports, ())


def test_log_probabilities_are_filled_in_row_after_row() -> None:
    one = workload(SHAPES[0], VOCABULARY)
    values = [[-float(number)] * len(row.sampled_ids) for number, row in enumerate(one.rows)]
    filled = with_logprobs(one, values)
    assert [list(row.logprobs) for row in filled.rows] == values
    assert [row.prompt_ids for row in filled.rows] == [row.prompt_ids for row in one.rows]
