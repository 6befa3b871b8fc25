"""Makes a tiny Llama with random weights and a real tokenizer: `python -m tests.fakes.tiny_model FOLDER CACHE`.

Real enough for every code path, small enough that a training step takes a fraction of a second. It runs as a program,
because importing transformers takes longer than most tests and warns of things that are not ours.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from trainer.models import bundled_model


def make(folder: Path, cache: Path) -> None:
    """Write model and tokenizer in float32; the tokenizer is the bundled model's."""
    tokenizer = AutoTokenizer.from_pretrained(bundled_model(cache))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))
