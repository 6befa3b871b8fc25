"""Where the agents' packages are: `.venv-agents` and `.agents-npm`, made by `make setup-agents`.

An install that fails is no error: it leaves a file `FAILED` that says why, and what needs it is skipped with that line.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
VENV: Final = ROOT / ".venv-agents"
NPM: Final = ROOT / ".agents-npm"
HERE: Final = Path(__file__).parent
LOOPBACK: Final = ("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Runs a command where no network but loopback is."""


def why_missing(kind: str) -> str | None:
    """What to tell when the packages of `python` or `npm` are not there, or `None`."""
    folder = VENV if kind == "python" else NPM
    failed = folder / "FAILED"
    if failed.exists():
        return f"{folder.name} could not be installed: {failed.read_text().strip()[-300:]}"
    return None if (folder / ".hone-setup").exists() else f"{folder.name} is not there: run `make setup-agents`"


def why_not_alone() -> str | None:
    """What to tell when a network namespace cannot be made here, or `None`."""
    tried = subprocess.run([*LOOPBACK, "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"no network namespace: {tried.stderr.decode().strip()}"


def version(kind: str, package: str) -> str:
    """The installed version of a package."""
    if kind == "npm":
        return str(json.loads((NPM / "node_modules" / package / "package.json").read_text())["version"])
    show = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    command = [str(VENV / "bin" / "python"), "-c", show, package]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def command(recipe: str) -> list[str]:
    """How a recipe is run."""
    path = str(HERE / recipe)
    return [str(VENV / "bin" / "python"), path] if recipe.endswith(".py") else ["sh", "-eu", path]


def environment(home: Path, given: Mapping[str, str]) -> dict[str, str]:
    """What an agent sees: nothing of this process but the path, a home of its own, and what it was given."""
    path = os.pathsep.join([str(NPM / "node_modules" / ".bin"), str(VENV / "bin"), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": str(home), **given}
