"""What commands print: tables for people that fit the terminal, JSON lines for programs.

What comes out of the stores was written by agents and users: it is shown as text, and a character that a terminal would
obey stands there as a dot. Where nobody looks (a pipe), nothing is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gateway.answers import plain

UNCUT: Final = 100_000
GAP: Final = 2
"""Blanks between two columns."""
WIDEST: Final = 40
"""That a column between the first and the last needs, where there is too little room."""
LEAST: Final = 12
"""Without so much, the last column is not worth showing."""
NOTHING: Final = "-"


def echo_json(value: Any) -> None:
    """One value as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(plain(value)).decode() + "\n")


def console() -> Console:
    """The terminal, or as wide a page as it takes."""
    screen = Console(highlight=False, soft_wrap=False)
    return screen if screen.is_terminal else Console(highlight=False, width=UNCUT)


@dataclass(frozen=True, slots=True)
class Rows:
    """These fields of some rows, as a table that fits where it is shown; `*_ms` is told as a time.

    What they begin with is what a row is named by, and is never cut. Where there is no room for all of them, those
    before the last one are left out, from the right, and a line says which; the last one takes what is left.
    """

    names: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    title: str | None = None
    is_list: bool = False
    """Each row on one line: the last field is cut rather than folded."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = {name: [words(row.get(name), name) for row in self.rows] for name in self.names}
        widths = [max(map(cell_len, (_head(name), *cells[name]))) for name in self.names]
        fitting = {self.names[place]: width for place, width in fitted(widths, options.max_width)}
        made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=self.title, title_justify="left")
        made.padding = (0, GAP - 1, 0, 0)
        for name, width in fitting.items():
            is_cut = self.is_list and name != self.names[0]
            made.add_column(Text(_head(name)), width=width, no_wrap=is_cut, overflow="ellipsis" if is_cut else "fold")
        for row in range(len(self.rows)):
            made.add_row(*(Text(cells[name][row]) for name in fitting))
        yield made
        if left_out := [_head(name) for name in self.names if name not in fitting]:
            yield Text(f"(no room for {', '.join(left_out)}; --json has all)", style="dim")


def fitted(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Which columns of these widths are shown, and how wide: the first, the last if there is some room for it, and of
    those between as many as fit, from the left.

    >>> fitted([35, 6, 11, 19, 40], 80), fitted([35, 6, 11, 19, 40], 40)
    ([(0, 35), (1, 6), (2, 11), (4, 22)], [(0, 35)])
    """
    first, *between, last = (*widths, 0) if len(widths) == 1 else widths
    if sum(widths) + GAP * (len(widths) - 1) <= room:
        return list(enumerate(widths))
    shown = [(0, min(first, room))]
    left = room - first - GAP
    if left < min(last, LEAST):
        return shown
    for place, width in enumerate(between, start=1):
        needed = min(width, WIDEST) + GAP
        if left - needed < min(last, LEAST):
            break
        shown.append((place, needed - GAP))
        left -= needed
    return [*shown, (len(widths) - 1, min(last, left))]


def show_table(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str | None = None, *, is_list: bool = False
) -> None:
    """Print a table, without blanks at the ends of its lines; nothing for no rows."""
    if not rows:
        return
    screen = console()
    with screen.capture() as captured:
        screen.print(Rows(names, rows, title, is_list))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _head(name: str) -> str:
    return name.removesuffix("_ms")


def words(value: object, name: str = "") -> str:
    r"""A value for people.

    >>> words(None), words(0.5), words(["a", "b"]), words("a\x1b[31m")
    ('-', '0.5', 'a, b', 'a·[31m')
    """
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_ms"):
            return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key}={item}" for key, item in value.items()) or NOTHING  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return ", ".join(map(str, value)) or NOTHING  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return visible(str(value))


def visible(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "·" for character in text)
