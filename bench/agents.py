"""`make bench-agents`: plays every agent before a real gateway, in an episode and by key alone; which of them work?

Writes `bench/results/agents.json` and prints the table that docs/agents.md quotes. Agents are played where loopback is
the only network; what cannot be installed or kept apart is `n/a`, with the reason.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.agents import environments
from tests.agents.cast import Agent
from tests.agents.coders import CAST
from tests.agents.verdict import complaints

RESULTS = Path(__file__).parent / "results" / "agents.json"
Json = dict[str, Any]


def played(identity: str, out: Path) -> dict[str, Json]:
    """The reports on all agents that can be played so."""
    names = [agent.name for agent in CAST if is_tried(agent, identity) and why_not(agent) is None]
    if not names:
        return {}
    command = [sys.executable, "-m", "tests.agents.play", "--alone", "--identity", identity, "--out", str(out), *names]
    subprocess.run(command, check=True, cwd=environments.ROOT)
    return {name: json.loads((out / f"{name}.json").read_text()) for name in names}


def is_tried(agent: Agent, identity: str) -> bool:
    return agent.in_episode if identity == "episode" else agent.by_key


def why_not(agent: Agent) -> str | None:
    return environments.why_missing(agent.kind) or environments.why_not_alone()


def row(agent: Agent, reports: dict[str, dict[str, Json]]) -> Json:
    """What is written down of one agent."""
    tried = {identity: found[agent.name] for identity, found in reports.items() if agent.name in found}
    wrong = [f"{identity}: {told}" for identity, report in tried.items() for told in complaints(agent, report)]
    version = next((report["version"] for report in tried.values()), "")
    if not tried:
        verdict, note = "n/a", str(why_not(agent))
    elif wrong:
        verdict, note = "fail", "; ".join(wrong)
    else:
        verdict, note = ("fail" if agent.fails else "pass"), agent.note
    return {"agent": agent.name, "version": version, "dialect": agent.dialect, "verdict": verdict, "note": note}


def line(row: Json) -> str:
    """A row of the table."""
    return f"| {row['agent']} | {row['version']} | {row['dialect']} | {row['verdict']} | {row['note']} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        reports = {identity: played(identity, Path(folder) / identity) for identity in ("episode", "key")}
    rows = [row(agent, reports) for agent in CAST]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    print(f"{today}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n")
    print("| agent | version | dialect | result | note |\n|---|---|---|---|---|")
    print("\n".join(map(line, rows)))


if __name__ == "__main__":
    main()
