"""The folder of a published adapter: checked before anybody loads it.

A name under `adapters/` in the data folder, no path; two known files, no link and nothing else beside them; the digest
is recomputed from the bytes. Blocking file I/O: called in a thread by `hotswap.py`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import stat
import struct
from pathlib import Path
from typing import Any, Final

import msgspec

from tracker.adapters import WEIGHTS_FILE
from tracker.errors import BadRequest, Conflict

FOLDER_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,159}"
CONFIG_FILE: Final = "adapter_config.json"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_HEADER_BYTES: Final = 1 << 26
NUM_READ_BYTES: Final = 1 << 14
UP_MATRIX: Final = ".lora_B."


def folder_name(policy: str, version: int, digest: str) -> str:
    """The folder of a version, which is its name on engines too: never used before, and the digest is part of it."""
    return f"{policy}@{version}-{digest[:8]}"


def check_folder(root: Path, folder: str, digest: str) -> Path:
    """The folder's path, if it is an adapter with this digest; raises `BadRequest` or `Conflict` with the reason."""
    path = _resolve(root, folder)
    names = sorted(entry.name for entry in path.iterdir())
    if names != [CONFIG_FILE, WEIGHTS_FILE]:
        found = ", ".join(names) or "nothing"
        raise BadRequest(f"{folder} must hold {CONFIG_FILE} and {WEIGHTS_FILE} only; it holds {found}.", param="folder")
    for name in names:
        if not stat.S_ISREG((path / name).lstat().st_mode):
            raise BadRequest(f"{folder}/{name} must be a plain file, not a link.", param="folder")
    _check_config(path / CONFIG_FILE)
    actual = digest_of(path / WEIGHTS_FILE)
    if actual != digest:
        raise Conflict(f"{folder}/{WEIGHTS_FILE} has the SHA-256 {actual}, not {digest}.", code="digest_mismatch")
    return path


def digest_of(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_folder(source: Path, target: Path) -> None:
    """Copy a checked folder: aside first, then renamed, so that a half-written one is never seen under its name."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, aside / name)
    aside.rename(target)


def trained_size(path: Path) -> float:
    """The largest of the first weights of each B matrix, which is zero before training; 0 for what cannot be read.

    Safetensors: eight bytes for the length of a JSON header, the header, and the tensors' bytes.
    """
    with (path / WEIGHTS_FILE).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            return 0.0
        try:
            header = msgspec.json.decode(file.read(length), type=dict[str, Any])
            tensors = [msgspec.convert(v, _Tensor) for name, v in header.items() if UP_MATRIX in name]
        except msgspec.MsgspecError:
            return 0.0
        largest = 0.0
        for tensor in tensors:
            start, end = tensor.data_offsets
            file.seek(8 + length + max(0, start))
            largest = max(largest, _largest(file.read(max(0, min(end - start, NUM_READ_BYTES))), tensor.dtype))
    return largest


class _Tensor(msgspec.Struct):
    """What a safetensors header says of a tensor."""

    dtype: str
    data_offsets: tuple[int, int]


def _largest(raw: bytes, dtype: str) -> float:
    """The largest magnitude of little-endian numbers; 0 for a type that adapters do not have."""
    match dtype:
        case "F32":
            values = struct.unpack(f"<{len(raw) // 4}f", raw[: len(raw) // 4 * 4])
        case "F16":
            values = struct.unpack(f"<{len(raw) // 2}e", raw[: len(raw) // 2 * 2])
        case "BF16":  # the upper half of a float32
            halves = struct.unpack(f"<{len(raw) // 2}H", raw[: len(raw) // 2 * 2])
            values = struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves)))
        case _:
            values = ()
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def _resolve(root: Path, folder: str) -> Path:
    if not re.fullmatch(FOLDER_PATTERN, folder):
        raise BadRequest(f"folder is one name under adapters/ that matches {FOLDER_PATTERN}.", param="folder")
    path = root / folder
    if path.is_symlink() or not path.is_dir():
        raise BadRequest(f"There is no folder adapters/{folder} in the data folder.", param="folder")
    if path.resolve().parent != root.resolve():
        raise BadRequest(f"adapters/{folder} leads out of the data folder.", param="folder")
    return path


def _check_config(path: Path) -> None:
    """A JSON object of a LoRA that engines can serve."""
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise BadRequest(f"{CONFIG_FILE} is larger than {MAX_CONFIG_BYTES} bytes.", param="folder")
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{CONFIG_FILE} is no JSON object: {error}.", param="folder") from error
    if config.get("use_dora") or config.get("modules_to_save") or config.get("bias", "none") != "none":
        raise BadRequest("Engines serve LoRA without DoRA, bias or modules_to_save only.", param="folder")
