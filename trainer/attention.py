"""Attention over a token trie, as an attention of transformers.

Tokens lie depth first in one row; a token sees the tokens on its path from the root, itself included. The rule: no
matrix of all tokens by all tokens is ever made, and nothing is computed of a pair that does not see each other. On a
CPU each segment is a key block twice: its own tokens look at it causally, and its descendants, which lie right behind
it, look at all of it. Partial results are put together by their log-sum-exp, so no path is gathered or copied, and the
backward pass needs only queries, keys, values, output and log-sum-exp, like any flash attention. Elsewhere
FlexAttention computes the same from `key <= query < end of the key's subtree`.

A model's layers must leave attention to transformers' interface, have no other way to look at other tokens, and pass
keyword arguments on; `trial.py` tries that on each model. What is in a pack is left to `trie.py`.

Axes: N packed tokens, H query heads, K key heads, G = H / K, D head width, Q queries and S keys of one block.
"""

# torch's attention kernels are typed as unknown: what crosses that seam is typed by hand here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface

from trainer.trie import Pack, Segment

ATTENTION: Final = "hone_trie"
MASKED_QUERIES: Final = 512
"""Queries of one masked block: an explicit mask has this many rows at most."""

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Block:
    """Queries and the keys they look at, in one call of the kernel."""

    queries: slice | Tensor
    """Places in the row: a slice where they lie side by side."""
    keys: slice
    num_queries: int
    is_first: bool
    """Whether these queries have looked at nothing before."""
    is_causal: bool = False
    """Queries are the keys' own tokens, each of which sees those up to itself."""
    mask_QS: Tensor | None = None
    """Which keys each query sees, where it is neither all nor those up to itself."""


@dataclass(slots=True)
class Layout:
    """Where the tokens of a pack lie, for the attention of every layer; block lists are made once for each window."""

    segments: tuple[Segment, ...]
    depths_N: Tensor
    ends_N: Tensor
    """Of each token, where its segment's subtree ends."""
    blocks: dict[int | None, tuple[Block, ...]] = field(default_factory=dict[int | None, tuple[Block, ...]])
    masks: dict[int | None, BlockMask] = field(default_factory=dict[int | None, BlockMask])

    @classmethod
    def of(cls, pack: Pack, device: torch.device) -> Layout:
        lengths = torch.tensor([segment.end - segment.start for segment in pack.segments])
        ends_N = torch.tensor([segment.stop for segment in pack.segments]).repeat_interleave(lengths)
        return cls(pack.segments, torch.tensor(pack.depths).to(device), ends_N.to(device))

    def blocks_of(self, window: int | None) -> tuple[Block, ...]:
        """The kernel calls of a layer, for each token first the one on its own segment.

        `window` is how many tokens up its path a token sees, itself included.
        """
        if window not in self.blocks:
            make = _whole_blocks if window is None else _windowed_blocks
            blocks = [block for segment in self.segments for block in make(self, segment, window)]
            self.blocks[window] = tuple(sorted(blocks, key=lambda block: not block.is_first))
        return self.blocks[window]

    def mask_of(self, window: int | None) -> BlockMask:
        """The same for FlexAttention."""
        if window not in self.masks:
            num_tokens, device = len(self.depths_N), self.depths_N.device
            # Compiled, it goes block by block and holds no matrix of all tokens by all tokens either.
            self.masks[window] = create_block_mask(
                _sees(self, window), None, None, num_tokens, num_tokens, device, _compile=device.type != "cpu"
            )
        return self.masks[window]


def _whole_blocks(_: Layout, segment: Segment, __: int | None) -> list[Block]:
    own, below = slice(segment.start, segment.end), slice(segment.end, segment.stop)
    num_own = segment.end - segment.start
    blocks = [Block(own, own, num_own, is_first=True, is_causal=True)]
    if segment.stop > segment.end:
        blocks.append(Block(below, own, segment.stop - segment.end, is_first=False))
    return blocks


def _windowed_blocks(layout: Layout, segment: Segment, window: int | None) -> list[Block]:
    """As above, with masks where the window ends inside a block, and without queries that are too far down."""
    assert window is not None
    own = slice(segment.start, segment.end)
    num_own = segment.end - segment.start
    blocks: list[Block] = []
    if num_own <= window:
        blocks.append(Block(own, own, num_own, is_first=True, is_causal=True))
    else:
        for first in range(segment.start, segment.end, MASKED_QUERIES):
            queries = torch.arange(first, min(first + MASKED_QUERIES, segment.end))
            keys = slice(max(segment.start, first - window + 1), int(queries[-1]) + 1)
            blocks.append(_masked(layout, queries, keys, window, is_first=True))
    below_depths = layout.depths_N[segment.end : segment.stop].cpu()
    first_depth, last_depth = segment.depth, segment.depth + num_own - 1
    seeing = (below_depths - last_depth < window).nonzero()[:, 0]
    if len(seeing) == 0:
        return blocks
    if len(seeing) == len(below_depths) and int(below_depths.max()) - first_depth < window:
        return [*blocks, Block(slice(segment.end, segment.stop), own, len(seeing), is_first=False)]
    return blocks + [
        _masked(layout, queries + segment.end, own, window, is_first=False) for queries in seeing.split(MASKED_QUERIES)
    ]


