"""One token for each row of logits, and the log-probabilities of the distribution it was drawn from.

The rule: what is reported is what was sampled from. Logits are biased, divided by the temperature, cut by min_p, top_k
and top_p in this order, renormalised, and drawn from with the row's own generator. Below a temperature of 1e-5 the most
likely token is taken and the reported distribution is the plain softmax of the (biased) logits: there is no sampling
whose distribution could be reported. The functions know nothing of requests, caches or models.

Axes: B rows, V vocabulary, K top log-probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

GREEDY_BELOW = 1e-5
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the tokens of one request are drawn. The defaults are the plain distribution of the model."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 takes all."""
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def is_truncated(self) -> bool:
        return not self.is_greedy and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


@dataclass(frozen=True, slots=True)
class Draw:
    """One sampled token. `top` lists the most likely tokens with their log-probabilities, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def draw(
    logits_BV: torch.Tensor,
    settings: Sequence[SamplingSettings],
    generators: Sequence[torch.Generator],
    num_top: Sequence[int],
) -> list[Draw]:
    """Draw one token for each row. The generator of a row advances by exactly one number, greedy rows' by none."""
    logprobs_BV = torch.log_softmax(_scores(logits_BV, settings), dim=-1)
    ids_B = _choose(logprobs_BV, settings, generators)
    ids: list[int] = cast(Any, ids_B).tolist()
    chosen: list[float] = cast(Any, logprobs_BV.gather(1, ids_B[:, None])[:, 0]).tolist()
    tops = _top(logprobs_BV, num_top)
    return [Draw(i, p, top) for i, p, top in zip(ids, chosen, tops, strict=True)]


def _scores(logits_BV: torch.Tensor, settings: Sequence[SamplingSettings]) -> torch.Tensor:
    """Return what the softmax is taken of, in float32; the caller's tensor is not changed."""
    scores_BV = logits_BV.to(torch.float32, copy=True)
    for row, one in enumerate(settings):
        if one.logit_bias:
            ids = torch.tensor([i for i, _ in one.logit_bias])
            scores_BV[row].index_add_(0, ids, torch.tensor([b for _, b in one.logit_bias], dtype=torch.float32))
    temperatures = [1.0 if one.is_greedy else one.temperature for one in settings]
    if any(t != 1.0 for t in temperatures):
        scores_BV /= torch.tensor(temperatures)[:, None]
    for row, one in enumerate(settings):
        if one.is_truncated:
            scores_BV[row] = _truncated(scores_BV[row], one)
    return scores_BV


def _truncated(scores_V: torch.Tensor, one: SamplingSettings) -> torch.Tensor:
    """Return the scores with everything outside of min_p, top_k and top_p at minus infinity."""
    lowest = float("-inf")
    if one.min_p > 0.0:
        floor = scores_V.max() + torch.log(torch.tensor(one.min_p))
        scores_V = scores_V.masked_fill(scores_V < floor, lowest)
    sorted_V, order_V = scores_V.sort(descending=True, stable=True)
    if 0 < one.top_k < sorted_V.numel():
        sorted_V[one.top_k :] = lowest
    if one.top_p < 1.0:
        mass_V = torch.softmax(sorted_V, dim=-1)
        # A token stays if what lies before it has not reached top_p yet: the first always stays.
        sorted_V[(mass_V.cumsum(-1) - mass_V) >= one.top_p] = lowest
        sorted_V[0] = scores_V.max()
    return torch.empty_like(scores_V).scatter_(0, order_V, sorted_V)


def _choose(
    logprobs_BV: torch.Tensor, settings: Sequence[SamplingSettings], generators: Sequence[torch.Generator]
) -> torch.Tensor:
    """Return one token id for each row: the most likely one, or the inverse of the cumulated probabilities."""
    greedy = [one.is_greedy for one in settings]
    if all(greedy):
        return logprobs_BV.argmax(-1)
    uniform_B = torch.tensor(
        [
            0.0 if is_greedy else torch.rand((), generator=generator, dtype=torch.float64).item()
            for is_greedy, generator in zip(greedy, generators, strict=True)
        ],
        dtype=torch.float64,
    )
    ids_B = invert(logprobs_BV.exp(), uniform_B)
    if not any(greedy):
        return ids_B
    return torch.where(torch.tensor(greedy), logprobs_BV.argmax(-1), ids_B)


def invert(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the id at which the cumulated probability passes `uniform`, never one of probability 0.

    In two steps, chunks of the vocabulary first, because cumulating a whole vocabulary in float64 costs several times
    more; both steps are in float64, so that small probabilities late in the vocabulary keep their share.
    """
    B, V = probs_BV.shape
    padded_BCN = torch.nn.functional.pad(probs_BV, (0, -V % _CHUNK)).view(B, -1, _CHUNK)
    chunk_mass_BC = padded_BCN.sum(-1, dtype=torch.float64).cumsum(-1)
    target_B1 = (uniform_B * chunk_mass_BC[:, -1])[:, None]
    chunk_B1 = _first_above(chunk_mass_BC, target_B1)
    before_B1 = torch.where(chunk_B1 > 0, chunk_mass_BC.gather(1, (chunk_B1 - 1).clamp_min(0)), 0.0)
    inside_BN = padded_BCN[torch.arange(B), chunk_B1[:, 0]].double()
    offset_B1 = _first_above(inside_BN.cumsum(-1), target_B1 - before_B1)
    return (chunk_B1 * _CHUNK + offset_B1)[:, 0]


def _first_above(cumulated: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulated mass lies above the target, held below the total by one ulp."""
    below_total_B1 = torch.nextafter(cumulated[:, -1:], torch.zeros((), dtype=torch.float64))
    return torch.searchsorted(cumulated, torch.minimum(target_B1, below_total_B1), right=True)


def _top(logprobs_BV: torch.Tensor, num_top: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    most = max(num_top, default=0)
    if most == 0:
        return [()] * len(num_top)
    values_BK, ids_BK = logprobs_BV.topk(most, dim=-1)
    ids_by_row: list[list[int]] = cast(Any, ids_BK).tolist()
    values_by_row: list[list[float]] = cast(Any, values_BK).tolist()
    rows = zip(ids_by_row, values_by_row, num_top, strict=True)
    return [tuple(zip(ids[:n], values[:n], strict=True)) for ids, values, n in rows]
