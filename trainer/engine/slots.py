"""The keys and values of one version: a slot for each running sequence, and a store of prompt blocks seen before.

The rule: a cache belongs to one version and dies with it, so a block can never be read under weights other than those
that made it. Slots are dense (0 to n-1 are in use): the attention of all running sequences reads one slice without
copying. Blocks in the store are keyed by the chain of token ids from the start of the sequence. What is scheduled, and
how attention is computed, is left to others.

Axes: N tokens, H key heads, D head width, L positions of a slot.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch

BLOCK = 16
"""Tokens of a block in the prefix store: small, because agent prompts are short and share their heads."""

BlockKey = bytes
"""A digest of all ids up to the block's end: a key depends on everything that came before."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the model and the settings fix about a cache."""

    num_layers: int
    num_heads: int
    head_width: int
    dtype: torch.dtype
    max_slots: int
    max_len: int
    max_blocks: int


class SlotCache:
    """Keys and values in one tensor `[2, layer, slot, position, head, width]` that grows by doubling."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._store = self._allocate(1, min(4 * BLOCK, shape.max_len))
        self._blocks: OrderedDict[BlockKey, torch.Tensor] = OrderedDict()

    def _allocate(self, num_slots: int, length: int) -> torch.Tensor:
        # Zeros, not empty: attention multiplies masked positions by 0, and 0 times garbage may be NaN.
        s = self._shape
        return torch.zeros(2, s.num_layers, num_slots, length, s.num_heads, s.head_width, dtype=s.dtype)

    @property
    def slot_len(self) -> int:
        return self._store.shape[3]

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    def layer(self, index: int) -> torch.Tensor:
        """Return `[2, slot, position, head, width]` of one layer, shared with the cache."""
        return self._store[:, index]

    def reserve(self, num_slots: int, length: int) -> None:
        """Make room for slots 0 to num_slots - 1 of `length` positions, keeping what they hold."""
        _, _, slots, positions, _, _ = self._store.shape
        if num_slots <= slots and length <= positions:
            return
        grown_slots = _doubled(slots, num_slots, self._shape.max_slots)
        grown_len = _doubled(positions, length, self._shape.max_len)
        grown = self._allocate(grown_slots, grown_len)
        grown[:, :, :slots, :positions] = self._store
        self._store = grown

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a slot into another one, to keep the slots in use dense."""
        self._store[:, :, target, :length] = self._store[:, :, source, :length]

    def fill_from_blocks(self, slot: int, ids: Sequence[int]) -> int:
        """Copy the longest known prefix of `ids` into a slot and return its length, always less than all of them.

        The last token is never taken from the store: its logits are needed, and only a forward makes them.
        """
        start = 0
        for key in block_keys(ids, (len(ids) - 1) // BLOCK):
            block = self._blocks.get(key)
            if block is None:
                break
            self._blocks.move_to_end(key)
            self._store[:, :, slot, start : start + BLOCK] = block
            start += BLOCK
        return start

    def num_known(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens of `ids` the store holds, without the last token's block."""
        known = 0
        for key in block_keys(ids, (len(ids) - 1) // BLOCK):
            if key not in self._blocks:
                break
            known += BLOCK
        return known

    def keep_blocks(self, slot: int, ids: Sequence[int], start: int, end: int) -> None:
        """Keep the full blocks that positions start to end - 1 of a slot completed; the oldest unused ones go."""
        if start // BLOCK == end // BLOCK:
            return
        keys = block_keys(ids, end // BLOCK)
        for number in range(start // BLOCK, end // BLOCK):
            stop = (number + 1) * BLOCK
            key = keys[number]
            if key not in self._blocks:
                self._blocks[key] = self._store[:, :, slot, stop - BLOCK : stop].clone()
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._shape.max_blocks:
            self._blocks.popitem(last=False)


def block_keys(ids: Sequence[int], count: int) -> list[BlockKey]:
    """Return the keys of the first `count` blocks, each chained to the one before it."""
    keys: list[BlockKey] = []
    key = b""
    for number in range(count):
        block = array("q", ids[number * BLOCK : (number + 1) * BLOCK])
        key = blake2b(key + block.tobytes(), digest_size=20).digest()
        keys.append(key)
    return keys


def _doubled(now: int, wanted: int, most: int) -> int:
    while now < wanted:
        now *= 2
    return max(wanted, min(now, most))
