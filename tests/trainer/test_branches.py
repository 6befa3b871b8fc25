"""Merging, tiling and cutting change neither log-probabilities nor gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.models import conversations, plain_scores, row, tiny_model
from tracker.errors import CorruptRecord
from tracker.samples import Row
from trainer.branches import Branch, check_contexts, cut, merge_rows, tile_branches
from trainer.micro_batches import merged_size, slots_of
from trainer.scoring import score

pytestmark = pytest.mark.slow

ids = st.lists(st.integers(0, 3), min_size=1, max_size=5)
some_rows = st.lists(st.tuples(ids, ids), min_size=1, max_size=12).map(lambda pairs: [row(*pair) for pair in pairs])


@given(some_rows)
def test_every_row_keeps_its_context_in_exactly_one_branch(rows: list[Row]) -> None:
    branches = merge_rows(rows)
    check_contexts(rows, branches)
    assert len(branches) <= len(rows)


@given(some_rows)
def test_no_branch_begins_another(rows: list[Row]) -> None:
    branches = [branch.input_ids for branch in merge_rows(rows)]
    assert merged_size(rows) == (len(branches), sum(map(len, branches)))
    for one in branches:
        assert [other[: len(one)] == one for other in branches].count(True) == 1


@given(some_rows, st.integers(1, 40))
def test_micro_batches_hold_every_branch_once_and_keep_to_the_budget(rows: list[Row], budget: int) -> None:
    branches = merge_rows(rows)
    batches = cut(tile_branches(branches, budget), budget)
    assert [branch for batch in batches for tile in batch for branch in tile.branches] == list(branches)
    for batch in batches:
        assert sum(tile.num_tokens for tile in batch) <= budget or len(batch[0].branches) == len(batch) == 1


def test_calls_that_continue_one_another_share_one_branch() -> None:
    rows = [row([1, 2], [3]), row([1, 2, 3, 4], [5]), row([1, 2], [7]), row([9], [9])]
    assert [(branch.input_ids, branch.rows) for branch in merge_rows(rows)] == [((1, 2, 3, 4), (0, 1, 2)), ((9,), (3,))]


def test_a_row_under_another_context_is_refused() -> None:
    with pytest.raises(CorruptRecord):
        check_contexts([row([1, 2], [3])], [Branch(input_ids=(1, 5), rows=(0,))])
    with pytest.raises(CorruptRecord):
        check_contexts([row([1, 2], [3])], [Branch(input_ids=(1, 2), rows=(0, 0))])


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("budget", [1, 40, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_scores_and_gradients_equal_those_of_one_row_a_call(architecture: str, budget: int, seed: int) -> None:
    model = tiny_model(architecture)
    rows = conversations(seed)
    branches = merge_rows(rows)
    assert len(branches) < len(rows)
    tiles = tile_branches(branches, budget)
    head = model.get_output_embeddings()

    expected_logps, expected_entropies = plain_scores(model, rows)
    weights = torch.linspace(-1, 1, len(expected_logps), dtype=torch.float64)
    expected = torch.autograd.grad(
        (weights * expected_logps).sum() + (weights**2 * expected_entropies).sum(), list(model.parameters())
    )

    scores = score(model, head, tiles, rows)
    slots = slots_of(tiles, rows)
    torch.testing.assert_close(scores.logps_N, expected_logps[slots], atol=1e-9, rtol=0)
    torch.testing.assert_close(scores.entropies_N, expected_entropies[slots], atol=1e-9, rtol=0)
    loss = (weights[slots] * scores.logps_N).sum() + (weights[slots] ** 2 * scores.entropies_N).sum()
    for found, wanted in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)