def _masked(layout: Layout, queries: Tensor, keys: slice, window: int, *, is_first: bool) -> Block:
    depths_N = layout.depths_N.cpu()
    distance_QS = depths_N[queries].unsqueeze(1) - depths_N[keys].unsqueeze(0)
    mask_QS = (distance_QS >= 0) & (distance_QS < window)
    return Block(queries, keys, len(queries), is_first=is_first, mask_QS=mask_QS)


class _TrieAttention(torch.autograd.Function):
    """Attention by blocks on a CPU. Queries of a key head's group lie side by side, so keys are never repeated but in
    causal blocks, whose kernel knows no groups."""

    @staticmethod
    def forward(
        ctx: Any, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, blocks: tuple[Block, ...], scale: float
    ) -> Tensor:
        _, H, N, D = query_1HND.shape
        K = key_1KND.shape[1]
        exact = torch.promote_types(query_1HND.dtype, torch.float32)
        queries = _grouped(query_1HND, K)
        out = torch.empty(1, K, N, H // K, D, dtype=exact)
        lse = torch.empty(1, K, N, H // K, dtype=exact)
        for block in blocks:
            new_out, new_lse = _attend(block, queries, key_1KND, value_1KND, scale)
            if block.is_first:
                out[:, :, block.queries] = new_out
                lse[:, :, block.queries] = new_lse
            else:
                _merge(out, lse, block.queries, new_out, new_lse)
        out = out.to(query_1HND.dtype)
        ctx.save_for_backward(query_1HND, key_1KND, value_1KND, out, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return out.transpose(1, 2).reshape(1, N, H, D)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query_1HND, key_1KND, value_1KND, out, lse = ctx.saved_tensors
        _, H, N, D = query_1HND.shape
        K = key_1KND.shape[1]
        taken = _Taken(
            queries=_grouped(query_1HND, K),
            keys=key_1KND,
            values=value_1KND,
            out=out,
            lse=lse,
            gradient=gradients[0].view(1, N, K, H // K, D).transpose(1, 2).contiguous(),
        )
        exact = lse.dtype
        d_queries = torch.zeros(1, K, N, H // K, D, dtype=exact)
        d_keys, d_values = (torch.zeros(1, K, N, D, dtype=exact) for _ in range(2))
        for block in ctx.blocks:
            d_query, d_key, d_value = _attend_backward(block, taken, ctx.scale)
            d_queries[:, :, block.queries] += d_query
            d_keys[:, :, block.keys] += d_key
            d_values[:, :, block.keys] += d_value
        d_query_1HND = d_queries.transpose(2, 3).reshape(1, H, N, D).to(query_1HND.dtype)
        return d_query_1HND, d_keys.to(key_1KND.dtype), d_values.to(value_1KND.dtype), None, None


@dataclass(frozen=True, slots=True)
class _Taken:
    """What the backward pass reads. All but keys and values are `[1, K, N, G, …]`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    out: Tensor
    lse: Tensor
    gradient: Tensor


def _grouped(query_1HND: Tensor, num_key_heads: int) -> Tensor:
    """`[1, K, N, G, D]`: the queries of one token and key head side by side."""
    _, H, N, D = query_1HND.shape
    return query_1HND.view(1, num_key_heads, H // num_key_heads, N, D).transpose(2, 3).contiguous()


def _attend(block: Block, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output `[1, K, Q, G, D]` and log-sum-exp `[1, K, Q, G]` of a block."""
    chosen = queries[:, :, block.queries]
    key, value = keys[:, :, block.keys], values[:, :, block.keys]
    if block.is_causal:
        G = chosen.shape[3]
        out, lse = _flash(_by_head(chosen), _repeated(key, G), _repeated(value, G), is_causal=True, scale=scale)
        return _by_group(out, chosen), lse.view(1, -1, G, block.num_queries).transpose(2, 3)
    out, lse = _flash(chosen.flatten(2, 3), key, value, attn_mask=_additive(block, chosen), scale=scale)
    return out.view(chosen.shape), lse.view(chosen.shape[:4])


def _attend_backward(block: Block, taken: _Taken, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a block's queries `[1, K, Q, G, D]`, keys and values `[1, K, S, D]`."""
    chosen = taken.queries[:, :, block.queries]
    out, gradient = taken.out[:, :, block.queries], taken.gradient[:, :, block.queries]
    lse = taken.lse[:, :, block.queries]
    key, value = taken.keys[:, :, block.keys], taken.values[:, :, block.keys]
    if block.is_causal:
        G, num_heads = chosen.shape[3], chosen.shape[1] * chosen.shape[3]
        keys, values = _repeated(key, G), _repeated(value, G)
        by_head = [_by_head(tensor) for tensor in (gradient, chosen, out)]
        lse_1HQ = lse.transpose(2, 3).reshape(1, num_heads, block.num_queries)
        d_query, d_key, d_value = _flash_backward(
            by_head[0], by_head[1], keys, values, by_head[2], lse_1HQ, 0.0, True, scale=scale
        )
        return _by_group(d_query, chosen), _summed(d_key, key), _summed(d_value, value)
    flat = [tensor.flatten(2, 3) for tensor in (gradient, chosen, out, lse)]
    mask = _additive(block, chosen)
    d_query, d_key, d_value = _flash_backward(
        flat[0], flat[1], key, value, flat[2], flat[3], 0.0, False, attn_mask=mask, scale=scale
    )
    return d_query.view(chosen.shape), d_key, d_value


def _merge(out: Tensor, lse: Tensor, places: slice | Tensor, new_out: Tensor, new_lse: Tensor) -> None:
    """Put what these queries saw now together with what they saw before."""
    old_lse = lse[:, :, places]
    both = torch.logaddexp(old_lse, new_lse)
    kept = out[:, :, places] * (old_lse - both).exp_().unsqueeze(-1)
    out[:, :, places] = kept.addcmul_(new_out.to(kept.dtype), (new_lse - both).exp_().unsqueeze(-1))
    lse[:, :, places] = both


def _by_head(grouped: Tensor) -> Tensor:
    """`[1, K, Q, G, D]` to `[1, H, Q, D]`."""
    _, K, Q, G, D = grouped.shape
    return grouped.transpose(2, 3).reshape(1, K * G, Q, D)


def _by_group(by_head: Tensor, like: Tensor) -> Tensor:
    """`[1, H, Q, D]` to `[1, K, Q, G, D]`."""
    _, K, Q, G, D = like.shape
    return by_head.view(1, K, G, Q, D).transpose(2, 3)


def _repeated(keys: Tensor, num_groups: int) -> Tensor:
    return keys.repeat_interleave(num_groups, dim=1) if num_groups > 1 else keys


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of repeated keys, summed over their copies."""
    _, K, S, D = like.shape
    return gradient.view(1, K, -1, S, D).sum(dim=2)


def _additive(block: Block, chosen: Tensor) -> Tensor | None:
    """The mask as the kernel wants it, each row once for every query of the group."""
    if block.mask_QS is None:
        return None
    mask = torch.zeros(block.mask_QS.shape, dtype=chosen.dtype).masked_fill_(~block.mask_QS, float("-inf"))
    return mask.repeat_interleave(chosen.shape[3], dim=0)


def _sees(layout: Layout, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's rule of who sees whom."""

    def sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_above = (key <= query) & (query < layout.ends_N[key])
        if window is None:
            return is_above
        return is_above & (layout.depths_N[query] - layout.depths_N[key] < window)

    return sees


def trie_attention(  # noqa: PLR0913 - transformers' signature
    module: torch.nn.Module,
    query_1HND: Tensor,
    key_1KND: Tensor,
    value_1KND: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer; returns `[1, N, H, D]`."""
    scale = query_1HND.shape[-1] ** -0.5 if scaling is None else scaling
    if query_1HND.device.type == "cpu":
        blocks = layout.blocks_of(sliding_window)
        return cast(Tensor, _TrieAttention.apply(query_1HND, key_1KND, value_1KND, blocks, scale)), None
    return flex(query_1HND, key_1KND, value_1KND, layout.mask_of(sliding_window), scale), None


def flex(query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """FlexAttention, compiled where there is something to gain; returns `[1, N, H, D]`."""
    run: Any = flex_attention if query_1HND.device.type == "cpu" else _compiled_flex()
    out: Tensor = run(query_1HND, key_1KND, value_1KND, block_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).contiguous()


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def _no_mask(*_: object, **__: object) -> None:
    """The layout says who sees whom: transformers has no mask to make."""


def register_attention() -> None:
    """Make the attention known to transformers under `ATTENTION`. Registering again changes nothing."""
    cast(Any, AttentionInterface).register(ATTENTION, trie_attention)
    cast(Any, AttentionMaskInterface).register(ATTENTION, _no_mask)
