"""The seam to TRL: its losses, optimiser, schedulers, loggers and checkpoint format, on batches and passes of ours.

The only module that imports trl. The rule: TRL's `_compute_loss` runs once per optimiser step, on all rows, on
leaf tensors, because most of its losses normalise within what they are given; the gradient at the leaves is then
carried through the model micro-batch by micro-batch, so cutting changes nothing. One dataloader item is one optimiser
step. What happens between steps is a callback's business: the loop's.

Axes: B rows, T trained tokens of the longest row (padded), N trained tokens of all rows.
"""

# TRL, peft and datasets ship partial types: what comes from them is unknown here, and only here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from accelerate import DistributedType
from datasets import Dataset
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tracker.errors import SettingsError
from tracker.samples import Row
from trainer.config import TrainerSettings
from trainer.lora import lora_config
from trainer.loss_inputs import Grid, loss_inputs
from trainer.micro_batches import (
    MicroBatch,
    Plan,
    carry_back,
    in_order,
    plan_tiles,
    plan_trie,
    slots_of,
)
from trainer.ranks import SMALLEST_BUDGET, Ranks
from trainer.reporting import Taken, report_of
from trainer.scoring import Scores, output_embeddings, score
from trainer.steps import Report, Step
from trainer.trie import Sharing
from trainer.walking import walk_as_tree

LOG: Final = logging.getLogger("hone.trainer")
UNBOUNDED_STEPS: Final = 10**9
LAUNCHES: Final = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def check_launch(kind: DistributedType) -> None:
    """Refuse launches under which a step would not be what it is in one process."""
    if kind not in LAUNCHES:
        raise SettingsError(f"accelerate launch: the trainer runs on several GPUs or CPUs with DDP, not with {kind}.")


def trl_config(settings: TrainerSettings, output_dir: Path, device: str) -> GRPOConfig:
    """TRL's settings. `gradient_accumulation_steps` is 1: a micro-batch is ours to cut."""
    optimisation, loss = settings.optimisation, settings.loss
    decays = settings.max_steps is not None and optimisation.decay
    return GRPOConfig(
        output_dir=str(output_dir),
        max_steps=settings.max_steps or UNBOUNDED_STEPS,
        learning_rate=optimisation.learning_rate,
        adam_beta1=optimisation.adam_beta1,
        adam_beta2=optimisation.adam_beta2,
        weight_decay=optimisation.weight_decay,
        max_grad_norm=optimisation.max_grad_norm,
        warmup_steps=optimisation.warmup_steps,
        lr_scheduler_type="cosine_with_min_lr" if decays else "constant_with_warmup",
        lr_scheduler_kwargs={"min_lr_rate": 0.1} if decays else {},
        beta=loss.beta,
        epsilon=loss.epsilon,
        entropy_coef=loss.entropy_coef,
        max_completion_length=loss.max_completion_length,
        gradient_accumulation_steps=1,
        per_device_train_batch_size=2,
        num_generations=2,
        steps_per_generation=1,
        bf16=False,
        use_cpu=device == "cpu",
        gradient_checkpointing=settings.gradient_checkpointing,
        disable_dropout=True,
        ignore_data_skip=True,
        save_strategy="no",
        eval_strategy="no",
        logging_steps=1,
        report_to=settings.report_to,
        disable_tqdm=True,
        seed=settings.seed,
    )


