"""Weights of an adapter without a tensor library: a safetensors file of one small matrix, told apart by its bytes."""

from __future__ import annotations

import json
from typing import Any

NAME = "base_model.model.x.lora_A.weight"


def marked_weights(mark: bytes) -> bytes:
    """A file with one matrix of rank 1, of float32 numbers whose bytes begin with the mark."""
    numbers = mark + bytes(-len(mark) % 4 or 4)
    shape = [1, len(numbers) // 4]
    return safetensors_of({NAME: {"dtype": "F32", "shape": shape, "data_offsets": [0, len(numbers)]}}, numbers)


def safetensors_of(header: dict[str, Any] | bytes, numbers: bytes) -> bytes:
    """A file with this header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + numbers


def is_safetensors(raw: bytes) -> bool:
    """Whether this could be one."""
    return len(raw) > 8 and 8 + int.from_bytes(raw[:8], "little") <= len(raw)
