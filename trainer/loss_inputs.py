"""What TRL's loss reads of a step: rows as padded rectangles, and the credit of each of their tokens.

The rule: an advantage is multiplied by the weight of its row (`weights.py`) and by the off-policy weight of its token
(`offpolicy.py`) before the loss sees it, since TRL would apply neither as we mean it. Prompts are not there: a loss
needs no context, and the passes that do are not its business.

Axes: B rows, T trained tokens of the longest row (padded), N trained tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tracker.samples import Row
from trainer.config import LossSettings
from trainer.offpolicy import level_of, truncated_weights
from trainer.steps import Step
from trainer.weights import row_weights


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the trained tokens stand in a padded rectangle."""

    mask_BT: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Grid:
        lengths_B = lengths_of(rows, device)
        return cls(torch.arange(int(lengths_B.max()), device=device) < lengths_B.unsqueeze(1))

    def pad(self, values_N: Tensor, fill: float = 0.0) -> Tensor:
        """(N,) to (B, T), row after row; differentiable."""
        return values_N.new_full(self.mask_BT.shape, fill).masked_scatter(self.mask_BT, values_N)


def lengths_of(rows: Sequence[Row], device: torch.device) -> Tensor:
    """How many trained tokens each row has, (B,)."""
    return torch.tensor([len(row.sampled_ids) for row in rows], device=device)


def engine_logps(rows: Sequence[Row], like: Tensor) -> Tensor:
    """What the engine reported of the trained tokens, (N,)."""
    return torch.tensor([value for row in rows for value in row.logprobs], dtype=like.dtype, device=like.device)


def loss_inputs(step: Step, grid: Grid, old_N: Tensor, loss: LossSettings, num_ranks: int) -> dict[str, Tensor]:
    """`old_N` are the trainer's log-probabilities at the start of the step.

    vespo alone takes the off-policy weight itself, inside its sequence ratio, so for it they stay apart.
    """
    mask_BT, lengths_B = grid.mask_BT, lengths_of(step.rows, old_N.device)
    mu_N = engine_logps(step.rows, old_N)
    weights_N = truncated_weights(old_N, mu_N, lengths_B, level_of(step.loss, loss), loss.off_policy_cap)
    factors = row_weights(step.rows, step.loss)
    credit = [advantage * factor for advantage, factor in zip(step.advantages, factors, strict=True)]
    advantages_BT = torch.tensor(credit, dtype=old_N.dtype, device=old_N.device).unsqueeze(1) * mask_BT
    extra: dict[str, Tensor] = {}
    if step.loss == "vespo":
        extra["importance_sampling_ratio"] = grid.pad(weights_N, 1.0)
    else:
        advantages_BT = advantages_BT * grid.pad(weights_N)
    ones = mask_BT.new_ones(len(step.rows), 1, dtype=torch.long)
    return extra | {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": mask_BT.long(),
        "completion_mask": mask_BT.long(),
        "advantages": advantages_BT,
        "old_per_token_logps": grid.pad(mu_N if loss.bypass else old_N),
        # TRL divides it by the number of ranks, each of which it takes to have rows of its own.
        "num_items_in_batch": lengths_B.sum() * num_ranks,
    }
