"""TRL's own GRPOTrainer on recorded rows, one row a call: what `bench/train.py` compares with.

Everything is the library's but where its batch comes from: in place of generating answers and scoring them
(`_generate_and_score_completions`) the recorded rows are handed over, padded as the library pads what it generated,
prompts on the left and answers on the right to the longest of the batch. It shuffles the batch, slices it into
micro-batches, takes its loss of each and adds up gradients; that is one optimiser step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

from bench.training.workloads import GROUP, Workload
from trainer.branches import merge_rows


class RecordedTrainer(GRPOTrainer):
    """Stock TRL on the rows of one workload."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lora: LoraConfig,
        args: GRPOConfig,
        of: Workload,
    ) -> None:
        super().__init__(
            model=model,
            reward_funcs=cast("Any", _no_reward),
            args=args,
            train_dataset=Dataset.from_dict({"prompt": ["-"] * GROUP}),
            processing_class=tokenizer,
            peft_config=lora,
        )
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self._workload = of

    def take_gradient(self) -> None:
        """What the library does between two optimiser steps."""
        for _ in range(self.args.gradient_accumulation_steps):
            self.training_step(self.model, cast("Any", []), None)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        rows, device = self._workload.rows, self.accelerator.device
        prompt_ids, prompt_mask = _padded([row.prompt_ids for row in rows], "left")
        completion_ids, completion_mask = _padded([row.sampled_ids for row in rows], "right")
        batch = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor(self._workload.advantages),
            "num_items_in_batch": completion_mask.sum(),
        }
        return {name: tensor.to(device) for name, tensor in batch.items()}


def stock_config(of: Workload, budget: int, output_dir: Path, device: str) -> GRPOConfig:
    """As many rows a micro-batch as the token budget holds, padding included, and evenly; the loss the bench uses."""
    rows_at_once, num_micro_batches = micro_batches(of, budget)
    return GRPOConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=rows_at_once,
        gradient_accumulation_steps=num_micro_batches,
        steps_per_generation=num_micro_batches,
        num_generations=GROUP,
        loss_type="dapo",
        beta=0.0,
        gradient_checkpointing=False,
        disable_dropout=True,
        bf16=False,
        use_cpu=device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def micro_batches(of: Workload, budget: int) -> tuple[int, int]:
    """Rows of a micro-batch, and how many micro-batches; the library wants them equal."""
    most = max(1, budget // padded_length(of))
    rows = max(size for size in range(1, most + 1) if len(of.rows) % size == 0)
    return rows, len(of.rows) // rows


def padded_length(of: Workload) -> int:
    """Of every row of the batch."""
    return max(len(row.prompt_ids) for row in of.rows) + max(len(row.sampled_ids) for row in of.rows)


@torch.no_grad()
def engine_logprobs(model: nn.Module, of: Workload) -> list[list[float]]:
    """Log-probabilities of the sampled ids, row after row, by plain forward passes: what an engine would have said."""
    run: Any = model
    model.eval()
    found: list[list[float]] = [[] for _ in of.rows]
    for branch in merge_rows(of.rows):
        members = [of.rows[number] for number in branch.rows]
        places = [len(row.prompt_ids) - 1 + offset for row in members for offset in range(len(row.sampled_ids))]
        targets = torch.tensor([token for row in members for token in row.sampled_ids], device=run.device)
        ids = torch.tensor([branch.input_ids], device=run.device)
        logits = run(input_ids=ids, logits_to_keep=torch.tensor(places, device=run.device), use_cache=False).logits[0]
        logps = torch.log_softmax(logits.float(), -1).gather(1, targets.unsqueeze(1)).squeeze(1)
        for number, piece in zip(branch.rows, logps.split([len(row.sampled_ids) for row in members]), strict=True):
            found[number] = piece.tolist()
    model.train()
    return found


def _padded(sequences: Sequence[tuple[int, ...]], side: str) -> tuple[Tensor, Tensor]:
    ids = [torch.tensor(one) for one in sequences]
    ones = [torch.ones_like(one) for one in ids]
    return pad(ids, padding_value=0, padding_side=side), pad(ones, padding_value=0, padding_side=side)


def _no_reward(**_: Any) -> list[float]:
    """The library wants a reward function; advantages are recorded, so this one is never called."""
    raise AssertionError("advantages are recorded")
