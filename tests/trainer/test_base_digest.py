"""What the base model is: the same digest for the same files, another one for any change, hashed once."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.base_digest import Hashing, base_digest


def folder_of(path: Path, weights: bytes = b"weights", config: str = "{}") -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    (path / "model.safetensors").write_bytes(weights)
    (path / "tokenizer.json").write_text("{}")
    return path


def test_the_digest_is_of_configuration_and_weights_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "digests.json"
    first = base_digest(str(folder_of(tmp_path / "a")), None, cache)
    assert first is not None
    assert len(first) == 64
    (tmp_path / "a" / "tokenizer.json").write_text("other")
    assert base_digest(str(tmp_path / "a"), None, cache) == first
    assert base_digest(str(folder_of(tmp_path / "b")), None, cache) == first
    assert base_digest(str(folder_of(tmp_path / "c", weights=b"others!")), None, cache) != first
    assert base_digest(str(folder_of(tmp_path / "d", config='{"rope_theta": 1}')), None, cache) != first


def test_a_folder_is_hashed_again_only_when_its_files_changed(tmp_path: Path) -> None:
    folder, cache = folder_of(tmp_path / "a"), tmp_path / "digests.json"
    first = base_digest(str(folder), None, cache)
    known = json.loads(cache.read_text())
    known[str(folder)]["digest"] = "kept"
    cache.write_text(json.dumps(known))
    assert base_digest(str(folder), None, cache) == "kept"
    (folder / "model.safetensors").write_bytes(b"longer weights")
    assert base_digest(str(folder), None, cache) not in ("kept", first)


def test_a_cache_that_nobody_can_read_is_made_anew(tmp_path: Path) -> None:
    cache = tmp_path / "digests.json"
    cache.write_text("{")
    first = base_digest(str(folder_of(tmp_path / "a")), None, cache)
    assert json.loads(cache.read_text())[str(tmp_path / "a")]["digest"] == first


def test_a_model_of_a_hub_is_named_by_its_revision(tmp_path: Path) -> None:
    assert base_digest("org/name", "abc", tmp_path / "digests.json") == "org/name@abc"
    assert base_digest("org/name", None, tmp_path / "digests.json") is None


def test_a_thread_works_it_out_meanwhile(tmp_path: Path) -> None:
    folder, cache = folder_of(tmp_path / "a"), tmp_path / "digests.json"
    assert Hashing(str(folder), None, cache).facts() == {"base_digest": base_digest(str(folder), None, cache)}
