"""The four ways to take one step's gradient, each in a process of its own that `bench/train.py` tells what to do.

A process holds one model with an adapter and takes steps when it is told to, so that steps of the four can be
interleaved and each one's memory is its own. A step is everything between the rows and the gradient of the adapter;
the optimiser's own move is the same for all and left out. All four get equal weights, so gradients can be compared.
Memory is what the process grows by at most while it steps, above what it held with the model loaded.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import re
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bench.training.flops import ModelShape
from bench.training.stock import RecordedTrainer, engine_logprobs, stock_config
from bench.training.workloads import Workload
from tracker.settings import LoraSettings, PolicySettings, StoreSettings
from tracker.types import Batch
from trainer.config import TrainerSettings
from trainer.grpo import PolicyTrainer
from trainer.lora import lora_config
from trainer.steps import Report, Step
from trainer.trie import Sharing

Variant = Literal["stock", "calls", "merged", "trie"]
VARIANTS: Final[tuple[Variant, ...]] = ("stock", "calls", "merged", "trie")
MEBIBYTE: Final = 2**20
ADAPTER_SPREAD: Final = 0.02


@dataclass(frozen=True, slots=True)
class Options:
    """What all four have in common."""

    model: ModelShape
    device: Literal["cpu", "cuda"]
    token_budget: int
    threads: int | None
    folder: Path
    """For the libraries' files; nothing in it is kept."""


@dataclass(frozen=True, slots=True)
class Load:
    """Make a fresh model and trainer for these rows. Stock TRL, which has no use for them, answers with the
    log-probabilities that an engine with these weights would have recorded."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class TakeStep:
    """Take one step's gradient."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step took."""

    seconds: float
    cpu_seconds: float
    """Of all its threads: what stays the same on a machine that is busy with other things."""
    peak_mb: float
    gradient: np.ndarray[Any, np.dtype[np.float32]]
    """Of all adapter weights, in the order of their names."""


def serve(connection: Connection, variant: Variant, options: Options) -> None:
    """Answer messages until `None` comes."""
    _quiet()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    memory = _CudaMemory() if options.device == "cuda" else _ProcessMemory()
    loaded: _Loaded | None = None
    while (message := connection.recv()) is not None:
        match message:
            case Load(workload):
                loaded = None
                loaded = _stock(workload, options) if variant == "stock" else _ours(workload, options, variant)
                _fill_adapter(loaded.model)
                logprobs = engine_logprobs(loaded.model, workload) if variant == "stock" else None
                if options.device == "cuda":
                    loaded.take()  # Kernels are compiled and chosen in the first step.
                memory.reset()
                connection.send(logprobs)
            case TakeStep():
                assert loaded is not None
                connection.send(_taken(loaded, memory))
            case _:
                raise TypeError(f"{message!r} is no message")


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: nn.Module
    take: Callable[[], None]
    """Leaves the gradient in the model."""


def _taken(loaded: _Loaded, memory: _Memory) -> Taken:
    loaded.model.zero_grad(set_to_none=True)
    started, cpu_started = memory.now(), _cpu_seconds()
    loaded.take()
    seconds, cpu_seconds = memory.now() - started, _cpu_seconds() - cpu_started
    gradient = torch.cat([cast(torch.Tensor, weight.grad).flatten() for weight in _adapter_weights(loaded.model)])
    return Taken(seconds, cpu_seconds, memory.peak() / MEBIBYTE, gradient.float().cpu().numpy())


def _stock(workload: Workload, options: Options) -> _Loaded:
    args = stock_config(workload, options.token_budget, options.folder, options.device)
    trainer = RecordedTrainer(_model(options), _tokenizer(), lora_config(_settings(options)), args, workload)
    return _Loaded(trainer.model, trainer.take_gradient)


def _ours(workload: Workload, options: Options, sharing: Sharing) -> _Loaded:
    trainer = PolicyTrainer(_settings(options), _model(options), _tokenizer(), (), lambda _step, _report: True)
    trainer.sharing = sharing
    trainer.current_gradient_accumulation_steps = 1
    batch = Batch(batch_id="bench", policy="bench", step=1, epoch=0, fence=1)
    step = Step(batch, workload.rows, workload.advantages, "dapo", (0,) * len(workload.rows))

    def take() -> None:
        trainer.training_step(trainer.model, {"step": step})
        _, report = cast("tuple[Step, Report]", trainer.done)
        if report.problem:
            raise RuntimeError(report.problem)

    return _Loaded(trainer.model, take)


def _model(options: Options) -> LlamaForCausalLM:
    """Random weights, the same each time: speed does not depend on what they say."""
    shape = options.model
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_size,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(device=options.device, dtype=torch.bfloat16 if options.device == "cuda" else torch.float32)


def _fill_adapter(model: nn.Module) -> None:
    """An adapter that has learned something: where B is zero, A has no gradient."""
    draw = torch.Generator().manual_seed(1)
    for weight in _adapter_weights(model):
        weight.data.copy_(torch.randn(weight.shape, generator=draw) * ADAPTER_SPREAD)


def _adapter_weights(model: nn.Module) -> list[nn.Parameter]:
    """In the order of their names."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return [named[name] for name in sorted(named)]


def _tokenizer() -> PreTrainedTokenizerFast:
    """The libraries want one; no text is ever turned into ids."""
    names = {"bos_token": "w0", "eos_token": "w1", "pad_token": "w1", "unk_token": "w2"}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({f"w{number}": number for number in range(4)}, unk_token="w2")), **names
    )


def _settings(options: Options) -> TrainerSettings:
    rank = options.model.rank
    policy = PolicySettings(name="bench", model="bench", lora=LoraSettings(r=rank, alpha=2 * rank))
    stores = StoreSettings(
        data_dir=options.folder, database_url=f"sqlite:///{options.folder / 'none.db'}", policies=(policy,)
    )
    return TrainerSettings(stores=stores, policy=policy, device=options.device, token_budget=options.token_budget)


class _ProcessMemory:
    """Resident memory, from what Linux counts; the mark of the most it was can be put back."""

    def __init__(self) -> None:
        self._base = 0

    def reset(self) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self._base = _status_bytes("VmRSS")

    def peak(self) -> int:
        return _status_bytes("VmHWM") - self._base

    def now(self) -> float:
        return time.monotonic()


class _CudaMemory:
    """What the allocator gave out on the GPU."""

    def __init__(self) -> None:
        self._base = 0

    def reset(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._base = torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._base

    def now(self) -> float:
        torch.cuda.synchronize()
        return time.monotonic()


_Memory = _ProcessMemory | _CudaMemory


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _quiet() -> None:
    warnings.simplefilter("ignore")
    cast(Any, transformers.utils.logging).set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
