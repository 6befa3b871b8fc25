"""How the rows of a step run through the model: packed or tiled, cut into micro-batches, and put back in order.

The rule: the loss is taken once, on leaves that hold the scores of all rows; each micro-batch then gets exactly the
gradient that the loss left at its leaves, so where a step is cut changes nothing. What is computed of a pass is in
`scoring.py`, the loss in `grpo.py`.

Axes: N trained tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tracker.samples import Row
from trainer.attention import Layout
from trainer.branches import check_contexts, cut, merge_rows, tile_branches
from trainer.scoring import Inputs, Pass, Scores
from trainer.trie import Pack, Sharing, input_ids, plan_packs, shared_prefixes, sorted_numbers, trained_places

MicroBatch = tuple[Pass, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack of the trie as one forward pass."""

    pack: Pack

    @property
    def num_tokens(self) -> int:
        return self.pack.num_tokens

    @property
    def row_numbers(self) -> tuple[int, ...]:
        return self.pack.rows

    def inputs(self, rows: Sequence[Row], device: torch.device) -> Inputs:
        pack = self.pack
        places = [
            place
            for number, path in zip(pack.rows, pack.paths, strict=True)
            for place in trained_places(path, rows[number])
        ]
        model = {
            "input_ids": torch.tensor([pack.ids], device=device),
            "position_ids": torch.tensor([pack.depths], device=device),
            "layout": Layout.of(pack, device),
        }
        return Inputs(model, torch.tensor(places, device=device))


@dataclass(frozen=True, slots=True)
class Plan:
    """How the rows of a step run through the model."""

    rows: tuple[Row, ...]
    micro_batches: tuple[MicroBatch, ...]

    @property
    def num_run_tokens(self) -> int:
        """Tokens that are run, in all micro-batches together."""
        return sum(one.num_tokens for micro_batch in self.micro_batches for one in micro_batch)


def plan_trie(rows: tuple[Row, ...], budget: int, sharing: Sharing = "trie") -> Plan:
    """Pack and cut the rows, each micro-batch one pass; checks that each row keeps its context."""
    return Plan(rows, tuple((Packed(pack),) for pack in plan_packs(rows, budget, sharing)))


def plan_tiles(rows: tuple[Row, ...], budget: int) -> Plan:
    """Merge, tile and cut the rows; checks that each keeps its context."""
    branches = merge_rows(rows)
    check_contexts(rows, branches)
    return Plan(rows, cut(tile_branches(branches, budget), budget))


def merged_size(rows: Sequence[Row]) -> tuple[int, int]:
    """Number of branches and of their tokens: what these rows are as merged rows."""
    sequences = [input_ids(row) for row in rows]
    ordered = [sequences[number] for number in sorted_numbers(sequences)]
    shared = shared_prefixes(ordered, "merged")
    return shared.count(0), sum(map(len, ordered)) - sum(shared)


def slots_of(micro_batch: MicroBatch, rows: Sequence[Row]) -> Tensor:
    """For each trained token of a micro-batch, in the order in which they are scored, its place among all N."""
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.sampled_ids))
    numbers = [number for one in micro_batch for number in one.row_numbers]
    return torch.cat([torch.arange(starts[number], starts[number + 1]) for number in numbers])


def in_order(pieces: Mapping[int, Scores], plan: Plan, weight: Tensor) -> Scores:
    """The scores of these micro-batches in the order of the rows; zero for those of all others.

    `weight` is one of the model's: scores are on its device, and as exact as it, but at least single precision.
    """
    num_trained = sum(len(row.sampled_ids) for row in plan.rows)
    exact = torch.promote_types(weight.dtype, torch.float32)
    logps_N, entropies_N = (torch.zeros(num_trained, dtype=exact, device=weight.device) for _ in range(2))
    for number, piece in pieces.items():
        slots = slots_of(plan.micro_batches[number], plan.rows).to(weight.device)
        logps_N, entropies_N = (
            whole_N.index_put((slots,), part_N)
            for whole_N, part_N in ((logps_N, piece.logps_N), (entropies_N, piece.entropies_N))
        )
    return Scores(logps_N, entropies_N)


def carry_back(scores: Scores, leaves: Scores, slots_N: Tensor) -> None:
    """Give the model's outputs the gradients that the loss left at the leaves."""
    gradients = [_gradient(leaf)[slots_N] for leaf in (leaves.logps_N, leaves.entropies_N)]
    torch.autograd.backward([scores.logps_N, scores.entropies_N], gradients)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
