"""The folder of a published adapter: checked before anybody loads it.

A name under `adapters/` in the data folder, no path; two known files, no link and nothing else beside them; sizes and
ranks within what the policy says; a configuration that makes whoever loads it do nothing but a LoRA. The digest is
recomputed from the bytes, also from those that were copied. Blocking file I/O: called in a thread by `hotswap.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from gateway.adapter_weights import check_weights, unfit
from gateway.json_depth import is_deep
from tracker.adapters import WEIGHTS_FILE
from tracker.errors import BadRequest, Conflict
from tracker.settings import LoraSettings
from tracker.types import Record

FOLDER_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,159}"
CONFIG_FILE: Final = "adapter_config.json"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_CONFIG_DEPTH: Final = 8
MODULE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
PATTERNS: Final = ("rank_pattern", "alpha_pattern")
NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "bias": (None, "none"),
    "init_lora_weights": (None, True, False, "gaussian"),
}
"""What these fields may be."""
UNUSED: Final = (
    "alora_invocation_tokens",
    "arrow_config",
    "corda_config",
    "eva_config",
    "layer_replication",
    "loftq_config",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_qalora",
)
"""Fields that are left empty: each makes a loader run, import or hold something that is no LoRA."""


class AdapterRules(Record, frozen=True):
    """What an adapter of a policy may be."""

    lora: LoraSettings
    max_bytes: int


def folder_name(policy: str, version: int, digest: str) -> str:
    """The folder of a version, which is its name on engines too: never used before, and the digest is part of it."""
    return f"{policy}@{version}-{digest[:8]}"


def check_folder(root: Path, folder: str, digest: str, rules: AdapterRules) -> Path:
    """The folder's path, if it is an adapter with this digest; raises `BadRequest` or `Conflict` with the reason."""
    path = _resolve(root, folder)
    names = sorted(entry.name for entry in itertools.islice(path.iterdir(), 8))
    if names != [CONFIG_FILE, WEIGHTS_FILE]:
        found = ", ".join(names) or "nothing"
        raise BadRequest(f"{folder} must hold {CONFIG_FILE} and {WEIGHTS_FILE} only; it holds {found}.", param="folder")
    _check_file(path / CONFIG_FILE, MAX_CONFIG_BYTES)
    _check_file(path / WEIGHTS_FILE, rules.max_bytes)
    _check_config(path / CONFIG_FILE, rules.lora)
    check_weights(path / WEIGHTS_FILE, rules.lora.r)
    _check_digest(path, digest)
    return path


def digest_of(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_folder(source: Path, target: Path, digest: str) -> None:
    """Copy a checked folder: aside first, then renamed, so that a half-written one is never seen under its name.

    Raises `Conflict` if what was copied is no longer what was checked, or if another folder has the name already.
    """
    if target.exists():  # somebody put it there, under the very name that it is about to get
        if source != target:
            raise Conflict(f"There is a folder adapters/{target.name} already: move it away and publish again.")
        _check_digest(target, digest)
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, aside / name, follow_symlinks=False)
    _check_digest(aside, digest)
    aside.rename(target)


def _resolve(root: Path, folder: str) -> Path:
    if not re.fullmatch(FOLDER_PATTERN, folder):
        raise BadRequest(f"folder is one name under adapters/ that matches {FOLDER_PATTERN}.", param="folder")
    path = root / folder
    if path.is_symlink() or not path.is_dir():
        raise BadRequest(f"There is no folder adapters/{folder} in the data folder.", param="folder")
    if path.resolve().parent != root.resolve():
        raise BadRequest(f"adapters/{folder} leads out of the data folder.", param="folder")
    return path


def _check_file(path: Path, max_bytes: int) -> None:
    found = path.lstat()
    told = f"{path.parent.name}/{path.name}"
    if not stat.S_ISREG(found.st_mode):
        raise BadRequest(f"{told} must be a plain file, not a link.", param="folder")
    if found.st_size > max_bytes:
        raise BadRequest(f"{told} has {found.st_size} bytes; {max_bytes} are allowed.", param="folder")


def _check_digest(path: Path, digest: str) -> None:
    actual = digest_of(path / WEIGHTS_FILE)
    if actual != digest:
        raise Conflict(f"{path.name}/{WEIGHTS_FILE} has the SHA-256 {actual}, not {digest}.", code="digest_mismatch")


def _check_config(path: Path, lora: LoraSettings) -> None:
    """A JSON object of a LoRA that engines can serve, of at most the policy's rank, for modules that it names."""
    raw = path.read_bytes()
    try:
        config = {} if is_deep(raw, MAX_CONFIG_DEPTH) else msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"{CONFIG_FILE} is no JSON object: {error}.", param="folder") from error
    if config.get("peft_type") != "LORA":
        raise _refused("peft_type is not LORA")
    for name in UNUSED:
        if config.get(name):
            raise _refused(f"{name} is set; engines serve LoRA without it")
    for name, allowed in NEUTRAL.items():
        value = config.get(name)
        if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
            raise _refused(f"{name} is {str(value)[:100]!r}")
    _check_ranks(config, lora.r)
    _check_modules(config, lora.target)


def _check_ranks(config: Mapping[str, Any], max_rank: int) -> None:
    by_module: object = config.get("rank_pattern") or {}
    others = list(cast("dict[str, object]", by_module).values()) if isinstance(by_module, dict) else [by_module]
    for rank in (config.get("r"), *others):
        told = f"the rank is {str(rank)[:100]}; the policy's lora.r is {max_rank}"
        if type(rank) is not int or rank < 1:
            raise _refused(told)
        if rank > max_rank:
            raise unfit(f"{CONFIG_FILE}: {told}")


def _check_modules(config: Mapping[str, Any], target: str | tuple[str, ...]) -> None:
    """Names of modules, not the regular expressions that loaders take too, unless the policy itself says one."""
    targets: object = config.get("target_modules") or []
    named = list(cast("list[object]", targets)) if isinstance(targets, list) else [targets]
    for pattern in PATTERNS:
        value: object = config.get(pattern) or {}
        named += list(cast("dict[str, object]", value)) if isinstance(value, dict) else [value]
    for name in named:
        if name != target and not (isinstance(name, str) and MODULE.fullmatch(name)):
            raise _refused(f"{str(name)[:100]!r} is no name of a module")


def _refused(why: str) -> BadRequest:
    return BadRequest(f"{CONFIG_FILE}: {why}.", param="folder")
