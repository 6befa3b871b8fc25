"""How far the rows are from the policy that trains on them: weights, effective sample size, gaps.

`ours` are the trainer's log-probabilities at the start of the step, `engine` those the engine reported of the
distribution it sampled from. Truncated importance sampling weighs what was sampled by exp(ours - engine's), and by no
more than a cap: each token by its own ratio, or each row (one choice of one call) by that of all its tokens together.
The first has less variance and takes the tokens before as they came; the second is the exact weight of the row, up to
the cap, and scatters the more the longer the row is, which the effective sample size tells. It is the product of the
tokens' ratios and not their geometric mean, which would be no weight of any distribution. Pure functions of tensors;
what is done with them is left to `grpo.py` and the metrics.

Axes: N trained tokens of all rows, B rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.config import LossSettings
from trainer.steps import Gap, OffPolicy, OffPolicyLevel, Step


def level_of(loss_type: str, loss: LossSettings) -> OffPolicyLevel:
    """What is weighed. vespo multiplies the tokens' weights into its own ratio of the row, so it is given tokens'."""
    if loss.bypass:
        return "none"
    return "token" if loss_type == "vespo" else loss.off_policy


def truncated_weights(ours_N: Tensor, engine_N: Tensor, lengths_B: Tensor, level: OffPolicyLevel, cap: float) -> Tensor:
    """The weight of each token, (N,), without a gradient; tokens of one row share it at `sequence`."""
    if level == "none":
        return torch.ones_like(ours_N)
    weights = _log_ratios(ours_N, engine_N, lengths_B, level).exp().clamp(max=cap).to(ours_N.dtype)
    return weights.repeat_interleave(lengths_B) if level == "sequence" else weights


def off_policy_of(ours_N: Tensor, engine_N: Tensor, lengths_B: Tensor, level: OffPolicyLevel, cap: float) -> OffPolicy:
    """What the weights of a step were; at level `none`, what the tokens' would have been.

    The effective sample size is that of the weights before they are capped, as a share: (sum w)^2 / (n sum w^2).
    """
    logs = _log_ratios(ours_N, engine_N, lengths_B, level)
    share = (2 * logs.logsumexp(0) - (2 * logs).logsumexp(0)).exp() / len(logs)
    capped = 0.0 if level == "none" else float((logs > math.log(cap)).double().mean())
    return OffPolicy(level=level, cap=cap, ess=float(share), capped=capped)


def _log_ratios(ours_N: Tensor, engine_N: Tensor, lengths_B: Tensor, level: OffPolicyLevel) -> Tensor:
    """log(ours / engine's) of each token, (N,), or of each row, (B,), in double."""
    difference_N = (ours_N.detach() - engine_N).double()
    if level != "sequence":
        return difference_N
    rows_N = torch.arange(len(lengths_B), device=difference_N.device).repeat_interleave(lengths_B)
    return difference_N.new_zeros(len(lengths_B)).index_add(0, rows_N, difference_N)


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
