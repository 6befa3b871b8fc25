"""LoRA adapters on disk and in the model: checking a folder before it touches anything, adding, choosing, removing.

The rule: an adapter is served exactly or not at all. Every tensor of its file must land on a linear layer that its
configuration names and every such layer must have its tensors, or it is refused and nothing has changed; after loading,
the weights in the model are compared with the file once more. `ModelAdapters` is used by the model's one thread only.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel
from peft.tuners import tuners_utils
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch
from transformers import PreTrainedModel

from tracker.errors import BadRequest, NotFound

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."

# These libraries' own types are partial: what crosses their seam is typed here.
_is_target: Callable[[LoraConfig, str], object] = cast(Any, tuners_utils).check_target_module_exists
_load_file: Callable[[Path], dict[str, torch.Tensor]] = cast(Any, safetensors_torch).load_file
_open_file: Any = safe_open
_read_lora: Callable[[str], Any] = cast(Any, LoraConfig).from_pretrained
_UNSERVED = ("use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters")
_UNSERVED_TOO = (
    "trainable_token_indices",
    "layer_replication",
    "exclude_modules",
    "use_qalora",
    "alora_invocation_tokens",
)


@dataclass(frozen=True, slots=True)
class Linear:
    """The shape of one layer that an adapter may be on."""

    num_in: int
    num_out: int


def linear_layers(model: PreTrainedModel) -> dict[str, Linear]:
    """Name the layers an adapter may be on: all linear ones but the head, whose adapters engines cannot serve."""
    head: object = cast(Any, model).get_output_embeddings()
    modules: Iterator[tuple[str, torch.nn.Module]] = cast(Any, model).named_modules()
    return {
        name: Linear(module.in_features, module.out_features)
        for name, module in modules
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def check_adapter(folder: Path, layers: Mapping[str, Linear], max_rank: int) -> None:
    """Raise what is wrong with an adapter folder; reads the configuration and the header of the weights."""
    if not folder.is_dir():
        raise NotFound(f"No adapter found for {folder}: there is no such folder", param="lora_path")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise _bad(folder, f"it has no {name}")
    config = _read_config(folder)
    if config.r > max_rank:
        raise _bad(folder, f"its rank {config.r} is greater than --max-lora-rank {max_rank}")
    targets = {name for name in layers if _is_target(config, name)}
    if not targets:
        raise _bad(folder, f"its target_modules {config.target_modules} name no linear layer of the model")
    _check_tensors(folder, {name: layers[name] for name in targets}, config.r)


def _read_config(folder: Path) -> LoraConfig:
    try:
        parsed: object = json.loads((folder / CONFIG_FILE).read_bytes())
    except ValueError as error:
        raise _bad(folder, f"its {CONFIG_FILE} is no JSON: {error}") from error
    raw = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    if raw.get("peft_type") != "LORA":
        raise _bad(folder, "its peft_type is not LORA")
    for name in (*_UNSERVED, *_UNSERVED_TOO):
        if raw.get(name):
            raise _bad(folder, f"it uses {name}, which the engine does not serve; train without it")
    if raw.get("bias", "none") != "none":
        raise _bad(folder, "it has a bias, which the engine does not serve; train with bias='none'")
    if not isinstance(raw.get("r"), int) or raw["r"] < 1:
        raise _bad(folder, "its rank r is not a positive number")
    try:
        config = _read_lora(str(folder))
    except (TypeError, ValueError) as error:
        raise _bad(folder, f"its {CONFIG_FILE} is not understood: {error}") from error
    assert isinstance(config, LoraConfig)
    return config


def _check_tensors(folder: Path, targets: Mapping[str, Linear], rank: int) -> None:
    expected: dict[str, list[int]] = {}
    for name, layer in targets.items():
        expected[f"{_PREFIX}{name}.lora_A.weight"] = [rank, layer.num_in]
        expected[f"{_PREFIX}{name}.lora_B.weight"] = [layer.num_out, rank]
    found = _shapes(folder)
    strange = sorted(found.keys() - expected.keys())
    if strange:
        raise _bad(folder, f"its tensor {strange[0]} lands on no layer that its target_modules name")
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise _bad(folder, f"its weights lack {missing[0]}, which its target_modules name")
    for key, shape in expected.items():
        if found[key] != shape:
            raise _bad(folder, f"its tensor {key} has the shape {found[key]}, the model and the rank ask for {shape}")
    for key, tensor in _load_file(folder / WEIGHTS_FILE).items():
        if not torch.isfinite(tensor).all():
            raise _bad(folder, f"its tensor {key} has numbers that are not finite")


def _shapes(folder: Path) -> dict[str, list[int]]:
    try:
        with _open_file(folder / WEIGHTS_FILE, framework="pt") as file:
            keys: list[str] = file.keys()
            return {key: list(file.get_slice(key).get_shape()) for key in keys}
    except SafetensorError as error:
        raise _bad(folder, f"its {WEIGHTS_FILE} cannot be read: {error}") from error


def _bad(folder: Path, why: str) -> BadRequest:
    return BadRequest(f"The adapter in {folder} cannot be loaded: {why}", param="lora_path")


class ModelAdapters:
    """The adapters inside the model, and which one is on."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._base = model
        self._wrapped: Any = None
        self._names: dict[str, str] = {}
        self._active: str | None = None
        self._num_loaded = 0

    def add(self, name: str, folder: Path) -> None:
        """Put a checked adapter into the model. Nothing is on afterwards; on any error nothing has changed."""
        self._num_loaded += 1
        # peft uses names as module keys, where dots mean something: ours are its, theirs are not.
        inner = f"lora{self._num_loaded}"
        self._active = None
        try:
            wrapped = self._wrap(inner, folder)
            is_whole = self._holds(inner, folder)
        except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
            self._delete(inner)
            raise _bad(folder, f"peft refuses it: {error}") from error
        wrapped.base_model.disable_adapter_layers()
        if not is_whole:
            self._delete(inner)
            raise _bad(folder, "its weights did not land in the model as they are in the file")
        self._names[name] = inner

    def _wrap(self, inner: str, folder: Path) -> Any:
        if self._wrapped is None:
            self._wrapped = cast(Any, PeftModel).from_pretrained(self._base, str(folder), adapter_name=inner)
        else:
            self._wrapped.load_adapter(str(folder), adapter_name=inner)
        self._wrapped.eval().requires_grad_(False)
        return self._wrapped

    def _holds(self, inner: str, folder: Path) -> bool:
        """Whether the model's weights of an adapter equal the file's, number by number."""
        assert self._wrapped is not None
        modules = dict(self._wrapped.named_parameters())
        for key, tensor in _load_file(folder / WEIGHTS_FILE).items():
            held = modules.get(key.removesuffix(".weight") + f".{inner}.weight")
            if held is None or not torch.equal(held, tensor.to(held.dtype)):
                return False
        return True

    def use(self, name: str | None) -> None:
        """Switch to an adapter, or to the bare base model for None."""
        if name == self._active:
            return
        assert self._wrapped is not None
        if name is None:
            self._wrapped.base_model.disable_adapter_layers()
        else:
            self._wrapped.base_model.enable_adapter_layers()
            self._wrapped.set_adapter(self._names[name], inference_mode=True)
        self._active = name

    def remove(self, name: str) -> None:
        """Take an adapter's weights out of the model and free them."""
        self._active = None
        self._delete(self._names.pop(name))

    def _delete(self, inner: str) -> None:
        if self._wrapped is None or inner not in self._wrapped.peft_config:
            return
        # Deleting one that is on would turn another one on, with a warning.
        self._wrapped.base_model.set_adapter([], inference_mode=True)
        self._wrapped.base_model.delete_adapter(inner)
        self._wrapped.base_model.disable_adapter_layers()
