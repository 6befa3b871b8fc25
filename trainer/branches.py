"""Merged rows: what runs where a model's layers cannot be walked as a tree.

A row whose input ids begin another row's shares that row's sequence: its hidden states are the same numbers. Sequences
of similar length run as one rectangle, through the model's own attention. The rule: merging, tiling and cutting into
micro-batches change neither log-probabilities nor gradients of any row. What else can be shared is left to `trie.py`.

Axes: S sequences of a tile, L its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tracker.errors import CorruptRecord
from tracker.evidence import check_context
from tracker.samples import Row
from trainer.scoring import Inputs
from trainer.trie import input_ids

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

    @property
    def row_numbers(self) -> tuple[int, ...]:
        return tuple(number for branch in self.branches for number in branch.rows)

    def inputs(self, rows: Sequence[Row], device: torch.device) -> Inputs:
        """Padded on the right: under causal layers no real token sees the padding, so no mask is passed."""
        ids_SL = torch.zeros(len(self.branches), self.length, dtype=torch.long)
        places: list[Tensor] = []
        for place, branch in enumerate(self.branches):
            ids_SL[place, : len(branch.input_ids)] = torch.tensor(branch.input_ids)
            for number in branch.rows:
                start = place * self.length + len(rows[number].prompt_ids) - 1
                places.append(torch.arange(start, start + len(rows[number].sampled_ids)))
        return Inputs({"input_ids": ids_SL.to(device)}, torch.cat(places).to(device))


def merge_rows(rows: Sequence[Row]) -> tuple[Branch, ...]:
    """Fold rows into as few sequences as whole prefixes allow, longest first.

    Sorted, everything that begins with a row's ids stands right behind it, so one pass from the end finds its sequence.
    """
    ids = [input_ids(row) for row in rows]
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
            check_context(rows[number], branch.input_ids[: len(input_ids(rows[number]))])


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
