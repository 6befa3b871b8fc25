"""The loads that are put on servers: how many agents do what, and one run of them against one server."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from bench.traffic.agents import Figures, Plan
from bench.traffic.figures import Row, percentile
from bench.traffic.servers import ROOT, Server, agents_core


class Load(msgspec.Struct, frozen=True):
    """What agents do, and how the engine answers."""

    name: str
    num_agents: int
    num_calls: int
    """Of each agent."""
    num_prompt: int
    num_answer: int
    streams: bool = False
    delay_s: float = 0.0
    pace_s: float = 0.0
    num_warm: int = 2
    """Calls of each agent that are not counted."""


WHOLE: Final = Load("whole 200/100", 50, 30, 200, 100)
STREAM: Final = Load("stream 200/100", 50, 4, 200, 100, streams=True, pace_s=0.01, num_warm=1)
ALONE: Final = Load("alone 200/100", 1, 200, 200, 100)
LARGER: Final = (
    Load("whole 4000/300", 50, 6, 4_000, 300, num_warm=1),
    Load("stream 4000/300", 50, 1, 4_000, 300, streams=True, pace_s=0.01, num_warm=1),
    Load("whole 30000/500", 20, 4, 30_000, 500, num_warm=1),
    Load("stream 30000/500", 20, 1, 30_000, 500, streams=True, pace_s=0.01, num_warm=1),
)
SLOW_ENGINE: Final = tuple(
    Load(f"{agents} agents, 3 s", agents, 3, 200, 100, delay_s=3.0, num_warm=1) for agents in (1, 50, 400)
)
STREAMS_256: Final = Load("256 streams, 50/s", 256, 1, 200, 250, streams=True, pace_s=0.02, num_warm=1)
GROWTH: Final = Load("10,000 calls", 50, 200, 200, 100, num_warm=60)


def run(server: Server, load: Load, first: int = 0) -> Row:
    """Warm the server up, then measure; `first` numbers the first call, so that no prompt comes twice."""
    plan = Plan(
        url=server.url,
        keys=server.keys,
        num_agents=load.num_agents,
        num_calls=load.num_warm,
        num_prompt=load.num_prompt,
        num_answer=load.num_answer,
        streams=load.streams,
        first=first,
    )
    if load.num_warm:
        _played(plan)
    before_s = server.cpu_s()
    seen = _played(msgspec.structs.replace(plan, num_calls=load.num_calls, first=first + load.num_warm))
    used_s = server.cpu_s() - before_s
    wanted = (load.num_answer + 1) * (seen.num_calls - seen.num_failed) if load.streams else 0
    lost = 0 if seen.num_events >= wanted else wanted - seen.num_events
    return Row(
        server=server.name,
        load=load.name,
        num_calls=seen.num_calls,
        num_failed=seen.num_failed + lost,
        num_events=seen.num_events,
        cpu_ms=1000 * used_s / max(1, seen.num_calls),
        calls_s=seen.num_calls / seen.seconds,
        call_p50=percentile(seen.call_ms, 0.5),
        call_p99=percentile(seen.call_ms, 0.99),
        first_p50=percentile(seen.first_ms, 0.5),
        gap_p99=percentile(seen.gap_ms, 0.99) if load.streams else 0.0,
        memory_mb=server.memory_mb(),
        failure=seen.failure or (f"{lost} pieces of streams are missing" if lost else ""),
    )


def _played(plan: Plan) -> Figures:
    with tempfile.TemporaryDirectory() as folder, agents_core():
        path, out = Path(folder) / "plan.json", Path(folder) / "figures.json"
        path.write_bytes(msgspec.json.encode(plan))
        subprocess.run([sys.executable, "-m", "bench.traffic.agents", str(path), str(out)], check=True, cwd=ROOT)
        return msgspec.json.decode(out.read_bytes(), type=Figures)
