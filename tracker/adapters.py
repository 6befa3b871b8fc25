"""The adapters of a data folder, against what SQL says of their versions.

Only digests: whether a file loads, and whether an engine serves it, is for the gateway's hot swap to find out. A
version whose files are not kept any more has no digest found, which is no fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from tracker.evidence import Adapter
from tracker.types import Version

WEIGHTS_FILE: Final = "adapter_model.safetensors"


def read_adapters(versions: Iterable[Version], folder: Path, wanted: Collection[int]) -> dict[int, Adapter]:
    """version -> what is registered and what lies under `folder`, for the versions that are asked about."""
    return {
        version.version: Adapter(
            registered=version.digest, folder=version.folder, found=_digest_at(folder / version.folder / WEIGHTS_FILE)
        )
        for version in versions
        if version.version in wanted and version.digest
    }


def _digest_at(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
