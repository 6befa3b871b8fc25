"""A file that is written in parts, so that whoever is killed midway goes on where he was and nothing is there twice.

Beside the file stands a folder `NAME.partial`: numbered parts, and a state that says what they hold and from where to
go on. A part is written aside and renamed, then the state; what a part holds that no state knows of is thrown away. So
a killed export leaves either a part or none of it. At the end the parts become the file, which appears whole or not at
all. Only one process works on a folder at a time. What the parts say is left to their `Format`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tracker.errors import BadRequest, Conflict, HoneError
from tracker.types import Record

STATE: Final = ".state.json"
LOCK: Final = ".lock"
WHOLE: Final = "whole"


class Unwritten(HoneError):
    """A file could not be written: there is no room, or no right to."""


class Format(Protocol):
    """How rows lie in files."""

    @property
    def suffix(self) -> str: ...

    def write(self, path: Path, rows: Sequence[dict[str, Any]], *, is_text: bool) -> None:
        """One part."""
        ...

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """One file of all parts, read piece by piece."""
        ...


class State(Record, frozen=True):
    """How far an export is."""

    asked: str
    """Digest of what was asked for: other options are another export."""
    cursor: str | None = None
    """Where to go on; `None` before the first page and once all is written."""
    is_through: bool = False
    num_parts: int = 0
    num_rows: int = 0
    num_episodes: int = 0
    is_text: bool | None = None
    """Whether prompts are texts rather than messages; known from the first row on."""
    left_out: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class Parts:
    """The parts of one export."""

    def __init__(self, out: Path, form: Format, *, is_folder: bool) -> None:
        if not out.name:
            raise BadRequest(f"{out} is no name of a file: give --out one.")
        self._out = out
        self._format = form
        self._is_folder = is_folder
        self._folder = out.with_name(f"{out.name}.partial")
        self.state = State(asked="")

    @contextmanager
    def opened(self, asked: str) -> Generator[State]:
        """Begin, or go on. Raises `BadRequest` if something else stands there, `Conflict` if someone works on it, and,
        as all that writes, `Unwritten`."""
        with ExitStack() as stack:
            with self._writing():
                if not self._folder.exists():
                    self._refuse_other()
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = stack.enter_context((self._folder / LOCK).open("w"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise Conflict(f"Another process is writing {self._out}.") from error
                self.state = self._read(asked)
                self._refuse_other()
                known = {self._part(number) for number in range(self.state.num_parts)}
                for stray in set(self._folder.glob(f"part-*.{self._format.suffix}")) - known:
                    stray.unlink()
            yield self.state

    def add(self, rows: Sequence[dict[str, Any]], state: State) -> None:
        """Write a part, and where to go on behind it; no part for no rows."""
        with self._writing():
            if rows:
                aside = self._folder / f".part.{os.getpid()}"
                self._format.write(aside, rows, is_text=bool(state.is_text))
                _settle(aside, self._part(self.state.num_parts))
                state = msgspec.structs.replace(state, num_parts=state.num_parts + 1)
            self._put(state)

    def finish(self) -> None:
        """Have the parts become what was asked for."""
        with self._writing():
            if self._is_folder:
                self._folder.chmod(0o755)
                self._folder.replace(self._out)
                for name in (STATE, LOCK):
                    (self._out / name).unlink()
                return
            whole = self._folder / WHOLE
            self._format.join([self._part(number) for number in range(self.state.num_parts)], whole)
            _settle(whole, self._out)
            (self._folder / STATE).unlink()
            shutil.rmtree(self._folder)

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Have an error of the disk say what of the export is there."""
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            if not (self._folder / STATE).exists():
                shutil.rmtree(self._folder, ignore_errors=True)
                raise Unwritten(f"{self._out} cannot be written: {why}.") from error
            told = f"{self._out} could not be written to its end: {why}."
            raise Unwritten(f"{told} The same command goes on from what is in {self._folder}.") from error

    def _read(self, asked: str) -> State:
        path = self._folder / STATE
        if not path.exists():
            return State(asked=asked)
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if state.asked != asked:
            raise BadRequest(
                f"{self._folder} holds an export that was asked for with other options: "
                "give the same ones to go on with it, or delete that folder."
            )
        return state

    def _refuse_other(self) -> None:
        is_there = any(self._out.iterdir()) if self._out.is_dir() else self._out.exists()
        if is_there and not self.state.is_through:
            raise BadRequest(f"{self._out} is there already: delete it, or name another.")

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:06d}.{self._format.suffix}"

    def _put(self, state: State) -> None:
        aside = self._folder / f".state.{os.getpid()}"
        aside.write_bytes(msgspec.json.encode(state))
        _settle(aside, self._folder / STATE)
        self.state = state


def _settle(aside: Path, path: Path) -> None:
    """Give a file its name once its bytes are on the disk."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