class PolicyTrainer(GRPOTrainer):
    """TRL's trainer, fed with steps. `committed` is called after each optimiser step; False ends the training."""

    sharing: Sharing = "trie"
    """What of a step is run once; anything else than the trie is there to be compared with it."""

    def __init__(
        self,
        settings: TrainerSettings,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        steps: Iterable[Step],
        committed: Callable[[Step, Report], bool],
    ) -> None:
        self._unwalkable = walk_as_tree(model)
        if self._unwalkable:
            LOG.warning("training on merged rows, not on the trie: %s", self._unwalkable)
        device = next(model.parameters()).device.type
        config = trl_config(settings, settings.work_dir / settings.policy.name, device)
        super().__init__(
            model=model,
            reward_funcs=cast("Any", _no_reward),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["-", "-"]}),
            processing_class=tokenizer,
            peft_config=lora_config(settings),
        )
        check_launch(self.accelerator.distributed_type)
        self._ranks = Ranks(self.accelerator.process_index, self.accelerator.num_processes)
        self.remove_callback(PrinterCallback)
        self.add_callback(_AfterStep(self, committed))
        self.done: tuple[Step, Report] | None = None
        self._settings = settings
        self._steps = steps
        self._given: tuple[Tensor, Tensor] | None = None
        self._budget = settings.token_budget
        self._lora: PeftModel = cast("PeftModel", self.model)
        self._head = output_embeddings(self._lora.get_base_model())
        self.aux_loss_enabled = False

    # What TRL and transformers call.

    def get_train_dataloader(self) -> Any:
        """Steps as they become ready; never prepared by accelerate, whose look-ahead would wait for the next one."""
        return _StepLoader(self, self._steps)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The library's schedule, one step ahead: its warm-up begins with a step at rate 0, which would be wasted."""
        is_new = self.lr_scheduler is None
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if is_new and isinstance(scheduler, LambdaLR):
            scheduler.lr_lambdas = [_one_ahead(rate) for rate in scheduler.lr_lambdas]
            for group, base, rate in zip(
                scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
            ):
                group["lr"] = base * rate(0)
        return scheduler

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not estimated: what the library counts is padded input, of which a step has none."""
        return 0

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Leave the gradient of the whole step in the adapter, or none and a problem in the report."""
        step: Step = inputs["step"]
        # Without DDP's forward none of its hooks acts: gradients are summed once, when the step's are whole.
        model = cast("nn.Module", self.accelerator.unwrap_model(model))
        model.train()
        started = time.monotonic()
        self._set_loss(step.loss)
        loss, report = self._step_within_memory(model, step)
        if report.problem:
            model.zero_grad(set_to_none=True)
            loss = torch.zeros_like(loss)
        self._step += 1
        self.done = step, replace(report, train_s=time.monotonic() - started)
        return loss

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        """Give TRL's loss the leaves instead of a forward pass."""
        assert self._given is not None
        return *self._given, None

    # A step.

    def _set_loss(self, loss: str) -> None:
        """TRL reads these at each loss; the run says which loss it is, so they follow the step."""
        self.loss_type = loss
        high = self._settings.loss.epsilon_high
        self.epsilon_high = high if high is not None else (5.0 if loss == "cispo" else 0.28)
        by_sequence = loss == "luspo" or (self._settings.loss.importance == "sequence" and loss != "vespo")
        self.importance_sampling_level = "sequence" if by_sequence else "token"

    def _step_within_memory(self, model: nn.Module, step: Step) -> tuple[Tensor, Report]:
        """Out of memory: again from the start at half the token budget, which then stays."""
        while True:
            try:
                return self._accumulate(model, step, self.plan(step.rows))
            except torch.OutOfMemoryError:
                if self._budget <= SMALLEST_BUDGET:
                    raise
                self._budget //= 2
                LOG.warning("out of memory: again with a token budget of %d", self._budget)
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()

    def _accumulate(self, model: nn.Module, step: Step, plan: Plan) -> tuple[Tensor, Report]:
        """Score all rows, take the loss once, carry its gradient through the model piece by piece.

        Several ranks score and carry back their shares; between the two each of them has the scores of all rows.
        """
        mine = self._ranks.share([sum(one.num_tokens for one in passes) for passes in plan.micro_batches])
        whole = len(mine) == 1
        with torch.set_grad_enabled(whole):
            pieces, scores = self._all_scores(model, plan, mine)
        reference_N = self._reference(model, plan, mine) if self.beta else None
        leaves = Scores(scores.logps_N.requires_grad_(), scores.entropies_N.requires_grad_())
        loss = self._loss(step, leaves, reference_N)
        loss.backward()
        with self._ranks.in_memory(self.args.device):
            for number in mine:
                again = pieces[number] if whole else self._score(model, plan, plan.micro_batches[number])
                carry_back(again, leaves, slots_of(plan.micro_batches[number], plan.rows).to(again.logps_N.device))
        self._ranks.sum_gradients(model)
        return loss.detach(), self._report(step, plan, leaves, loss.detach())

    def plan(self, rows: tuple[Row, ...]) -> Plan:
        """How these rows run through this model, within the token budget."""
        budget = self._ranks.budget(self._budget, rows)
        if self._unwalkable:
            return plan_tiles(rows, budget)
        return plan_trie(rows, budget, self.sharing)

    def _all_scores(self, model: nn.Module, plan: Plan, mine: Sequence[int]) -> tuple[dict[int, Scores], Scores]:
        """The scores of this rank's micro-batches, and those of all rows, without a gradient."""
        with self._ranks.in_memory(self.args.device):
            pieces = {number: self._score(model, plan, plan.micro_batches[number]) for number in mine}
        own = in_order(pieces, plan, next(self._head.parameters()))
        whole = (self._ranks.summed(scores_N.detach().clone()) for scores_N in (own.logps_N, own.entropies_N))
        return pieces, Scores(*whole)

    def _score(self, model: nn.Module, plan: Plan, micro_batch: MicroBatch) -> Scores:
        with self.accelerator.autocast():
            return score(model, self._head, micro_batch, plan.rows)

    def _reference(self, model: nn.Module, plan: Plan, mine: Sequence[int]) -> Tensor:
        """Log-probabilities of the base model."""
        with torch.no_grad(), self._lora.disable_adapter():
            return self._all_scores(model, plan, mine)[1].logps_N

    def _loss(self, step: Step, leaves: Scores, reference_N: Tensor | None) -> Tensor:
        """TRL's, on all rows; `_get_per_token_logps_and_entropies` gives it the leaves."""
        grid = Grid.of(step.rows, leaves.logps_N.device)
        inputs = loss_inputs(step, grid, leaves.logps_N.detach(), self._settings.loss, self.accelerator.num_processes)
        if reference_N is not None:
            inputs["ref_per_token_logps"] = grid.pad(reference_N)
        self._given = grid.pad(leaves.logps_N), grid.pad(leaves.entropies_N)
        try:
            return super()._compute_loss(self.model, inputs)
        finally:
            self._given = None

    def _report(self, step: Step, plan: Plan, leaves: Scores, loss: Tensor) -> Report:
        gradients = [parameter.grad for parameter in self._lora.parameters() if parameter.grad is not None]
        kl = self._metrics["train"].get("kl")
        return report_of(
            step,
            plan,
            Scores(leaves.logps_N.detach(), leaves.entropies_N.detach()),
            self._settings.loss,
            Taken(
                loss=float(loss),
                grad_norm=float(torch.nn.utils.get_total_norm(gradients)),
                kl=kl[-1] if self.beta and kl else None,
            ),
        )

    # Weights and state.

    @property
    def lora(self) -> PeftModel:
        """The base model with its adapter."""
        return self._lora

    @property
    def head(self) -> nn.Module:
        """What turns hidden states into logits."""
        return self._head

    @property
    def num_steps(self) -> int:
        """Optimiser steps behind these weights."""
        return self.state.global_step

    def run(self, checkpoint: Path | None) -> None:
        """Train until the steps end, from a checkpoint if there is one."""
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def adapter_weights(self) -> dict[str, Tensor]:
        """The adapter as an engine reads it, on the CPU, in memory of its own."""
        state = get_peft_model_state_dict(self._lora, save_embedding_layers=False)
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}

    def load_adapter_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights into the adapter in place: the optimiser keeps its parameters."""
        found = set_peft_model_state_dict(self._lora, weights)
        if found.unexpected_keys:
            raise SettingsError(f"The adapter to continue from has other layers: {found.unexpected_keys[0]}.")

    def adapter_bytes(self) -> bytes:
        """`adapter_model.safetensors`; the same weights give the same bytes."""
        return save(self.adapter_weights(), metadata={"format": "pt"})

    def write_adapter(self, folder: Path) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors` into a folder."""
        (folder / "adapter_model.safetensors").write_bytes(self.adapter_bytes())
        self._lora.peft_config["default"].save_pretrained(str(folder))

    def save_state(self, folder: Path) -> None:
        """Adapter, optimiser, scheduler, random states and step count, in the format that `train` resumes from."""
        self.save_model(str(folder), _internal_call=True)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_rng_state(str(folder))
        self.state.save_to_json(str(folder / "trainer_state.json"))

    def stop(self) -> None:
        self.control.should_training_stop = True


