"""How far a rollout is: a bar where somebody looks, nothing where the output is a file or a pipe.

At a terminal it goes to standard error, so that what the driver prints can be piped. In a notebook it is one output of
the cell that plays, drawn anew as attempts end; that needs nothing but the notebook.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """A progress bar, as a context manager, told by the thread that looks at it. `total` is `None` where nobody knows
    how many there are."""

    def __init__(self, total: int | None, *, is_wanted: bool, console: Console | None = None) -> None:
        self._num_ended, self._num_scored, self._sum, self._num_broken = 0, 0, 0.0, 0
        self._look = _look_of(total, console or Console(stderr=True)) if is_wanted else None

    def tell(self, reward: float | None, *, is_broken: bool) -> None:
        """One more has ended."""
        self._num_ended += 1
        if reward is not None:
            self._num_scored += 1
            self._sum += reward
        self._num_broken += is_broken
        if self._look is not None:
            self._look.tell(self._num_ended, self.note)

    @property
    def note(self) -> str:
        """The mean reward, and how many broke."""
        mean = [f"reward {self._sum / self._num_scored:.2f}"] if self._num_scored else []
        return ", ".join([*mean, *([f"{self._num_broken} broken"] if self._num_broken else [])])

    def __enter__(self) -> Self:
        if self._look is not None:
            self._look.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._look is not None:
            self._look.stop()


class _Terminal:
    """A line that is drawn over itself."""

    def __init__(self, total: int | None, console: Console) -> None:
        columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._bar = self._progress.add_task("episodes", total=total, note="")

    def start(self) -> None:
        self._progress.start()

    def tell(self, num_ended: int, note: str) -> None:
        self._progress.update(self._bar, completed=num_ended, note=note)

    def stop(self) -> None:
        self._progress.stop()


class _Notebook:
    """An output that is replaced by the next."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._started_s = time.monotonic()
        self._display: Any = importlib.import_module("IPython.display")  # it is there where a notebook is
        self._handle: Any = None

    def start(self) -> None:
        self._handle = self._display.display(Drawn(0, self._total, ""), display_id=True)

    def tell(self, num_ended: int, note: str) -> None:
        seconds = f"{time.monotonic() - self._started_s:.0f} s"
        self._handle.update(Drawn(num_ended, self._total, ", ".join(filter(None, (seconds, note)))))

    def stop(self) -> None:
        """The last one stays."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A bar as a notebook shows it, and as text where it shows no HTML.

    >>> Drawn(3, 8, "2 s, reward 0.50"), Drawn(3, None, "2 s")
    (episodes 3/8, 2 s, reward 0.50, episodes 3, 2 s)
    """

    num_ended: int
    total: int | None
    note: str

    def __repr__(self) -> str:
        number = f"episodes {self.num_ended}" + ("" if self.total is None else f"/{self.total}")
        return ", ".join(filter(None, (number, self.note)))

    def _repr_html_(self) -> str:
        drawn = "" if self.total is None else f'<progress value="{self.num_ended}" max="{self.total}"></progress> '
        return f"{drawn}{self!r}"


def _look_of(total: int | None, console: Console) -> _Terminal | _Notebook | None:
    if console.is_jupyter:
        return _Notebook(total)
    return _Terminal(total, console) if console.is_terminal else None
