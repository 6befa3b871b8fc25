"""Plays the agents once a session, all of one kind one after another before one gateway; tests then look at each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents import environments
from tests.agents.cast import Agent
from tests.agents.coders import CAST

collect_ignore_glob = ["recipes/*"]  # programs, and their packages are in another environment
Json = dict[str, Any]
Played = Callable[[Agent, str], Json]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The report on an agent; the first to ask has all of its kind played. Skips where the packages are not there."""
    folders: dict[tuple[str, str], Path] = {}

    def report(agent: Agent, identity: str) -> Json:
        _skip_if_missing(agent)
        if (agent.kind, identity) not in folders:
            folders[agent.kind, identity] = tmp_path_factory.mktemp("played")
            _play(agent.kind, identity, folders[agent.kind, identity])
        return json.loads((folders[agent.kind, identity] / f"{agent.name}.json").read_text())

    return report


def _play(kind: str, identity: str, out: Path) -> None:
    chosen = [
        agent for agent in CAST if agent.kind == kind and (agent.by_key if identity == "key" else agent.in_episode)
    ]
    alone = ["--alone"] if environments.why_not_alone() is None else []
    command = [sys.executable, "-m", "tests.agents.play", *alone, "--identity", identity, "--out", str(out)]
    subprocess.run([*command, *(agent.name for agent in chosen)], check=True, cwd=environments.ROOT)


def _skip_if_missing(agent: Agent) -> None:
    why = environments.why_missing(agent.kind)
    if why is None and agent.kind == "npm":
        why = environments.why_not_alone()
    if why is not None:
        pytest.skip(f"agents: {why}")
