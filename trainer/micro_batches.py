"""How the rows of a step run through the model: merged, tiled, cut into micro-batches, and put back in order.

The rule: the loss is taken once, on leaves that hold the scores of all rows; each micro-batch then gets exactly the
gradient that the loss left at its leaves, so where a step is cut changes nothing. What is computed of a tile is in
`branches.py`, the loss in `grpo.py`.

Axes: N trained tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tracker.samples import Row
from trainer.branches import Scores, Tile, check_contexts, cut, merge_rows, slots_of, tile_branches


@dataclass(frozen=True, slots=True)
class Plan:
    """How the rows of a step run through the model."""

    rows: tuple[Row, ...]
    micro_batches: tuple[tuple[Tile, ...], ...]
    num_branches: int
    num_merged_tokens: int


def plan_rows(rows: tuple[Row, ...], budget: int) -> Plan:
    """Merge, tile and cut the rows, having checked that each keeps its context."""
    branches = merge_rows(rows)
    check_contexts(rows, branches)
    merged = sum(len(branch.input_ids) for branch in branches)
    return Plan(rows, cut(tile_branches(branches, budget), budget), len(branches), merged)


def in_order(pieces: Sequence[Scores], plan: Plan) -> Scores:
    """The scores of all micro-batches, brought into the order of the rows."""
    slots = torch.cat([slots_of(tiles, plan.rows) for tiles in plan.micro_batches])
    order = torch.argsort(slots).to(pieces[0].logps_N.device)
    return Scores(
        torch.cat([piece.logps_N for piece in pieces])[order],
        torch.cat([piece.entropies_N for piece in pieces])[order],
    )


def carry_back(scores: Scores, leaves: Scores, slots_N: Tensor) -> None:
    """Give the model's outputs the gradients that the loss left at the leaves."""
    outputs, gradients = [scores.logps_N], [_gradient(leaves.logps_N)[slots_N]]
    if scores.entropies_N.requires_grad:
        outputs.append(scores.entropies_N)
        gradients.append(_gradient(leaves.entropies_N)[slots_N])
    torch.autograd.backward(outputs, gradients)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
