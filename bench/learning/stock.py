"""Stock TRL on the task of one turn: `trl.GRPOTrainer` as it comes, with Hone's settings, until a budget is sampled.

`python -m bench.learning.stock SEED NUM_EPISODES NUM_TOKENS FILE`. Base model, adapter, rates, group size, groups per
step, temperature, length, loss, seed, tasks and their order are those of our run. Its schedule is made for the steps
that our episodes would fill and one more, and it stops after the step in which it has sampled as many tokens as ours.
What is not equal is what the trainers do themselves: it waits for each batch, trains groups without variance
along, and begins its warm-up at rate 0.
"""

import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.learning.agent import label_prompt
from bench.learning.lessons import COMPARED, LESSONS, Label
from bench.learning.ours import DATA, MODELS
from examples.lookup_agent import MAX_TOKENS
from gateway.demo.driver import GROUP_SIZE, GROUPS_PER_STEP
from gateway.demo.task import Turn
from tracker.settings import LoraSettings
from trainer.config import Optimisation
from trainer.models import BUNDLED_NAME, resolve_model

BATCH = GROUP_SIZE * GROUPS_PER_STEP
SPARE_STEPS = 1
"""Beyond those that our episodes would fill, should its answers be a little shorter than ours."""


def config(seed: int, num_steps: int, folder: str) -> GRPOConfig:
    """Hone's settings in TRL's words; what is not named here stays as TRL has it."""
    optimisation = Optimisation()
    return GRPOConfig(
        output_dir=folder,
        max_steps=num_steps,
        learning_rate=optimisation.learning_rate,
        adam_beta1=optimisation.adam_beta1,
        adam_beta2=optimisation.adam_beta2,
        weight_decay=optimisation.weight_decay,
        max_grad_norm=optimisation.max_grad_norm,
        warmup_steps=optimisation.warmup_steps,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_TOKENS,
        temperature=1.0,
        shuffle_dataset=False,
        beta=0.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        seed=seed,
    )


class Budget(TrainerCallback):
    """Counts what was sampled and stops at the budget; also keeps the mean reward of each group."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.num_sampled = 0
        self.num_steps = 0
        self.curve: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.num_steps = state.global_step
        told = ", ".join(f"{reward:.2f}" for reward in self.curve[-GROUPS_PER_STEP:])
        print(f"step {state.global_step}: {told}; {self.num_sampled} of {self.num_tokens} tokens", flush=True)
        control.should_training_stop = self.num_sampled >= self.num_tokens

    def took(self, lengths: Sequence[int], rewards: Sequence[float]) -> None:
        self.num_sampled += sum(lengths)
        groups = [rewards[start : start + GROUP_SIZE] for start in range(0, len(rewards), GROUP_SIZE)]
        self.curve += [sum(group) / len(group) for group in groups]


def turn(tokenizer: Any, ids: Sequence[int]) -> Turn:
    """An answer as an agent would have seen it."""
    ended = len(ids) > 0 and ids[-1] == tokenizer.eos_token_id
    text = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
    return Turn(content=text, finish_reason="stop" if ended else "length")


def train(seed: int, num_episodes: int, budget: Budget) -> tuple[Any, Any, float]:
    """The trained model, its tokenizer, and the seconds of training."""
    folder = resolve_model(BUNDLED_NAME, MODELS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    num_steps = -(-num_episodes // BATCH)
    tasks: list[Any] = list(
        itertools.islice(LESSONS[COMPARED].training(seed), (num_steps + SPARE_STEPS) * GROUPS_PER_STEP)
    )
    rows = [{"prompt": label_prompt(task.item, task.color), "item": task.item, "color": task.color} for task in tasks]

    def reward(completion_ids: list[list[int]], item: list[str], color: list[str], **_: Any) -> list[float]:
        rewards = [
            Label(item=one, color=other).score([turn(tokenizer, ids)])
            for ids, one, other in zip(completion_ids, item, color, strict=True)
        ]
        budget.took([len(ids) for ids in completion_ids], rewards)
        return rewards

    lora = LoraSettings()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config(seed, num_steps + SPARE_STEPS, str(DATA / f"stock-{seed}")),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target, lora_dropout=0.0, task_type="CAUSAL_LM"
        ),
        callbacks=[budget],
    )
    started = time.monotonic()
    trainer.train()
    return trainer.model.eval(), tokenizer, time.monotonic() - started


@torch.no_grad()
def evaluate(model: Any, tokenizer: Any, seed: int) -> dict[str, list[float]]:
    """The same held-out tasks as ours, sampled at the same temperature; successes by word."""
    lesson = LESSONS[COMPARED]
    tokenizer.padding_side = "left"
    scores: dict[str, list[float]] = {}
    tasks: tuple[Any, ...] = lesson.held_out(seed, lesson.times)
    prompts = [
        tokenizer.apply_chat_template(label_prompt(t.item, t.color), add_generation_prompt=True, tokenize=False)
        for t in tasks
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    answers = model.generate(
        **inputs, max_new_tokens=MAX_TOKENS, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, use_cache=True
    )
    eos = tokenizer.eos_token_id
    for task, ids in zip(tasks, answers[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
        sampled = ids[: ids.index(eos) + 1] if eos in ids else ids
        scores.setdefault(task.item, []).append(task.score([turn(tokenizer, sampled)]))
    return scores


def main() -> None:
    seed, num_episodes, num_tokens = map(int, sys.argv[1:4])
    budget = Budget(num_tokens)
    model, tokenizer, seconds = train(seed, num_episodes, budget)
    torch.manual_seed(seed)
    with model.disable_adapter():
        before = evaluate(model, tokenizer, seed)
    result = {
        "before": before,
        "after": evaluate(model, tokenizer, seed),
        "curve": budget.curve,
        "sampled_tokens": budget.num_sampled,
        "steps": budget.num_steps,
        "seconds": round(seconds, 1),
    }
    Path(sys.argv[4]).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
