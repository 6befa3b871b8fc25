"""`make bench-gateway`: what a recorded call costs, as a multiple of the least a gateway can be.

In every round each server is started anew before an engine of its own, in another order each time: a bare pass-through,
Hone with one and two workers, Hone without its records, and where their environments are there (`make
setup-comparators`) LiteLLM and `agl-server`. Ratios are taken within a round, their medians over the rounds. A round in
which a call failed on Hone or the pass-through does not count, nor does a load in which one failed on another server;
with fewer than five rounds there is no result. Larger prompts, many agents and the growth of memory are measured after
it on the pass-through and Hone alone. Writes `bench/results/gateway.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import storage
from bench.demo_seeds import machine
from bench.learning.figures import put_between
from bench.traffic import servers
from bench.traffic.figures import BARE, HONE, MIN_ROUNDS, Round, Row, added, median, ratio, sound, table
from bench.traffic.loads import (
    ALONE,
    GROWTH,
    LARGER,
    SLOW_ENGINE,
    STREAM,
    STREAMS_256,
    WHOLE,
    Load,
    run,
)
from gateway.demo.show import free_port

RESULTS: Final = Path(__file__).parent / "results" / "gateway.json"
DOCS: Final = Path(__file__).parents[1] / "docs" / "operations.md"
MARKS: Final = ("<!-- gateway -->", "<!-- /gateway -->")
TWO_WORKERS: Final = "hone, two workers"
UNRECORDED: Final = "hone, unrecorded"
LITELLM: Final = "litellm"
AGL: Final = "agl-server"
Start = Callable[[servers.Place], AbstractContextManager[servers.Server]]
FEWER: Final = {LITELLM: 5}
"""Servers whose calls are so dear that a fraction of them tells enough."""
OURS: Final[dict[str, Start]] = {BARE: servers.bare, HONE: servers.hone}


def subjects(litellm: Path, agl: Path) -> dict[str, Start]:
    """Who is measured in every round."""
    found: dict[str, Start] = {
        **OURS,
        TWO_WORKERS: functools.partial(servers.hone, workers=2),
        UNRECORDED: functools.partial(servers.hone, records=False),
    }
    if litellm.exists():
        found[LITELLM] = functools.partial(servers.litellm, python=litellm)
    if agl.exists():
        found[AGL] = functools.partial(servers.agl, python=agl)
    return found


def measure(name: str, start: Start, loads: Sequence[Load]) -> list[Row]:
    """Every load on one server, before an engine that answers at the pace of each."""
    rows: list[Row] = []
    for pace in sorted({(load.delay_s, load.pace_s) for load in loads}):
        chosen = [load for load in loads if (load.delay_s, load.pace_s) == pace]
        with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
            place = Path(folder)
            num_agents = max(load.num_agents for load in chosen)
            with (
                servers.engine(place, delay_s=pace[0], pace_s=pace[1]) as engine,
                start(servers.Place(place, free_port(), engine, num_agents)) as server,
            ):
                for number, load in enumerate(chosen):
                    row = run(server, load, first=1_000 * number)
                    rows.append(msgspec.structs.replace(row, server=name))
                    print(_line(rows[-1]), file=sys.stderr, flush=True)
    return rows


def play_round(number: int, found: dict[str, Start]) -> Round:
    """One round, in an order of its own."""
    names = list(found)
    names = names[number % len(names) :] + names[: number % len(names)]
    rows: list[Row] = []
    for name in names:
        loads = [WHOLE] if name in (AGL, UNRECORDED, TWO_WORKERS) else [WHOLE, STREAM]
        loads += [ALONE] if name in OURS else []
        rows += measure(name, found[name], [_fewer(load, FEWER.get(name, 1)) for load in loads])
    return {(row.server, row.load): row for row in rows}


def result(rounds: Sequence[Round], after: Sequence[Round], growth_mb: float, stored: float) -> dict[str, Any]:
    """What is written down."""
    whole, stream = WHOLE.name, STREAM.name
    return {
        "rounds_valid": len(rounds),
        "ratios": {
            "call_over_bare": ratio(rounds, (HONE, whole), (BARE, whole), "cpu_ms"),
            "chunk_over_bare": ratio(rounds, (HONE, stream), (BARE, stream), "cpu_ms"),
            "litellm_call_over_hone": ratio(rounds, (LITELLM, whole), (HONE, whole), "cpu_ms"),
            "agl_call_over_hone": ratio(rounds, (AGL, whole), (HONE, whole), "cpu_ms"),
            "two_workers": ratio(rounds, (TWO_WORKERS, whole), (HONE, whole), "cpu_ms"),
            "strict_throughput": ratio(rounds, (HONE, whole), (UNRECORDED, whole), "calls_s"),
        },
        "added_ms": {
            "p50": added(rounds, ALONE.name, "call_p50"),
            "p99": added(rounds, ALONE.name, "call_p99"),
            "ttft_p50": added(rounds, stream, "first_p50"),
            "gap_p99": added(rounds, stream, "gap_p99"),
        },
        "agents_400_p50_s": _seconds(median(after, (HONE, SLOW_ENGINE[-1].name), "call_p50")),
        "bytes_per_token": stored,
        "growth_mb_10k": growth_mb,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "command": "make bench-gateway",
    }


def growth() -> float:
    """Resident memory that 10,000 calls leave behind, after 3,000 that are not counted."""
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        place = Path(folder)
        with (
            servers.engine(place) as engine,
            servers.hone(servers.Place(place, free_port(), engine, GROWTH.num_agents)) as server,
        ):
            run(server, Load("warm", 50, GROWTH.num_warm, 200, 100, num_warm=0))
            before_mb = server.memory_mb()
            run(server, Load(GROWTH.name, 50, GROWTH.num_calls, 200, 100, num_warm=0), first=GROWTH.num_warm)
            return round(server.memory_mb() - before_mb, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--litellm", type=Path, default=Path(".venv-litellm/bin/python").absolute())
    parser.add_argument("--agl", type=Path, default=Path(".venv-agl/bin/python").absolute())
    parser.add_argument("--other", nargs=3, metavar=("NAME", "BASE_URL", "KEY"), help="any gateway, its times alone")
    parser.add_argument("--rounds-only", action="store_true", help="leave out larger prompts, many agents and memory")
    options = parser.parse_args()
    found = subjects(options.litellm, options.agl)
    played = [play_round(number, found) for number in range(options.rounds)]
    rounds = [one for one in (sound(one, (LITELLM, AGL)) for one in played) if one is not None]
    print(table(rounds or played))
    if options.other:
        name, url, key = options.other
        print(
            table([{(name, load.name): run(servers.Server(name, url, (key,), None), load)} for load in (ALONE, WHOLE)])
        )
    if len(rounds) < MIN_ROUNDS:
        failures = {row.failure for one in played for row in one.values() if row.failure}
        sys.exit(f"no result: {len(rounds)} of {len(played)} rounds are valid; {'; '.join(sorted(failures))}")
    if options.rounds_only:
        print(json.dumps(result(rounds, [], 0.0, 0.0), indent=1))
        return
    rows = [row for name, start in OURS.items() for row in measure(name, start, [*LARGER, *SLOW_ENGINE, STREAMS_256])]
    after: list[Round] = [{(row.server, row.load): row for row in rows}]
    print(table(after))
    stored = max(row["redis_encoded"] for row in asyncio.run(storage.measure_all()))
    told = result(rounds, after, growth(), round(stored, 2))
    told["rows"] = [msgspec.structs.asdict(row) for one in (*rounds, *after) for row in one.values()]
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    seen = f"Seen: {told['date']}, {told['machine']}, {len(rounds)} rounds."
    DOCS.write_text(put_between(DOCS.read_text(), f"{table(rounds)}\n\n{table(after)}\n\n{seen}", *MARKS))
    print(json.dumps({name: value for name, value in told.items() if name != "rows"}, indent=1))


def _fewer(load: Load, times: int) -> Load:
    return msgspec.structs.replace(load, num_calls=max(1, load.num_calls // times))


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms / 1000, 3)


def _line(row: Row) -> str:
    told = f"{datetime.datetime.now():%H:%M:%S} {row.server}: {row.load}, {row.cpu_ms:.3f} CPU ms a call"
    return f"{told}; FAILED {row.num_failed}: {row.failure}" if row.num_failed else told


if __name__ == "__main__":
    main()
