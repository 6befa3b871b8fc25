"""TRL's losses on the trie equal TRL's losses on one row a call, however they are cut."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tests.trainer.models import conversations, plain_scores, row, tiny_model, tiny_tokenizer
from tests.trainer.settings import settings_for
from tracker.errors import SettingsError
from tracker.samples import Row
from tracker.settings import LoraSettings, PolicySettings
from tracker.types import Batch
from trainer.config import LossSettings, Optimisation, TrainerSettings
from trainer.grpo import PolicyTrainer
from trainer.lora import check_servable, lora_config
from trainer.scoring import Scores
from trainer.steps import Report, Step
from trainer.weights import LOSSES

# The libraries' own deprecations are not ours to fix.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def step_of(rows: Sequence[Row], loss: str = "dapo", number: int = 1) -> Step:
    advantages = tuple((-1.0) ** place * (1 + place / 10) for place in range(len(rows)))
    batch = Batch(batch_id=f"b{number}", policy="solver", step=number, epoch=0, fence=1)
    return Step(batch=batch, rows=tuple(rows), advantages=advantages, loss=loss, lags=(0,) * len(rows))


def trainer_for(
    settings: TrainerSettings,
    steps: Sequence[Step] = (),
    committed: Callable[[Step, Report], bool] = lambda _step, _report: True,
    model: PreTrainedModel | None = None,
) -> PolicyTrainer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = PolicyTrainer(settings, model or tiny_model(), tiny_tokenizer(), steps, committed)
    torch.manual_seed(1)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def take_gradients(trainer: PolicyTrainer) -> list[torch.Tensor]:
    found = [parameter.grad.clone() for parameter in trainer.model.parameters() if parameter.grad is not None]
    trainer.model.zero_grad(set_to_none=True)
    return found


def plain_gradients(trainer: PolicyTrainer, step: Step) -> list[torch.Tensor]:
    """The same loss by autograd through one forward a row."""
    trainer.model.train()
    scores = Scores(*plain_scores(trainer.model, step.rows))
    with torch.no_grad(), trainer.model.disable_adapter():
        reference, _ = plain_scores(trainer.model, step.rows)
    trainer._set_loss(step.loss)
    trainer._loss(step, scores, reference if trainer.beta else None).backward()
    return take_gradients(trainer)


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("extra", [{}, {"beta": 0.1, "entropy_coef": 0.01}, {"bypass": True}])
def test_gradients_do_not_depend_on_sharing_or_on_micro_batches(
    tmp_path: Path, loss: str, extra: dict[str, float | bool]
) -> None:
    trainer = trainer_for(settings_for(tmp_path, loss=LossSettings(**extra)))
    step = step_of(conversations(3), loss)
    expected = plain_gradients(trainer, step)
    for budget, sharing in ((1, "trie"), (20, "trie"), (10_000, "trie"), (20, "merged"), (10_000, "calls")):
        trainer._budget, trainer.sharing = budget, sharing
        trainer.training_step(trainer.model, {"step": step})
        assert trainer.done is not None
        assert (trainer.done[1].num_micro_batches == 1) == (budget == 10_000)
        for found, wanted in zip(take_gradients(trainer), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-7)


def test_a_model_that_cannot_be_walked_runs_as_merged_rows_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_for(settings_for(tmp_path), model=tiny_model("longrope"))
    assert "merged rows" in caplog.text
    assert "positions depend on" in caplog.text
    step = step_of(conversations(3))
    expected = plain_gradients(trainer, step)
    for budget in (20, 10_000):
        trainer._budget = budget
        trainer.training_step(trainer.model, {"step": step})
        for found, wanted in zip(take_gradients(trainer), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "bnpo", "sapo"])
def test_cutting_an_episode_into_more_calls_changes_no_gradient(tmp_path: Path, loss: str) -> None:
    trainer = trainer_for(settings_for(tmp_path))
    whole = (row([5, 6], [7, 8, 9, 10], episode="a", logprobs=[-2.0] * 4), row([5, 6], [11, 12], episode="b"))
    cut = (
        row([5, 6], [7, 8], episode="a", logprobs=[-2.0] * 2),
        row([5, 6, 7, 8], [9, 10], episode="a", logprobs=[-2.0] * 2),
        whole[1],
    )
    found = []
    for rows, advantages in ((whole, (0.5, -0.5)), (cut, (0.5, 0.5, -0.5))):
        step = Step(step_of(rows).batch, rows, advantages, loss, (0,) * len(rows))
        trainer.training_step(trainer.model, {"step": step})
        found.append(take_gradients(trainer))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_off_policy_weights_are_exact_for_the_loss_without_clipping(tmp_path: Path, level: str) -> None:
    """dapo at ratio 1: the gradient of -sum(A min(w, 2) log p) / N, with w = exp(old - mu) of the token or the row."""
    trainer = trainer_for(settings_for(tmp_path, loss=LossSettings(off_policy=level)))  # type: ignore[arg-type]
    step = step_of(conversations(5))
    logps, _ = plain_scores(trainer.model, step.rows)
    mu = torch.tensor([value for one in step.rows for value in one.logprobs], dtype=torch.float64)
    lengths = torch.tensor([len(one.sampled_ids) for one in step.rows])
    differences = logps.detach() - mu
    if level == "sequence":
        rows = differences.split(lengths.tolist())
        differences = torch.cat([row.sum().expand(len(row)) for row in rows])
    weights = differences.exp().clamp(max=2)
    advantages = torch.tensor(step.advantages, dtype=torch.float64).repeat_interleave(lengths)
    (-(advantages * weights * logps).sum() / len(logps)).backward()
    expected = take_gradients(trainer)
    trainer.training_step(trainer.model, {"step": step})
    for found, wanted in zip(take_gradients(trainer), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-7)


def test_a_loss_that_is_not_finite_leaves_no_gradient_and_says_so(tmp_path: Path) -> None:
    trainer = trainer_for(settings_for(tmp_path))
    step = step_of([row([5], [6, 7])])
    broken = Step(step.batch, step.rows, (float("nan"),), "dapo", (0,))
    trainer.training_step(trainer.model, {"step": broken})
    assert trainer.done is not None
    assert "loss is nan" in trainer.done[1].problem
    assert take_gradients(trainer) == []


def test_training_can_stop_after_a_step_and_go_on_from_its_checkpoint_as_if_it_had_not(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, max_steps=3, optimisation=Optimisation(warmup_steps=1))
    steps = [step_of(conversations(number), number=number) for number in (1, 2, 3)]
    straight = trainer_for(settings, steps)
    straight.train()

    def saved(step: Step, _: Report) -> bool:
        first.save_state(tmp_path / "state")
        return step.batch.step < 2

    (tmp_path / "state").mkdir()
    first = trainer_for(settings, steps, saved)
    first.train()
    assert first.state.global_step == 2
    second = trainer_for(settings, steps[2:])
    second.train(resume_from_checkpoint=str(tmp_path / "state"))
    assert second.state.global_step == 3
    expected = straight.adapter_weights()
    for name, tensor in second.adapter_weights().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_first_step_moves_the_weights(tmp_path: Path) -> None:
    trainer = trainer_for(settings_for(tmp_path, max_steps=1), [step_of(conversations(1))])
    before = trainer.adapter_weights()
    trainer.train()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in trainer.adapter_weights().items())


def test_adapter_files_hold_the_weights_and_nothing_an_engine_refuses(tmp_path: Path) -> None:
    trainer = trainer_for(settings_for(tmp_path))
    folder = tmp_path / "adapter"
    folder.mkdir()
    trainer.write_adapter(folder)
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    stored = load_file(folder / "adapter_model.safetensors")
    assert stored.keys() == trainer.adapter_weights().keys()
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["bias"], config["use_dora"], config["modules_to_save"]) == (4, "none", False, None)


def test_adapters_that_engines_cannot_serve_are_refused(tmp_path: Path) -> None:
    for lora in (LoraSettings(target="lm_head"), LoraSettings(target=("q_proj", "model.embed_tokens"))):
        policy = PolicySettings(name="solver", model="unused", lora=lora)
        with pytest.raises(SettingsError, match=r"lora\.target"):
            lora_config(settings_for(tmp_path, policy=policy))
    with pytest.raises(SettingsError, match=r"lora\.r"):
        lora_config(settings_for(tmp_path, max_lora_rank=2))
    for config in (LoraConfig(use_dora=True), LoraConfig(bias="all"), LoraConfig(modules_to_save=["x"])):
        with pytest.raises(SettingsError):
            check_servable(config)
