"""Attention of a mixed batch over the slots of one version, as a transformers attention function.

A forward takes the tokens of all sequences as one row, so each weight is read once a step whatever the sequences do:
some read their prompt, some are at their next token. Only here do sequences come apart. Each group (sequences with
about as many new tokens) writes its keys and values into its slots and runs one scaled-dot-product attention over
them; query heads that share a key head are stacked along the query axis, so keys are never repeated in memory.

The rule: a token sees exactly the positions of its own slot up to its own. The layout is planned once a step, on
integers (`plan_step`), and used by every layer. What is in a batch is left to the scheduler.

Axes: N tokens of the step, B sequences of a group, T padded new tokens of a group, H query heads, K key heads,
G = H / K, D head width, L positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from trainer.engine.slots import BLOCK, SlotCache

ATTENTION_NAME = "hone_slots"


@dataclass(frozen=True, slots=True)
class Piece:
    """The new tokens of one sequence in a step: positions `start` to `start + count - 1` of `slot`."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that share one attention call. Their tokens lie side by side in the step's row."""

    first: int
    """Where the group's tokens begin in the row."""
    num_tokens: int
    num_sequences: int
    width: int
    """T, the most new tokens of one sequence."""
    slots: slice | torch.Tensor
    """A slice where the slots are adjacent (no copy), else their indices."""
    length: int
    """L, how many positions of the slots are looked at."""
    padded_BT: torch.Tensor | None
    """Token (within the group) at each padded place; None where nothing is padded."""
    valid_N: torch.Tensor | None
    """The padded place of each token; None where nothing is padded."""
    mask_B1TL: torch.Tensor
    """What is added to the scores: 0 where a token may look, minus infinity elsewhere."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How the tokens of one step lie in their row and in the slots."""

    cache: SlotCache
    order: tuple[int, ...]
    """The pieces in the order in which their tokens lie in the row."""
    positions_N: torch.Tensor
    places_N: torch.Tensor
    """slot * slot_len + position of each token."""
    last_P: torch.Tensor
    """The row index of each piece's last token, in the order of `order`."""
    groups: tuple[Group, ...]


def plan_step(cache: SlotCache, pieces: Sequence[Piece], dtype: torch.dtype) -> StepPlan:
    """Lay out the tokens of a step: pieces of about equal size (the same power of two) form a group."""
    order = sorted(range(len(pieces)), key=lambda i: (pieces[i].count.bit_length(), pieces[i].slot))
    ordered = [pieces[i] for i in order]
    groups: list[Group] = []
    first = 0
    for _, members in groupby(ordered, key=lambda piece: piece.count.bit_length()):
        group = _group(first, list(members), cache.slot_len, dtype)
        groups.append(group)
        first += group.num_tokens
    spans = [torch.arange(p.start, p.start + p.count) for p in ordered]
    counts = torch.tensor([p.count for p in ordered])
    positions_N = torch.cat(spans)
    slots_N = torch.tensor([p.slot for p in ordered]).repeat_interleave(counts)
    return StepPlan(
        cache=cache,
        order=tuple(order),
        positions_N=positions_N,
        places_N=slots_N * cache.slot_len + positions_N,
        last_P=counts.cumsum(0) - 1,
        groups=tuple(groups),
    )


def _group(first: int, members: list[Piece], slot_len: int, dtype: torch.dtype) -> Group:
    width = max(piece.count for piece in members)
    num_tokens = sum(piece.count for piece in members)
    longest = max(piece.start + piece.count for piece in members)
    length = min(-(-longest // BLOCK) * BLOCK, slot_len)
    starts_B1 = torch.tensor([piece.start for piece in members])[:, None]
    counts_B1 = torch.tensor([piece.count for piece in members])[:, None]
    steps_T = torch.arange(width)[None, :].expand(len(members), width)
    is_new_BT = steps_T < counts_B1
    sees_BTL = torch.arange(length) <= (starts_B1 + steps_T)[:, :, None]
    is_padded = num_tokens < len(members) * width
    offsets_B1 = counts_B1.cumsum(0) - counts_B1
    return Group(
        first=first,
        num_tokens=num_tokens,
        num_sequences=len(members),
        width=width,
        slots=_slots(members),
        length=length,
        # A padded place repeats the group's first token; what comes out there is thrown away.
        padded_BT=torch.where(is_new_BT, offsets_B1 + steps_T, 0).flatten() if is_padded else None,
        valid_N=is_new_BT.flatten().nonzero()[:, 0] if is_padded else None,
        mask_B1TL=torch.zeros(sees_BTL.shape, dtype=dtype).masked_fill_(~sees_BTL, float("-inf"))[:, None],
    )


def _slots(members: list[Piece]) -> slice | torch.Tensor:
    numbers = [piece.slot for piece in members]
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return torch.tensor(numbers)


def slot_attention(  # noqa: PLR0913 - transformers' signature
    module: torch.nn.Module,
    query_1HND: torch.Tensor,
    key_1KND: torch.Tensor,
    value_1KND: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: StepPlan,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Write the new keys and values, then attend group by group. Returns `[1, N, H, D]` as transformers expects."""
    both = plan.cache.layer(cast(int, module.layer_idx))
    rows = both.view(2, -1, *both.shape[3:])
    rows[0].index_copy_(0, plan.places_N, key_1KND[0].transpose(0, 1))
    rows[1].index_copy_(0, plan.places_N, value_1KND[0].transpose(0, 1))
    outputs = [_attend(query_1HND[0], both, group, scaling) for group in plan.groups]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined[None], None


def _attend(query_HND: torch.Tensor, both: torch.Tensor, group: Group, scaling: float | None) -> torch.Tensor:
    """Attention of one group; returns `[tokens of the group, H, D]`."""
    H, _, D = query_HND.shape
    K = both.shape[3]
    B, T = group.num_sequences, group.width
    new_HND = query_HND[:, group.first : group.first + group.num_tokens]
    if group.padded_BT is not None:
        new_HND = new_HND[:, group.padded_BT]
    stacked = new_HND.view(H, B, T, D).transpose(0, 1).reshape(B, K, (H // K) * T, D)
    past = both[:, group.slots, : group.length].transpose(2, 3)
    mask = group.mask_B1TL.repeat(1, 1, H // K, 1)
    seen = scaled_dot_product_attention(stacked, past[0], past[1], attn_mask=mask, scale=scaling)
    out = seen.view(B, H, T, D).transpose(1, 2).reshape(B * T, H, D)
    return out if group.valid_N is None else out[group.valid_N]


def _no_mask(*_: object, **__: object) -> None:
    """The plan carries the masks: transformers has none to make."""


def register_attention() -> None:
    """Make the attention known to transformers under `ATTENTION_NAME`. Registering again changes nothing."""
    cast(Any, AttentionInterface).register(ATTENTION_NAME, slot_attention)
    cast(Any, AttentionMaskInterface).register(ATTENTION_NAME, _no_mask)
