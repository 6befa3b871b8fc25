"""The engine's settings: one frozen record, read once from the command line and one environment variable.

Nothing else in the engine reads the command line or the environment. What a model is able to do (its context length,
its architecture) is checked where it is loaded.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KEY_VARIABLE = "HONE_ENGINE_KEY"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine process was started with."""

    model: str
    """A local folder, a hub id, or `smollm2`."""
    host: str = "127.0.0.1"
    port: int = 8610
    """0 takes a free port, which the ready line names."""
    served_model_name: str | None = None
    """The base model's name in requests; by default the last part of the model's path."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """`auto` is bfloat16 where the CPU multiplies it natively, else float32."""
    max_model_len: int = 2048
    """Most tokens of prompt and answer together."""
    max_num_seqs: int = 32
    """Most sequences of one version that are generated at once; more wait."""
    max_loras: int = 4
    """Most adapters that are live at once."""
    max_lora_rank: int = 16
    max_batch_tokens: int = 1024
    """Most tokens that one forward takes: long prompts are read in pieces, so that answers go on meanwhile."""
    prefix_tokens: int = 16384
    """Most tokens whose keys and values each version keeps for prompts to come."""
    cache_dir: Path = Path(".hone/models")
    """Where the bundled model is kept once converted."""
    threads: int | None = None
    """Threads for the model; by default torch's own choice."""
    key: str | None = None
    """If set, every request but /health must carry it as a bearer key."""


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> EngineConfig:
    """Read the command line; `HONE_ENGINE_KEY` is the one setting that comes from the environment."""
    given = vars(_parser().parse_args(arguments))
    return EngineConfig(**given, key=environment.get(KEY_VARIABLE) or None)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.engine", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="a local folder, a hub id, or smollm2")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8610, help="0 takes a free port")
    add("--served-model-name", default=None)
    add("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    add("--max-model-len", type=_positive, default=2048)
    add("--max-num-seqs", type=_positive, default=32)
    add("--max-loras", type=_positive, default=4)
    add("--max-lora-rank", type=_positive, default=16)
    add("--max-batch-tokens", type=_positive, default=1024)
    add("--prefix-tokens", type=int, default=16384)
    add("--cache-dir", type=Path, default=Path(".hone/models"))
    add("--threads", type=_positive, default=None)
    return parser
