"""What is read of an adapter's weights before anybody loads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gateway.adapter_weights import trained_size

pytestmark = pytest.mark.slow


def weights(folder: Path, up: torch.Tensor) -> Path:
    folder.mkdir()
    tensors = {"base_model.model.x.lora_A.weight": torch.full((2, 3), 9.0), "base_model.model.x.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder / "adapter_model.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_size_of_an_adapter_is_read_from_its_b_matrices(tmp_path: Path, dtype: torch.dtype) -> None:
    up = torch.zeros(3, 2, dtype=dtype)
    assert trained_size(weights(tmp_path / "zero", up)) == 0
    up[1, 1] = -0.25
    assert trained_size(weights(tmp_path / "trained", up)) == 0.25


@pytest.mark.parametrize("raw", [b"", b"weights", b"\xff" * 64, (3).to_bytes(8, "little") + b"[1]", bytes(8)])
def test_what_is_no_safetensors_has_no_size(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(raw)
    assert trained_size(path) == 0