def _one_ahead(rate: Callable[[int], float]) -> Callable[[int], float]:
    """A schedule that gives each step the rate of the next; a plain function, which no checkpoint tries to hold."""

    def ahead(step: int) -> float:
        return rate(step + 1)

    return ahead


class _StepLoader:
    """An iterable without a length, which the library asks for one step at a time."""

    def __init__(self, trainer: PolicyTrainer, steps: Iterable[Step]) -> None:
        self._trainer = trainer
        self._steps = steps

    def __iter__(self) -> Iterator[dict[str, Step]]:
        for step in self._steps:
            yield {"step": step}
        self._trainer.stop()


class _AfterStep(TrainerCallback):
    """Hands the finished step to the loop, when optimiser, scheduler and step count have moved."""

    def __init__(self, trainer: PolicyTrainer, committed: Callable[[Step, Report], bool]) -> None:
        self._trainer = trainer
        self._committed = committed

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        done, self._trainer.done = self._trainer.done, None
        assert done is not None
        if not self._committed(*done):
            control.should_training_stop = True


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of an `adapter_model.safetensors`."""
    return load_file(path)


def _no_reward(**_: Any) -> list[float]:
    """TRL wants a reward function; rewards come from the ledger, so this one is never called."""
    raise AssertionError("rewards come from the ledger")
