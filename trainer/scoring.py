"""What the model says of the trained tokens: their log-probabilities and the entropies of where they were sampled.

The rule: only hidden states of trained positions reach the model's head, as (hidden, target) pairs, because two rows
may ask the same position for different targets. Logits are kept as the model computes them; everything wider (single
precision, probabilities) is made of a few rows at a time, forward and backward. How rows are laid out for the model is
left to passes: a pack of the trie, or a tile of merged rows.

Axes: N trained tokens of the rows of a pass, V vocabulary, C of the N at a time.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn

from tracker.samples import Row

WIDE_BYTES: Final = 64 * 2**20
"""Logits are made wide this many bytes at a time."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of the trained tokens."""

    logps_N: Tensor
    entropies_N: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """One forward pass."""

    model: dict[str, Any]
    """Keyword arguments of the model; `input_ids` among them."""
    places_N: Tensor
    """Where each trained token's hidden state stands in the flattened output, row after row."""


class Pass(Protocol):
    """Rows that run through the model together."""

    @property
    def num_tokens(self) -> int:
        """What it costs, padding included."""
        ...

    @property
    def row_numbers(self) -> tuple[int, ...]:
        """Its rows, in the order in which their tokens are scored."""
        ...

    def inputs(self, rows: Sequence[Row], device: torch.device) -> Inputs:
        """`rows` are all rows of the step."""
        ...


def score(model: nn.Module, head: nn.Module, passes: Sequence[Pass], rows: Sequence[Row]) -> Scores:
    """Log-probability and entropy of every trained token of these passes, at its row's temperature.

    `head` is the model's output embedding, inside `model`.
    """
    parts = [_score(model, head, one, rows) for one in passes]
    return Scores(torch.cat([part.logps_N for part in parts]), torch.cat([part.entropies_N for part in parts]))


def logits_of(model: nn.Module, head: nn.Module, one: Pass, rows: Sequence[Row]) -> Tensor:
    """The (N, V) logits of a pass's trained positions, before any temperature."""
    return logits_at(model, head, one.inputs(rows, next(head.parameters()).device))


def logits_at(model: nn.Module, head: nn.Module, inputs: Inputs) -> Tensor:
    """The (N, V) logits at some places of a forward pass."""

    def gather(_: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
        hidden: Tensor = given[0]
        return (hidden.flatten(0, 1).index_select(0, inputs.places_N),)

    # The model's own forward runs, so that what it does behind its head (soft caps, scales) and hooks around it hold.
    handle = head.register_forward_pre_hook(gather)
    try:
        logits_NV: Tensor = model(**inputs.model, use_cache=False).logits
    finally:
        handle.remove()
    return logits_NV


def output_embeddings(model: nn.Module) -> nn.Module:
    """What turns hidden states into logits."""
    return cast("nn.Module", cast(Any, model).get_output_embeddings())


def temperatures_of(one: Pass, rows: Sequence[Row]) -> Tensor:
    """The temperature of each trained token of a pass, in double precision."""
    members = [rows[number] for number in one.row_numbers]
    return torch.tensor([row.temperature for row in members for _ in row.sampled_ids], dtype=torch.float64)


def _score(model: nn.Module, head: nn.Module, one: Pass, rows: Sequence[Row]) -> Scores:
    logits_NV = logits_of(model, head, one, rows)
    targets = [token for number in one.row_numbers for token in rows[number].sampled_ids]
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    take = cast("Callable[..., tuple[Tensor, Tensor]]", _TokenScores.apply)
    logps_N, entropies_N = take(
        logits_NV,
        torch.tensor(targets, device=logits_NV.device),
        temperatures_of(one, rows).to(logits_NV.device, exact),
    )
    return Scores(logps_N, entropies_N)


class _TokenScores(torch.autograd.Function):
    """log p(target) and -sum p log p of softmax(logits / temperature), with gradients for both.

    With z = logits / T: d log p_t / dz = onehot_t - p, and dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperatures_N: Tensor) -> tuple[Tensor, Tensor]:
        lse_N, logps_N, entropies_N = (torch.empty_like(temperatures_N) for _ in range(3))
        for chunk in _chunks(logits_NV):
            z_CV = _tempered(logits_NV, temperatures_N, chunk)
            lse_N[chunk] = torch.logsumexp(z_CV, dim=1)
            logps_N[chunk] = z_CV.gather(1, targets_N[chunk].unsqueeze(1)).squeeze(1) - lse_N[chunk]
            p_CV = (z_CV - lse_N[chunk].unsqueeze(1)).exp_()
            entropies_N[chunk] = lse_N[chunk] - p_CV.mul_(z_CV).sum(dim=1)
        ctx.save_for_backward(logits_NV, targets_N, temperatures_N, lse_N, entropies_N)
        return logps_N, entropies_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, targets_N, temperatures_N, lse_N, entropies_N = ctx.saved_tensors
        logp_gradient_N, entropy_gradient_N = gradients
        has_entropy = bool(entropy_gradient_N.any())
        d_logits_NV = torch.empty_like(logits_NV)
        for chunk in _chunks(logits_NV):
            logp_CV = _tempered(logits_NV, temperatures_N, chunk).sub_(lse_N[chunk].unsqueeze(1))
            weight_C1 = -logp_gradient_N[chunk].unsqueeze(1)
            p_CV = logp_CV.exp()
            if has_entropy:
                entropy_C1 = entropies_N[chunk].unsqueeze(1)
                d_CV = p_CV.mul_(weight_C1 - entropy_gradient_N[chunk].unsqueeze(1) * (logp_CV + entropy_C1))
            else:
                d_CV = p_CV.mul_(weight_C1)
            d_CV.scatter_add_(1, targets_N[chunk].unsqueeze(1), -weight_C1)
            d_logits_NV[chunk] = d_CV.div_(temperatures_N[chunk].unsqueeze(1)).to(d_logits_NV.dtype)
        return d_logits_NV, None, None


def _chunks(logits_NV: Tensor) -> list[slice]:
    wide = max(4, logits_NV.element_size())
    step = max(1, WIDE_BYTES // (wide * logits_NV.shape[1]))
    return [slice(first, first + step) for first in range(0, len(logits_NV), step)]


def _tempered(logits_NV: Tensor, temperatures_N: Tensor, chunk: slice) -> Tensor:
    return logits_NV[chunk].to(temperatures_N.dtype) / temperatures_N[chunk].unsqueeze(1)
