"""Rows become merged sequences, sequences become log-probabilities of the rows' trained tokens.

A row whose input ids begin another row's shares that row's sequence: its hidden states are the same numbers. The
rule: merging, tiling and cutting into micro-batches change neither log-probabilities nor gradients of any row. Only
hidden states of trained positions reach the model's head, as (hidden, target) pairs, because two rows may ask the same
position for different targets. Sequences are padded on the right: under causal attention no real token sees the
padding, so no mask is passed. Which loss is taken of the result is left to `grpo.py`.

Axes: B rows, N trained tokens of all rows (row after row), S sequences of a tile, L its length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from tracker.errors import CorruptRecord
from tracker.samples import Row

PADDING_SHARE: Final = 0.1
"""A tile takes a shorter sequence as long as at most this share of it is padding."""
PADDING_TOKENS: Final = 64
"""Padding that is always cheaper than another pass."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One sequence and the rows whose input ids it begins with."""

    input_ids: tuple[int, ...]
    """All ids of its longest row but the last, which nothing is predicted from."""
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """Sequences of similar length that run as one rectangle."""

    branches: tuple[Branch, ...]

    @property
    def length(self) -> int:
        return max(len(branch.input_ids) for branch in self.branches)

    @property
    def num_tokens(self) -> int:
        """Padding counts: it is computed too."""
        return len(self.branches) * self.length


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of the trained tokens."""

    logps_N: Tensor
    entropies_N: Tensor


@dataclass(frozen=True, slots=True)
class _TileTensors:
    ids_SL: Tensor
    positions_N: Tensor
    """Of each trained token of the tile: where its hidden state stands in the flattened rectangle."""
    targets_N: Tensor
    temperatures_N: Tensor


def merge_rows(rows: Sequence[Row]) -> tuple[Branch, ...]:
    """Fold rows into as few sequences as whole prefixes allow, longest first.

    Sorted, everything that begins with a row's ids stands right behind it, so one pass from the end finds its sequence.
    """
    ids = [_input_ids(row) for row in rows]
    merged: list[tuple[tuple[int, ...], list[int]]] = []
    for number in sorted(range(len(rows)), key=ids.__getitem__, reverse=True):
        if merged and merged[-1][0][: len(ids[number])] == ids[number]:
            merged[-1][1].append(number)
        else:
            merged.append((ids[number], [number]))
    merged.sort(key=lambda pair: len(pair[0]), reverse=True)
    return tuple(Branch(input_ids=leaf, rows=tuple(sorted(members))) for leaf, members in merged)


def check_contexts(rows: Sequence[Row], branches: Sequence[Branch]) -> None:
    """Refuse unless every row stands in exactly one sequence, which gives each trained token its exact context."""
    seen = sorted(number for branch in branches for number in branch.rows)
    if seen != list(range(len(rows))):
        raise CorruptRecord("A row was lost or doubled when rows were merged; nothing is trained.")
    for branch in branches:
        for number in branch.rows:
            expected = _input_ids(rows[number])
            if branch.input_ids[: len(expected)] != expected:
                raise CorruptRecord(f"Call {rows[number].call_id} would be trained under another context than it had.")


def tile_branches(branches: Sequence[Branch], budget: int) -> tuple[Tile, ...]:
    """Put sequences, longest first, into rectangles of at most `budget` tokens with little padding.

    A sequence over the budget gets a rectangle of its own.
    """
    tiles: list[list[Branch]] = []
    num_padding = 0
    for branch in branches:
        if tiles:
            length = len(tiles[-1][0].input_ids)
            area = length * (len(tiles[-1]) + 1)
            padding = num_padding + length - len(branch.input_ids)
            if area <= budget and padding <= max(PADDING_TOKENS, PADDING_SHARE * area):
                tiles[-1].append(branch)
                num_padding = padding
                continue
        tiles.append([branch])
        num_padding = 0
    return tuple(Tile(tuple(members)) for members in tiles)


def cut(tiles: Sequence[Tile], budget: int) -> tuple[tuple[Tile, ...], ...]:
    """Micro-batches of at most `budget` tokens (a larger tile stands alone): what is backpropagated at once."""
    batches: list[list[Tile]] = []
    used = 0
    for tile in tiles:
        if batches and used + tile.num_tokens <= budget:
            batches[-1].append(tile)
            used += tile.num_tokens
        else:
            batches.append([tile])
            used = tile.num_tokens
    return tuple(tuple(batch) for batch in batches)


def slots_of(tiles: Sequence[Tile], rows: Sequence[Row]) -> Tensor:
    """For each trained token of these tiles, in the order `score` gives them, its place among all N."""
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.sampled_ids))
    numbers = [number for tile in tiles for number in _rows_in(tile)]
    return torch.cat([torch.arange(starts[number], starts[number + 1]) for number in numbers])


def score(model: nn.Module, head: nn.Module, tiles: Sequence[Tile], rows: Sequence[Row], grad_entropy: bool) -> Scores:
    """Log-probability and entropy of every trained token of these tiles, at its row's temperature.

    `head` is the model's output embedding, inside `model`. Without `grad_entropy`, entropies carry no gradient.
    """
    device = next(head.parameters()).device
    parts = [_score_tile(model, head, _tensors(tile, rows, device), grad_entropy) for tile in tiles]
    return Scores(torch.cat([part.logps_N for part in parts]), torch.cat([part.entropies_N for part in parts]))


def tempered_logits(model: nn.Module, head: nn.Module, tile: Tile, rows: Sequence[Row]) -> Tensor:
    """The (N, V) logits of a tile's trained positions divided by the temperature of their rows, at least in fp32."""
    return _logits(model, head, _tensors(tile, rows, next(head.parameters()).device))


