"""Checkpoints: the commit point of a step is the rename of its folder.

A folder is written aside, whole, and renamed; what has the final name is whole, what has another is rubbish of a crash
and is removed at start. What goes loses its name first. Beside the trainer's state it says which batch it came from.
The last few stay, for a rollback. What the state consists of is left to `grpo.py`, when to write to the loop.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tracker.types import Batch, Record

NAME: Final = "step-{:08d}-{}"
PATTERN: Final = "step-*"
BATCH_FILE: Final = "batch.json"
ASIDE: Final = re.compile("-[0-9a-f]{32}$")
"""How the names of folders end that are no more, or not yet, what they will be called."""


class Origin(Record, frozen=True):
    """Which step a checkpoint holds the result of."""

    batch_id: str
    step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One whole checkpoint."""

    folder: Path
    origin: Origin


class Checkpoints:
    """The checkpoints of one policy, in one folder."""

    def __init__(self, root: Path, keep: int) -> None:
        self._root = root
        self._keep = keep

    def clean(self) -> None:
        """Remove what a crash left half written."""
        clean(self._root, "")

    def all(self) -> list[Checkpoint]:
        """Newest first: by epoch, then by step."""
        found = [
            Checkpoint(folder, msgspec.json.decode((folder / BATCH_FILE).read_bytes(), type=Origin))
            for folder in self._root.glob(PATTERN)
        ]
        return sorted(found, key=lambda item: (item.origin.epoch, item.origin.step), reverse=True)

    def find(self, batch_id: str) -> Checkpoint | None:
        return next((item for item in self.all() if item.origin.batch_id == batch_id), None)

    def write(self, batch: Batch, save: Callable[[Path], object]) -> Checkpoint:
        """Have the state written aside, then commit it; then let the oldest go."""
        origin = Origin(batch_id=batch.batch_id, step=batch.step, epoch=batch.epoch)
        target = self._root / NAME.format(batch.step, batch.batch_id.rsplit("-", 1)[-1][:8])
        with aside(target) as folder:
            save(folder)
            (folder / BATCH_FILE).write_bytes(msgspec.json.encode(origin))
        for old in self.all()[self._keep :]:
            remove(old.folder)
        return Checkpoint(target, origin)


@contextmanager
def aside(target: Path) -> Generator[Path]:
    """A fresh folder beside `target` that becomes it when the block ends well, on disk before it has the name.

    A `target` that is there already has the same content, written before a crash, and is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = _beside(target)
    folder.mkdir()
    try:
        yield folder
        for path in [*folder.rglob("*"), folder]:
            sync(path)
        if target.exists():
            remove(target)
        folder.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean(root: Path, prefix: str) -> None:
    """Remove the folders that a crash left half written or half removed; only those of names that begin so."""
    for folder in root.glob(".*"):
        if folder.name.startswith(f".{prefix}") and ASIDE.search(folder.name):
            shutil.rmtree(folder)


def remove(folder: Path) -> None:
    """Take a folder's name away, then its content: killed in between, nothing half removed is taken for whole."""
    rubbish = _beside(folder)
    folder.rename(rubbish)
    shutil.rmtree(rubbish)


def _beside(target: Path) -> Path:
    return target.parent / f".{target.name}-{uuid.uuid4().hex}"


def sync(path: Path) -> None:
    """Have the operating system put a file or folder on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
