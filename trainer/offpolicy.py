"""How far the rows are from the policy that trains on them: weights, effective sample size, gaps.

`ours` are the trainer's log-probabilities at the start of the step, `engine` those the engine reported of the
distribution it sampled from. Pure functions of tensors; what is done with them is left to `grpo.py` and the metrics.

Axes: N trained tokens of all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.steps import Gap, Step


def off_policy_weights(ours_N: Tensor, engine_N: Tensor, cap: float) -> Tensor:
    """min(exp(ours - engine's), cap) for each token, without a gradient: truncated importance sampling."""
    return (ours_N.detach() - engine_N).exp().clamp(max=cap)


def effective_share(ours_N: Tensor, engine_N: Tensor) -> float:
    """Effective sample size as a share of N, of the weights before they are capped: (sum w)^2 / (N sum w^2)."""
    weights_N = (ours_N.detach() - engine_N).double().exp()
    return float(weights_N.sum() ** 2 / (len(weights_N) * (weights_N**2).sum()))


def gaps(step: Step, ours_N: Tensor, engine_N: Tensor) -> tuple[Gap | None, dict[int, Gap]]:
    """The gap of the tokens sampled from the newest version (`None` if there are none), and that of each version."""
    lengths = torch.tensor([len(row.sampled_ids) for row in step.rows])
    lags_N = torch.tensor(step.lags).repeat_interleave(lengths)
    versions_N = torch.tensor([row.version for row in step.rows]).repeat_interleave(lengths)
    difference_N = (ours_N.detach() - engine_N).double().cpu()
    versions = sorted({row.version for row in step.rows})
    by_version = {version: _gap(difference_N[versions_N == version]) for version in versions}
    newest_N = difference_N[lags_N == 0]
    return (_gap(newest_N) if len(newest_N) else None), by_version


def _gap(difference_N: Tensor) -> Gap:
    size_N = difference_N.abs()
    return Gap(
        mean=float(size_N.mean()),
        maximum=float(size_N.max()),
        ratio=float(difference_N.exp().mean()),
        num_tokens=len(difference_N),
    )
