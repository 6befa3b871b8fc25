"""Tiny models and rows for the trainer's tests: real architectures, two layers, double precision."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tracker.samples import Row

VOCABULARY = 48


def tiny_model(architecture: str = "llama", dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    match architecture:
        case "llama":
            model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**shape))
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**shape))
        case "sliding":
            # One layer looks at everything, one at the last five tokens only.
            windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
            model = Qwen2ForCausalLM(Qwen2Config(**shape, **windows))
        case _:
            rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
            model = LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=rope))
    return _exact(model).to(dtype)


def _exact(model: PreTrainedModel) -> PreTrainedModel:
    """transformers computes its norms in single precision whatever the model's is; torch's keep the model's."""
    for module in model.modules():
        for name, child in module.named_children():
            if "RMSNorm" in type(child).__name__:
                setattr(module, name, torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon))
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    names = {"bos_token": "w0", "eos_token": "w1", "unk_token": "w2", "pad_token": "w3"}
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w2"))
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


def row(
    prompt: Sequence[int],
    sampled: Sequence[int],
    *,
    episode: str = "e",
    call: str = "c",
    version: int = 0,
    temperature: float = 1.0,
    logprobs: Sequence[float] | None = None,
) -> Row:
    return Row(
        policy="solver",
        episode_id=episode,
        call_id=call,
        choice=0,
        version=version,
        adapter_digest="",
        role="main",
        prompt_ids=tuple(prompt),
        sampled_ids=tuple(sampled),
        logprobs=tuple(logprobs) if logprobs is not None else tuple(-1.0 for _ in sampled),
        temperature=temperature,
        receipt=b"",
    )


def conversations(seed: int, *, episodes: int = 4, turns: int = 3) -> tuple[Row, ...]:
    """Episodes of one task whose calls continue one another, with a fork and an equal prompt here and there."""
    chance = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(chance.randint(least, most))]

    system = ids(3, 9)
    rows: list[Row] = []
    for episode in range(episodes):
        history = [*system, *ids(1, 4)]
        for turn in range(chance.randint(1, turns)):
            for _ in range(chance.choice((1, 1, 2))):
                sampled = ids(1, 6)
                rows.append(
                    row(
                        history,
                        sampled,
                        episode=f"e{episode}",
                        call=f"c{episode}-{turn}-{len(rows)}",
                        temperature=chance.choice((1.0, 1.0, 0.7)),
                        logprobs=[-chance.random() * 3 for _ in sampled],
                    )
                )
            history = [*history, *rows[-1].sampled_ids, *ids(0, 4)]
            if chance.random() < 0.2:
                history = history[: len(system) + 1] + ids(1, 3)
    return tuple(rows)


@contextmanager
def own_attention(model: Any) -> Generator[None]:
    """The model as it came, in the block: with transformers' attention for rows instead of the trie's."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    given = base.config._attn_implementation
    base.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        base.set_attn_implementation(given)


def plain_scores(model: nn.Module, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """One row a call, nothing shared: what everything else is compared with."""
    with own_attention(model):
        return _plain_scores(model, rows)


def _plain_scores(model: nn.Module, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    logps, entropies = [], []
    for one in rows:
        full = torch.tensor([one.prompt_ids + one.sampled_ids])
        logits = model(input_ids=full).logits[0, len(one.prompt_ids) - 1 : -1] / one.temperature
        distribution = torch.log_softmax(logits, -1)
        logps.append(distribution.gather(1, torch.tensor(one.sampled_ids).unsqueeze(1)).squeeze(1))
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    return torch.cat(logps), torch.cat(entropies)
