"""The engine's scheduler beside transformers' continuous batching: the same model, requests and process, in turns.

`python bench/engine_scheduler.py MODEL_FOLDER [ADAPTER_FOLDER]` prints tokens a second of each, in interleaved rounds:
32 requests of 78 prompt tokens, 48 of them shared, 12 sampled tokens each, bf16, log-probabilities on. With an adapter
folder, the engine's rounds are repeated under it. Ratios are what counts: absolute numbers vary with the load.
"""

import sys
import time
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from trainer.engine.adapters import ModelAdapters
from trainer.engine.config import EngineConfig
from trainer.engine.sampling import SamplingSettings
from trainer.engine.scheduler import Ask, Lane, Running
from trainer.engine.weights import cache_shape, forward, load_model

REQUESTS, SHARED, OWN, SAMPLED = 32, 48, 30, 12


def prompts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randint(10, 40_000, (SHARED,), generator=generator).tolist()
    return [[*shared, *torch.randint(10, 40_000, (OWN,), generator=generator).tolist()] for _ in range(REQUESTS)]


def engine_round(model, lane: Lane, seed: int) -> float:
    for ids in prompts(seed):
        lane.add(Running(Ask(tuple(ids), SAMPLED, SamplingSettings(), frozenset()), lambda _: None))
    start = time.perf_counter()
    with torch.inference_mode():
        while lane.has_work:
            lane.step(partial(forward, model))
    return REQUESTS * SAMPLED / (time.perf_counter() - start)


def library_round(batching, seed: int) -> float:
    start = time.perf_counter()
    batching.add_requests(prompts(seed), max_new_tokens=SAMPLED)
    num_done = num_tokens = 0
    while num_done < REQUESTS:
        result = batching.get_result(timeout=120)
        if result is not None and result.is_finished():
            num_done += 1
            num_tokens += len(result.generated_tokens)
    return num_tokens / (time.perf_counter() - start)


def main(folder: str, adapter: str | None) -> None:
    torch.set_num_threads(2)
    model = load_model(folder, "bfloat16")
    lane = Lane(cache_shape(model.config, model.dtype, EngineConfig(model=folder)), 1024)
    library = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    batching = library.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=32, num_blocks=512, max_batch_tokens=1024, return_logprobs=True, use_cuda_graph=False
        ),
    )
    batching.start()
    engine_round(model, lane, 99)
    library_round(batching, 99)
    for seed in range(3):
        ours, theirs = engine_round(model, lane, seed), library_round(batching, seed)
        print(
            f"round {seed}: engine {ours:.0f} tokens/s, transformers {theirs:.0f} tokens/s, ratio {ours / theirs:.1f}"
        )
    batching.stop()
    if adapter is not None:
        adapters = ModelAdapters(model)
        adapters.add("a", Path(adapter))
        adapters.use("a")
        under = Lane(cache_shape(model.config, model.dtype, EngineConfig(model=folder)), 1024)
        for seed in range(3):
            print(f"round {seed}: engine with a rank-16 adapter {engine_round(model, under, seed):.0f} tokens/s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
