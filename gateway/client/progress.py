"""How far a rollout is: a bar where somebody looks, nothing where the output is a file or a pipe.

It goes to standard error, so that what the driver prints can be piped. In a notebook it needs ipywidgets; without it,
a bar would be printed anew each time, and none is shown.
"""

from __future__ import annotations

import importlib.util
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """A progress bar, as a context manager. `total` is `None` where nobody knows how many there are."""

    def __init__(self, total: int | None, *, is_wanted: bool, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        is_shown = is_wanted and _is_looked_at(console)
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=console, disable=not is_shown)
        self._bar = self._progress.add_task("episodes", total=total, note="")
        self._num_scored, self._sum, self._num_broken = 0, 0.0, 0

    def tell(self, reward: float | None, *, is_broken: bool) -> None:
        """One more has ended."""
        if reward is not None:
            self._num_scored += 1
            self._sum += reward
        self._num_broken += is_broken
        self._progress.update(self._bar, advance=1, note=self.note)

    @property
    def note(self) -> str:
        """The mean reward, and how many broke."""
        mean = [f"reward {self._sum / self._num_scored:.2f}"] if self._num_scored else []
        return ", ".join([*mean, *([f"{self._num_broken} broken"] if self._num_broken else [])])

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _is_looked_at(console: Console) -> bool:
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal
