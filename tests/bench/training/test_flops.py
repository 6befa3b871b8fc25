"""The FLOP model against closed forms, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.training.flops import SMOLLM2, ModelShape, Work, backward, cost_of, forward, least_cost, shrunk, step
from bench.training.workloads import QUICK, workload
from tracker.samples import Row

NOTHING = ModelShape(layers=1, width=0, heads=0, key_heads=0, head_size=0, mlp=0, vocabulary=0, rank=0)
"""A model without anything, to which a test gives the one part it counts."""
BIG = 10**6


def row(prompt: Sequence[int], sampled: Sequence[int], call: str) -> Row:
    return Row(
        policy="p",
        episode_id="e",
        call_id=call,
        choice=0,
        version=0,
        adapter_digest="",
        role="main",
        prompt_ids=tuple(prompt),
        sampled_ids=tuple(sampled),
        logprobs=(-1.0,) * len(sampled),
        temperature=1.0,
        receipt=b"",
    )


def test_smollm2_has_the_weights_it_is_named_for() -> None:
    # 30 layers of q, o: 576 x 576; k, v: 576 x 192; gate, up, down: 576 x 1536; and tied embeddings of 49152 x 576.
    assert SMOLLM2.num_base_weights == 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    assert 134e6 < SMOLLM2.num_base_weights + 49152 * 576 < 135e6
    assert SMOLLM2.num_adapter_weights == 30 * 16 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))


def test_a_linear_layer_costs_two_operations_a_weight_and_token_forward_and_two_backward() -> None:
    only_mlp = replace(NOTHING, width=10, mlp=7)
    work = Work(tokens=5, pairs=0, trained=0)
    assert forward(only_mlp, work) == 2 * 5 * 3 * 70
    assert backward(only_mlp, work) == 2 * 5 * 3 * 70


def test_an_adapter_costs_twice_as_much_backward_because_its_weights_are_trained() -> None:
    work = Work(tokens=5, pairs=0, trained=0)
    bare, adapted = replace(NOTHING, width=10, mlp=7), replace(NOTHING, width=10, mlp=7, rank=2)
    # Rank times inputs and outputs: of the three maps of the MLP, and of four that here have no heads to map to.
    weights = 2 * (3 * 17 + 4 * 10)
    assert forward(adapted, work) - forward(bare, work) == 2 * 5 * weights
    assert backward(adapted, work) - backward(bare, work) == 4 * 5 * weights


def test_attention_costs_two_products_a_pair_forward_and_four_backward() -> None:
    only_attention = replace(NOTHING, layers=3, heads=4, head_size=8)
    work = Work(tokens=9, pairs=11, trained=0)
    assert forward(only_attention, work) == 3 * 11 * 4 * 8 * 2 * 2
    assert backward(only_attention, work) == 3 * 11 * 4 * 8 * 2 * 4


def test_the_head_is_paid_by_trained_tokens_alone() -> None:
    only_head = replace(NOTHING, layers=0, width=10, vocabulary=100)
    assert forward(only_head, Work(tokens=99, pairs=99, trained=3)) == 2 * 3 * 10 * 100
    assert backward(only_head, Work(tokens=99, pairs=99, trained=3)) == 2 * 3 * 10 * 100


def test_several_micro_batches_cost_one_forward_pass_more() -> None:
    work = Work(tokens=9, pairs=11, trained=3)
    assert step(SMOLLM2, work, 1) == forward(SMOLLM2, work) + backward(SMOLLM2, work)
    assert step(SMOLLM2, work, 2) == step(SMOLLM2, work, 7) == 2 * forward(SMOLLM2, work) + backward(SMOLLM2, work)


def test_a_causal_sequence_has_half_its_square_of_pairs() -> None:
    assert Work.of(range(100), trained=0) == Work(tokens=100, pairs=100 * 101 // 2, trained=0)


def test_shrinking_keeps_the_shares_of_layers_and_head() -> None:
    small, work = shrunk(SMOLLM2, 3), Work(tokens=1000, pairs=4000, trained=200)
    assert small.vocabulary == 4915  # A tenth of 49152, rounded.
    assert abs(10 * forward(small, work) / forward(SMOLLM2, work) - 1) < 1e-4


def test_siblings_of_one_prompt_share_it_once() -> None:
    rows = [row(range(50), [100 + number, 7, 8], call=f"c{number}") for number in range(8)]
    calls, trie = cost_of(SMOLLM2, rows, BIG, "calls"), cost_of(SMOLLM2, rows, BIG, "trie")
    # The last of three sampled ids is predicted, never run.
    assert (calls.num_tokens, trie.num_tokens) == (8 * 52, 50 + 8 * 2)
    pairs = 50 * 51 // 2 + 8 * (51 + 52)
    assert trie.flops == step(SMOLLM2, Work(66, pairs, 24), 1)
    assert cost_of(SMOLLM2, rows, BIG, "merged").flops == calls.flops
    assert least_cost(SMOLLM2, rows, BIG) == trie


def test_turns_that_go_on_from_each_other_merge_into_the_last() -> None:
    rows = [row(range(end), [end, end + 1], call=f"c{end}") for end in (10, 20, 30)]
    merged, trie = cost_of(SMOLLM2, rows, BIG, "merged"), cost_of(SMOLLM2, rows, BIG, "trie")
    assert merged == trie
    assert trie.flops == step(SMOLLM2, Work(31, 31 * 32 // 2, 6), 1)


@pytest.mark.parametrize("budget", [30, 64, 250, BIG])
def test_no_plan_needs_less_than_the_least(budget: int) -> None:
    for shape in QUICK:
        rows = workload(shape, 1000).rows
        least = least_cost(SMOLLM2, rows, budget)
        costs = [cost_of(SMOLLM2, rows, budget, sharing) for sharing in ("trie", "merged", "calls")]
        assert all(least.flops <= cost.flops and least.num_tokens <= cost.num_tokens for cost in costs)
        assert costs[0].num_tokens <= costs[1].num_tokens <= costs[2].num_tokens
