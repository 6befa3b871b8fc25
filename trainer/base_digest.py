"""What the base model is, as a digest: SHA-256 over its configuration and its weights, kept so that it is cheap.

A folder is hashed once; as long as its files have the same sizes and times, what was found before is told again. A
model of a hub is named by its revision, which is a digest already. `Hashing` does it while training begins.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from threading import Thread
from typing import Any, Final, cast

CONFIG: Final = "config.json"
WEIGHTS: Final = "*.safetensors"


def base_digest(source: str, revision: str | None, cache: Path) -> str | None:
    """The digest of a model folder, the revision of a hub's model; `None` where neither is known.

    `cache` is the file in which digests of folders are kept.
    """
    folder = Path(source)
    if not folder.is_dir():
        return None if revision is None else f"{source}@{revision}"
    files = [folder / CONFIG, *sorted(folder.glob(WEIGHTS))]
    stamp = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    known = _read(cache)
    entry = known.get(str(folder.resolve()), {})
    if entry.get("files") == stamp:
        return str(entry["digest"])
    digest = _hashed(files)
    known[str(folder.resolve())] = {"files": stamp, "digest": digest}
    cache.parent.mkdir(parents=True, exist_ok=True)
    aside = cache.with_suffix(".new")
    aside.write_text(json.dumps(known))
    aside.replace(cache)
    return digest


class Hashing:
    """A digest that a thread works out: gigabytes take seconds, and the first step waits for its groups anyway."""

    def __init__(self, source: str, revision: str | None, cache: Path) -> None:
        self._found: str | None = None
        self._thread = Thread(target=self._work, args=(source, revision, cache), name="base digest", daemon=True)
        self._thread.start()

    def facts(self) -> dict[str, Any]:
        """The digest, for the metrics of a step."""
        self._thread.join()
        return {"base_digest": self._found}

    def _work(self, source: str, revision: str | None, cache: Path) -> None:
        self._found = base_digest(source, revision, cache)


def _hashed(files: list[Path]) -> str:
    """Over the digests of the files, each with its name."""
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            part = hashlib.file_digest(stream, "sha256")
        whole.update(f"{file.name} {part.hexdigest()}\n".encode())
    return whole.hexdigest()


def _read(cache: Path) -> dict[str, dict[str, Any]]:
    """What was found before; a file that nobody can read is as good as none."""
    try:
        return cast("dict[str, dict[str, Any]]", json.loads(cache.read_text()))
    except (FileNotFoundError, ValueError):
        return {}
