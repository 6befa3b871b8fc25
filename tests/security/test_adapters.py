"""An adapter's folder is believed in nothing: files, links, names, sizes, ranks, numbers, configuration."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.adapter_folder import AdapterRules, check_folder, copy_folder
from gateway.adapter_weights import MAX_HEADER_BYTES, check_weights, trained_size
from tests.fakes.adapter_files import NAME, marked_weights, safetensors_of
from tracker.errors import BadRequest, Conflict
from tracker.settings import LoraSettings

RULES = AdapterRules(lora=LoraSettings(r=4), max_bytes=10_000)
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "model.layers.0.mlp.up_proj"]}
WEIGHTS = "adapter_model.safetensors"
MATRIX: dict[str, Any] = {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}


def written(root: Path, name: str = "mine", *, config: Any = CONFIG, weights: bytes = b"") -> str:
    """A folder of an adapter; the digest of its weights."""
    weights = weights or marked_weights(b"mine")
    (root / name).mkdir(parents=True)
    raw = config if isinstance(config, bytes) else json.dumps(config).encode()
    (root / name / "adapter_config.json").write_bytes(raw)
    (root / name / WEIGHTS).write_bytes(weights)
    return hashlib.sha256(weights).hexdigest()


def test_what_the_trainer_writes_is_an_adapter(tmp_path: Path) -> None:
    b_matrix = {"dtype": "BF16", "shape": [3, 4], "data_offsets": [32, 56]}
    header = {"__metadata__": {"format": "pt"}, NAME: MATRIX, "base_model.model.x.lora_B.weight": b_matrix}
    config = CONFIG | {"use_dora": False, "bias": "none", "init_lora_weights": True, "loftq_config": {}}
    digest = written(tmp_path, config=config, weights=safetensors_of(header, bytes(56)))
    assert check_folder(tmp_path, "mine", digest, RULES) == tmp_path / "mine"


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../mine", "mine/", "a/b", "", "/etc", ".mine", "mine\n", "mine\x00", "m%69ne", "ｍine", "-mine"],
)
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    digest = written(tmp_path / "adapters")
    with pytest.raises(BadRequest):
        check_folder(tmp_path / "adapters", name, digest, RULES)


def _link_weights(root: Path) -> None:
    (root / "secret").write_bytes((root / "mine" / WEIGHTS).read_bytes())
    (root / "mine" / WEIGHTS).unlink()
    (root / "mine" / WEIGHTS).symlink_to(root / "secret")


def _link_config(root: Path) -> None:
    (root / "mine" / "adapter_config.json").rename(root / "c")
    (root / "mine" / "adapter_config.json").symlink_to(root / "c")


def _pipe(root: Path) -> None:
    (root / "mine" / WEIGHTS).unlink()
    os.mkfifo(root / "mine" / WEIGHTS)


def _link_folder(root: Path) -> None:
    (root / "mine").rename(root.parent / "elsewhere")
    (root / "mine").symlink_to(root.parent / "elsewhere")


FOLDERS: dict[str, Callable[[Path], Any]] = {
    "a pickle beside them": lambda root: (root / "mine" / "adapter_model.bin").write_bytes(b"\x80\x04."),
    "code beside them": lambda root: (root / "mine" / "modeling.py").write_text("import os"),
    "many files": lambda root: [(root / "mine" / f"x{k}").touch() for k in range(100)],
    "weights that are a link": _link_weights,
    "a configuration that is a link": _link_config,
    "weights that are a pipe": _pipe,
    "a folder that is a link": _link_folder,
    "no weights": lambda root: (root / "mine" / WEIGHTS).unlink(),
    "weights that are a folder": lambda root: [(root / "mine" / WEIGHTS).unlink(), (root / "mine" / WEIGHTS).mkdir()],
}


@pytest.mark.parametrize("case", FOLDERS)
def test_anything_but_two_plain_files_is_refused(tmp_path: Path, case: str) -> None:
    root = tmp_path / "adapters"
    digest = written(root)
    FOLDERS[case](root)
    with pytest.raises(BadRequest):
        check_folder(root, "mine", digest, RULES)


def headed(**changes: Any) -> bytes:
    return safetensors_of({NAME: MATRIX | changes}, bytes(32))


FILES: dict[str, tuple[bytes, str]] = {
    "a pickle": (b"\x80\x04\x95" + bytes(64), "header"),
    "a zip": (b"PK\x03\x04" + bytes(64), "header"),
    "nothing": (b" ", "header"),
    "a header without end": ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "header"),
    "a header longer than the file": ((1000).to_bytes(8, "little") + b"{}", "header"),
    "a header that is no object": (safetensors_of(b"[1]", b""), "header"),
    "a header nested deeply": (safetensors_of(b'{"a":' * 900 + b"1" + b"}" * 900, b""), "header"),
    "a rank above the policy's": (headed(shape=[8, 1]), "rank 8"),
    "a rank above the policy's in B": (
        safetensors_of({"x.lora_B.weight": MATRIX | {"shape": [1, 8]}}, bytes(32)),
        "rank 8",
    ),
    "a tensor that is no half": (safetensors_of({"lm_head.weight": MATRIX}, bytes(32)), "lm_head"),
    "a magnitude": (safetensors_of({"x.lora_magnitude_vector": MATRIX}, bytes(32)), "no lora_A"),
    "numbers that overlap": (
        safetensors_of({NAME: MATRIX, "y.lora_A.weight": MATRIX}, bytes(32)),
        "not where its shape says",
    ),
    "a gap": (headed(data_offsets=[4, 36]), "not where"),
    "offsets backwards": (headed(data_offsets=[32, 0]), "not where"),
    "offsets below zero": (headed(data_offsets=[-32, 0]), "not where"),
    "a shape below zero": (headed(shape=[-4, -2]), "rank -4"),
    "a shape beyond the file": (headed(shape=[4, 2**60], data_offsets=[0, 2**64]), "bytes where"),
    "numbers of 64 bits": (headed(dtype="F64"), "no matrix"),
    "a type nobody knows": (headed(dtype="PICKLE"), "no matrix"),
    "bytes behind the numbers": (headed() + b"x", "bytes where"),
    "numbers cut off": (headed()[:-1], "bytes where"),
    "more than it may have": (marked_weights(bytes(20_000)), "10000 are allowed"),
}


@pytest.mark.parametrize("case", FILES)
def test_weights_that_are_no_adapter_are_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    raw, why = FILES[case]
    digest = written(tmp_path, weights=raw)
    with pytest.raises((BadRequest, Conflict), match=why) as refused:
        check_folder(tmp_path, "mine", digest, RULES)
    assert len(refused.value.message) < 1000


CONFIGS: dict[str, Any] = {
    "no JSON": b"{",
    "no object": b"[]",
    "nested deeply": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "too large": b'{"peft_type": "LORA", "r": 4, "x": "' + b"x" * 2**20 + b'"}',
    "not LoRA": CONFIG | {"peft_type": "LOHA"},
    "no rank": {"peft_type": "LORA"},
    "a rank above the policy's": CONFIG | {"r": 8},
    "a rank that is a text": CONFIG | {"r": "4"},
    "a rank that is true": CONFIG | {"r": True},
    "a rank of nothing": CONFIG | {"r": 0},
    "a rank by module": CONFIG | {"rank_pattern": {"q_proj": 64}},
    "ranks that are a list": CONFIG | {"rank_pattern": ["q_proj"]},
    "a pattern for ranks": CONFIG | {"rank_pattern": {"(a+)+$": 4}},
    "a pattern for scales": CONFIG | {"alpha_pattern": {"(a+)+$": 4}},
    "a pattern for modules": CONFIG | {"target_modules": "(a+)+$"},
    "a pattern in a list": CONFIG | {"target_modules": ["(a+)+$"]},
    "DoRA": CONFIG | {"use_dora": True},
    "whole modules": CONFIG | {"modules_to_save": ["lm_head"]},
    "a bias": CONFIG | {"bias": "all"},
    "another bias": CONFIG | {"lora_bias": True},
    "a module to import": CONFIG | {"megatron_config": {"a": 1}, "megatron_core": "antigravity"},
    "layers repeated": CONFIG | {"layer_replication": [[0, 4], [0, 4]]},
    "weights made at loading": CONFIG | {"init_lora_weights": "pissa"},
    "weights made at loading, as a number": CONFIG | {"init_lora_weights": 1},
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_that_makes_a_loader_do_anything_else_is_refused(tmp_path: Path, case: str) -> None:
    digest = written(tmp_path, config=CONFIGS[case])
    with pytest.raises((BadRequest, Conflict), match="adapter_config"):
        check_folder(tmp_path, "mine", digest, RULES)


def test_a_whole_adapter_that_the_policy_cannot_have_is_a_conflict(tmp_path: Path) -> None:
    digest = written(tmp_path, config=CONFIGS["a rank above the policy's"])
    with pytest.raises(Conflict, match=r"lora\.r is 4"):
        check_folder(tmp_path, "mine", digest, RULES)


def test_a_pattern_for_modules_is_the_policys_own_or_none(tmp_path: Path) -> None:
    pattern = r".*\.(q|k)_proj"
    digest = written(tmp_path, config=CONFIG | {"target_modules": pattern})
    own = AdapterRules(lora=LoraSettings(r=4, target=pattern), max_bytes=10_000)
    assert check_folder(tmp_path, "mine", digest, own)


def test_weights_swapped_after_they_were_checked_are_not_taken(tmp_path: Path) -> None:
    digest = written(tmp_path)
    path = check_folder(tmp_path, "mine", digest, RULES)
    (path / WEIGHTS).write_bytes(marked_weights(b"other"))
    with pytest.raises(Conflict):
        copy_folder(path, tmp_path / "solver@1-0", digest)
    assert not (tmp_path / "solver@1-0").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.one_of(st.binary(max_size=80), st.builds(safetensors_of, st.binary(max_size=40), st.binary(max_size=8))))
def test_bytes_of_any_kind_are_refused_and_never_break_the_check(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(raw)
    with contextlib.suppress(BadRequest, Conflict):
        check_weights(path, 4)
    assert trained_size(path) >= 0
