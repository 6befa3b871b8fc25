"""LoRA adapters for the bundled model as peft writes them, and broken ones, made without loading the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

NUM_LAYERS = 30
WIDTH, INNER, KEYS = 576, 1536, 192
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH, KEYS),
    "self_attn.v_proj": (WIDTH, KEYS),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (WIDTH, INNER),
    "mlp.up_proj": (WIDTH, INNER),
    "mlp.down_proj": (INNER, WIDTH),
}
"""Layer -> numbers of its inputs and outputs."""
Rename = Callable[[str], str]


def write_adapter(
    folder: Path,
    seed: int,
    *,
    rank: int = 4,
    size: float = 0.1,
    layers: Sequence[str] = tuple(SHAPES),
    targets: Sequence[str] | None = None,
    rename: Rename = lambda key: key,
) -> str:
    """Write an adapter whose weights a seed decides; the digest of its weights.

    `size` is the spread of B: at 0.1 the answers are others than the base's, and still far from noise. `rename` breaks
    the keys, `targets` says other modules than the weights are for.
    """
    chance = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for number in range(NUM_LAYERS):
        for layer in layers:
            inputs, outputs = SHAPES[layer]
            key = f"base_model.model.model.layers.{number}.{layer}"
            tensors[rename(f"{key}.lora_A.weight")] = torch.randn(rank, inputs, generator=chance) / inputs**0.5
            tensors[rename(f"{key}.lora_B.weight")] = torch.randn(outputs, rank, generator=chance) * size
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    names = targets if targets is not None else sorted({layer.rpartition(".")[2] for layer in layers})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "smollm2",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": list(names),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
