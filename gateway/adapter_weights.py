"""The weights of an adapter as safetensors: what the header says, checked before any byte behind it is believed.

A file is eight bytes for the length of a JSON header, the header, and the tensors' numbers without a gap; it holds no
code, and reading it runs none. A matrix that is no half of a low-rank update is refused, as is one of a higher rank
than engines were started for.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tracker.errors import BadRequest, Conflict
from tracker.types import Record

MAX_HEADER_BYTES: Final = 1 << 24
NUM_READ_BYTES: Final = 1 << 14
METADATA: Final = "__metadata__"
UP_MATRIX: Final = ".lora_B."
HALF: Final = re.compile(r"(?P<module>.+)\.lora_(?:embedding_)?(?P<half>[AB])(?:\.weight)?")
NUM_BYTES: Final[Mapping[str, int]] = {"F32": 4, "F16": 2, "BF16": 2}
"""Of one number, for the types that adapters have."""


class Tensor(Record, frozen=True):
    """What the header says of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
    """From the end of the header; the second one is exclusive."""


def check_weights(path: Path, max_rank: int) -> None:
    """Raise `BadRequest` with the reason unless this is a safetensors file of matrices, and `Conflict` unless they are
    those of an adapter of at most this rank: a sound file that the policy cannot be served with."""
    start, tensors = _read_header(path)
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        found = HALF.fullmatch(name)
        if found is None:
            raise unfit(f"the tensor {name[:200]!r} is no lora_A or lora_B")
        if tensor.dtype not in NUM_BYTES or len(tensor.shape) != 2:
            raise _refused(path, f"the tensor {name[:200]!r} is no matrix of {', '.join(NUM_BYTES)}")
        rank = tensor.shape[found["half"] == "B"]
        if rank > max_rank:
            raise unfit(f"the tensor {name[:200]!r} has the rank {rank}; the policy's is {max_rank}")
        if rank < 1:
            raise _refused(path, f"the tensor {name[:200]!r} has the rank {rank}")
        end = at + math.prod(tensor.shape) * NUM_BYTES[tensor.dtype]
        if tensor.data_offsets != (at, end):
            raise _refused(path, f"the tensor {name[:200]!r} is not where its shape says")
        at = end
    size = path.stat().st_size
    if start + at != size:
        raise _refused(path, f"it has {size} bytes where its header says {start + at}")


def trained_size(path: Path) -> float:
    """The largest of the first weights of each B matrix, which is zero before training; 0 for what cannot be read."""
    try:
        start, tensors = _read_header(path)
    except BadRequest:
        return 0.0
    largest = 0.0
    with path.open("rb") as file:
        for name, tensor in tensors.items():
            if UP_MATRIX in name:
                first, end = tensor.data_offsets
                file.seek(start + max(0, first))
                largest = max(largest, _largest(file.read(max(0, min(end - first, NUM_READ_BYTES))), tensor.dtype))
    return largest


def _read_header(path: Path) -> tuple[int, dict[str, Tensor]]:
    """Where the numbers begin, and the tensors by name."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise _refused(path, f"its header would have {length} bytes; up to {MAX_HEADER_BYTES} are read")
        raw = file.read(length)
    try:
        entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        tensors = {name: msgspec.json.decode(entry, type=Tensor) for name, entry in entries.items() if name != METADATA}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, f"its header cannot be read: {error}") from error
    return 8 + length, tensors


def unfit(why: str) -> Conflict:
    """The refusal of an adapter that is whole, but not one of this policy's."""
    return Conflict(f"The adapter does not fit the policy: {why}.", param="folder", code="adapter_unfit")


def _refused(path: Path, why: str) -> BadRequest:
    return BadRequest(f"{path.parent.name}/{path.name} is no safetensors file of an adapter: {why}.", param="folder")


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
