"""Export as JSON lines: one row a line, as UTF-8, parts joined by copying them one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gateway.message_fold import encode_json

COPIED: Final = 2**20


class JsonLines:
    """JSON lines."""

    suffix = "jsonl"

    def write(self, path: Path, rows: Sequence[dict[str, Any]], *, is_text: bool) -> None:
        """One part."""
        del is_text
        with path.open("wb") as file:
            for row in rows:
                file.write(encode_json(row) + b"\n")

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """One file of all parts."""
        with path.open("wb") as whole:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole, COPIED)