def _score_tile(model: nn.Module, head: nn.Module, tensors: _TileTensors, grad_entropy: bool) -> Scores:
    logits_NV = _logits(model, head, tensors)
    logps_N = -nn.functional.cross_entropy(logits_NV, tensors.targets_N, reduction="none")
    with torch.set_grad_enabled(grad_entropy and torch.is_grad_enabled()):
        distribution_NV = torch.log_softmax(logits_NV, dim=-1)
        entropies_N = -(distribution_NV.exp() * distribution_NV).sum(dim=-1)
    return Scores(logps_N, entropies_N)


def _logits(model: nn.Module, head: nn.Module, tensors: _TileTensors) -> Tensor:
    def gather(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        hidden: Tensor = inputs[0]
        return (hidden.flatten(0, 1).index_select(0, tensors.positions_N),)

    # The model's own forward runs, so that what it does behind its head (soft caps, scales) and hooks around it hold.
    handle = head.register_forward_pre_hook(gather)
    try:
        logits_NV: Tensor = model(input_ids=tensors.ids_SL, use_cache=False).logits
    finally:
        handle.remove()
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    return logits_NV.to(exact) / tensors.temperatures_N.to(exact).unsqueeze(1)


def _tensors(tile: Tile, rows: Sequence[Row], device: torch.device) -> _TileTensors:
    length = tile.length
    ids_SL = torch.zeros(len(tile.branches), length, dtype=torch.long)
    positions: list[Tensor] = []
    for place, branch in enumerate(tile.branches):
        ids_SL[place, : len(branch.input_ids)] = torch.tensor(branch.input_ids)
        for number in branch.rows:
            start = place * length + len(rows[number].prompt_ids) - 1
            positions.append(torch.arange(start, start + len(rows[number].sampled_ids)))
    members = [rows[number] for number in _rows_in(tile)]
    targets = [token for row in members for token in row.sampled_ids]
    temperatures = [row.temperature for row in members for _ in row.sampled_ids]
    return _TileTensors(
        ids_SL=ids_SL.to(device),
        positions_N=torch.cat(positions).to(device),
        targets_N=torch.tensor(targets, device=device),
        temperatures_N=torch.tensor(temperatures, dtype=torch.float64).to(device),
    )


def _rows_in(tile: Tile) -> list[int]:
    return [number for branch in tile.branches for number in branch.rows]


def _input_ids(row: Row) -> tuple[int, ...]:
    return (row.prompt_ids + row.sampled_ids)[:-1]
