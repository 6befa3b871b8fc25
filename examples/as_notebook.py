"""Writes a script as a notebook beside it: `python examples/as_notebook.py examples/first_agent.py`.

`# %%` begins a cell of code and `# %% [markdown]` one of text, as editors read such scripts too. The script is what is
edited; the notebook has no outputs, so that what it says is what will be run.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def notebook_of(script: str) -> dict[str, Any]:
    """The notebook of a script; what stands before its first cell is none."""
    _, *parts = CELL.split(script)
    cells = [
        _cell(f"cell-{number}", text.strip("\n"), is_text=mark is not None)
        for number, (mark, text) in enumerate(zip(parts[::2], parts[1::2], strict=True))
    ]
    return {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}


def _cell(cell_id: str, text: str, *, is_text: bool) -> dict[str, Any]:
    if is_text:
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    cell: dict[str, Any] = {
        "cell_type": "markdown" if is_text else "code",
        "id": cell_id,
        "metadata": {},
        "source": _lines(text),
    }
    return cell if is_text else {**cell, "execution_count": None, "outputs": []}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        written = json.dumps(notebook_of(path.read_text()), indent=1, ensure_ascii=False)
        path.with_suffix(".ipynb").write_text(written + "\n")
