"""What a step did, from the tensors it left. Pure; what is told of it is for `metrics.py` to say."""

from __future__ import annotations

from dataclasses import dataclass

from tracker.timeline import num_distinct_tokens
from trainer.config import LossSettings
from trainer.loss_inputs import engine_logps, lengths_of
from trainer.micro_batches import Plan, merged_size
from trainer.offpolicy import gaps, level_of, off_policy_of
from trainer.scoring import Scores
from trainer.steps import Report, Step


@dataclass(frozen=True, slots=True)
class Taken:
    """What the loss and its gradient came to."""

    loss: float
    grad_norm: float
    kl: float | None

    @property
    def problem(self) -> str:
        """Why the optimiser must not step; empty where it may."""
        found = {"loss": self.loss, "gradient": self.grad_norm}
        return "".join(f"the {name} is {value}" for name, value in found.items() if not abs(value) < float("inf"))


def report_of(step: Step, plan: Plan, scores: Scores, loss: LossSettings, taken: Taken) -> Report:
    """`scores` are those of all rows at the start of the step; how long it took is filled in later."""
    ours_N = scores.logps_N
    mu_N = engine_logps(step.rows, ours_N)
    lengths_B = lengths_of(step.rows, ours_N.device)
    no_lag, by_version = gaps(step, ours_N, mu_N)
    num_branches, num_merged_tokens = merged_size(plan.rows)
    return Report(
        loss=taken.loss,
        grad_norm=taken.grad_norm,
        entropy=float(scores.entropies_N.mean()),
        kl=taken.kl,
        off_policy=off_policy_of(ours_N, mu_N, lengths_B, level_of(step.loss, loss), loss.off_policy_cap),
        num_raw_tokens=sum(len(row.prompt_ids) + len(row.sampled_ids) for row in plan.rows),
        num_merged_tokens=num_merged_tokens,
        num_run_tokens=plan.num_run_tokens,
        num_distinct_tokens=num_distinct_tokens(row.prompt_ids + row.sampled_ids for row in plan.rows),
        num_branches=num_branches,
        num_micro_batches=len(plan.micro_batches),
        train_s=0.0,
        gap_at_no_lag=no_lag,
        gap_by_version=by_version,
        problem=taken.problem,
    )
