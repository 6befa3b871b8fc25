"""Tables of the shell, where there is room and where there is not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from gateway.terminal import Rows

ID = "ep-aba29e8eb56a353104fe98f61473952c"
NAMES = ("episode_id", "reward", "status", "run", "created_ms", "task")
ROWS: list[dict[str, Any]] = [
    {"episode_id": ID, "reward": 0.0, "status": "infra_error", "run": "r" * 60, "created_ms": 0, "task": "what? " * 20}
]


def shown(width: int, *, is_list: bool, rows: list[dict[str, Any]] = ROWS) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    screen.print(Rows(NAMES, rows, is_list=is_list))
    return screen.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 200])
def test_no_width_cuts_what_a_row_is_named_by_or_hides_that_something_is_missing(width: int) -> None:
    lines = shown(width, is_list=True)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(line.split()[0] for line in lines[2 : 4 if width < len(ID) else 3]) == ID
    columns = lines[0].split()
    assert columns == [name.removesuffix("_ms") for name in NAMES if name.removesuffix("_ms") in columns]
    left_out = " ".join(" ".join(lines).split()).partition("(no room for ")[2].partition(";")[0]
    assert {*columns, *left_out.split(", ")} - {""} == {name.removesuffix("_ms") for name in NAMES}


def test_a_list_has_a_row_on_each_line_and_a_page_tells_everything() -> None:
    assert len(shown(80, is_list=True)) == 4
    page = shown(80, is_list=False)
    assert sum(line.count("what?") for line in page) == 20


def test_what_fits_is_as_wide_as_it_is() -> None:
    short = [{**ROWS[0], "run": "r", "task": "漢字"}]
    head, rule, row = shown(100, is_list=True, rows=short)
    assert head.split()[-1] == "task"
    assert row.split() == [ID, "0", "infra_error", "r", "1970-01-01", "00:00:00", "漢字"]
    assert len(rule.strip()) == cell_len(row.rstrip()) < 100
