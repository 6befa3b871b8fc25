"""What commands print: tables for people that fit the terminal, JSON lines for programs.

What comes out of the stores was written by agents and users: it is shown as text, and a character that a terminal would
obey stands there as a dot. Where nobody looks (a pipe), nothing is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.answers import plain

UNCUT: Final = 100_000
NOTHING: Final = "-"


def echo_json(value: Any) -> None:
    """One value as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(plain(value)).decode() + "\n")


def console() -> Console:
    """The terminal, or as wide a page as it takes."""
    screen = Console(highlight=False, soft_wrap=False)
    return screen if screen.is_terminal else Console(highlight=False, width=UNCUT)


def table(names: Sequence[str], rows: Iterable[Mapping[str, Any]], title: str | None = None) -> Table:
    """These fields of the rows; `*_ms` is told as a time."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_justify="left")
    for name in names:
        is_last = name == names[-1]
        made.add_column(name.removesuffix("_ms"), no_wrap=True, overflow="ellipsis", ratio=1 if is_last else None)
    for row in rows:
        made.add_row(*(cell(row.get(name), name) for name in names))
    return made


def show_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print a table, without blanks at the ends of its lines; nothing for no rows."""
    if not rows:
        return
    screen = console()
    with screen.capture() as captured:
        screen.print(table(names, rows, title))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def cell(value: object, name: str = "") -> Text:
    """One value."""
    return Text(words(value, name))


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
