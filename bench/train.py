"""What the trie saves: `python -m bench.train` (`make bench-train`) prints a table, writes JSON and draws a plot.

On the same recorded rows, in one run and in turns: (stock) TRL's GRPOTrainer on one row a call, (calls) one row a call
without padding and with our head, (merged) rows that are whole prefixes of others merged, (trie) every prefix once.
Medians of seconds and peak memory for one step's gradient; the gradients are compared, so that what is faster is also
the same. `flop_limit` is what calls need over the least that sharing prefixes could need, by `training/flops.py`.
How to read the numbers: `docs/training.md`.

The model has the shape of SmolLM2-135M; by default 4 of its 30 layers and 4/30 of its vocabulary, which keeps the
shares of layers and head (`--layers 30`: all of it). On a GPU (untested) it is all of it, in bf16.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from bench.training.figures import draw, markdown, table, write_between
from bench.training.flops import SMOLLM2, cost_of, least_cost, shrunk
from bench.training.stock import micro_batches, padded_length
from bench.training.variants import VARIANTS, Load, Options, Taken, TakeStep, Variant, serve
from bench.training.workloads import QUICK, SHAPES, Shape, Workload, with_logprobs, workload
from trainer.trie import SHARINGS

RESULTS: Final = Path(__file__).parent / "results" / "train.json"
PLOT: Final = Path(__file__).parents[1] / "docs" / "images" / "train.png"
LAYERS_ON_CPU: Final = 4
TOLERANCES: Final = {"cpu": 1e-4, "cuda": 5e-2}
"""By how much gradients may differ, as the norm of the difference over the norm: single precision, and bf16."""
Processes = dict[Variant, Connection]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how."""

    shapes: tuple[Shape, ...]
    options: Options
    rounds: int
    stock_rounds: int
    """How many of them stock TRL takes part in: it takes longer than all others together."""
    lock: Path | None
    """Held while a round runs: other jobs of the machine that take it wait meanwhile."""


def main(arguments: Sequence[str] | None = None) -> None:
    told = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(told, argparse.Namespace(told=told))
    with tempfile.TemporaryDirectory() as folder:
        plan = _plan(given, Path(folder))
        rows = _kept(given.json, plan.shapes) if given.only else []
        with _processes(plan.options) as processes:
            for shape in plan.shapes:
                rows.append(_measure(processes, shape, plan))
                _write(rows, plan, given)
    print(table(rows))
    if given.plot is not None:
        draw(rows, given.plot)
    if given.docs is not None:
        write_between(given.docs, "train", markdown(rows))
    wrong = [row["workload"] for row in rows if not row["gradients_equal"]]
    if wrong:
        sys.exit(f"gradients differ: {', '.join(wrong)}")


def _write(rows: list[dict[str, Any]], plan: Plan, given: argparse.Namespace) -> None:
    """What is measured so far, in the order of the workloads."""
    order = [shape.name for shape in (*SHAPES, *QUICK)]
    rows.sort(key=lambda row: order.index(row["workload"]))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(_told(plan, given) | {"rows": rows}, indent=2) + "\n")


def _measure(processes: Processes, shape: Shape, plan: Plan) -> dict[str, Any]:
    """All variants on one workload, in turns."""
    options = plan.options
    rows = workload(shape, options.model.vocabulary)
    with _held(plan.lock):
        processes["stock"].send(Load(rows))
        recorded = with_logprobs(rows, processes["stock"].recv())
        for sharing in SHARINGS:
            processes[sharing].send(Load(recorded))
            processes[sharing].recv()
    taken: dict[Variant, list[Taken]] = {variant: [] for variant in VARIANTS}
    for number in range(plan.rounds):
        with _held(plan.lock):
            for variant in _turns(number, plan):
                processes[variant].send(TakeStep())
                taken[variant].append(processes[variant].recv())
    row = _described(recorded, options) | _figures(taken, TOLERANCES[options.device])
    print(f"{shape.name:20} {row['seconds']}", file=sys.stderr, flush=True)
    return row


def _turns(number: int, plan: Plan) -> tuple[Variant, ...]:
    """Who goes in a round, each time another one first."""
    variants = VARIANTS if number < plan.stock_rounds else SHARINGS
    first = number % len(variants)
    return variants[first:] + variants[:first]


def _described(of: Workload, options: Options) -> dict[str, Any]:
    """What the workload is, and what the FLOP model says of it."""
    costs = {sharing: cost_of(options.model, of.rows, options.token_budget, sharing) for sharing in SHARINGS}
    least = least_cost(options.model, of.rows, options.token_budget)
    at_once, num_micro_batches = micro_batches(of, options.token_budget)
    return {
        "workload": of.shape.name,
        "turns": of.shape.turns,
        "num_rows": len(of.rows),
        "raw_tokens": of.num_raw_tokens,
        "distinct_tokens": least.num_tokens,
        "trained_tokens": sum(len(row.sampled_ids) for row in of.rows),
        "flop_limit": round(costs["calls"].flops / least.flops, 3),
        "flop_limit_of_plan": round(costs["calls"].flops / costs["trie"].flops, 3),
        "run_tokens": {"stock": padded_length(of) * at_once * num_micro_batches}
        | {name: cost.num_tokens for name, cost in costs.items()},
        "micro_batches": {"stock": num_micro_batches} | {name: cost.num_micro_batches for name, cost in costs.items()},
        "layers": options.model.layers,
    }


def _figures(taken: dict[Variant, list[Taken]], tolerance: float) -> dict[str, Any]:
    seconds = {variant: median(one.seconds for one in each) for variant, each in taken.items()}
    exact = taken["calls"][0].gradient
    apart = {
        variant: max(float(np.linalg.norm(one.gradient - exact) / np.linalg.norm(exact)) for one in each)
        for variant, each in taken.items()
    }
    return {
        "seconds": {variant: round(value, 3) for variant, value in seconds.items()},
        "cpu_seconds": {variant: round(median(one.cpu_seconds for one in each), 3) for variant, each in taken.items()},
        "all_seconds": {variant: [round(one.seconds, 3) for one in each] for variant, each in taken.items()},
        "peak_mb": {variant: round(max(one.peak_mb for one in each)) for variant, each in taken.items()},
        "gradient_apart": {variant: float(f"{value:.1e}") for variant, value in apart.items()},
        "gradients_equal": all(value <= tolerance for value in apart.values()),
        "speedup": round(seconds["calls"] / seconds["trie"], 3),
        "trie_over_merged": round(seconds["trie"] / seconds["merged"], 3),
    }


@contextmanager
def _processes(options: Options) -> Generator[Processes]:
    """One for each variant; they end with this."""
    context = multiprocessing.get_context("spawn")
    connections: Processes = {}
    children: list[Any] = []
    try:
        for variant in VARIANTS:
            ours, theirs = context.Pipe()
            child = context.Process(target=serve, args=(theirs, variant, options), daemon=True)
            child.start()
            theirs.close()
            connections[variant] = ours
            children.append(child)
        yield connections
        for connection in connections.values():
            connection.send(None)
        for child in children:
            child.join()
    finally:
        for child in children:
            child.kill()


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _held(path: Path | None) -> Any:
    return nullcontext() if path is None else _locked(path)


def _kept(path: Path, measured: Sequence[Shape]) -> list[dict[str, Any]]:
    """Rows of earlier runs that were not measured now."""
    names = {shape.name for shape in measured}
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
    return [row for row in rows if row["workload"] not in names]


def _told(plan: Plan, given: argparse.Namespace) -> dict[str, Any]:
    threads = plan.options.threads or torch.get_num_threads()
    device = torch.cuda.get_device_name() if plan.options.device == "cuda" else f"{os.cpu_count()} cores"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.platform()}, {device}, {threads} threads, load {os.getloadavg()[1]:.1f}",
        "command": " ".join(["python -m bench.train", *given.told]),
        "unit": "median seconds of one step's gradient; MiB above the loaded model",
        "dtype": "bfloat16" if plan.options.device == "cuda" else "float32",
        "token_budget": plan.options.token_budget,
        "rounds": plan.rounds,
        "stock_rounds": plan.stock_rounds,
    }


def _plan(given: argparse.Namespace, folder: Path) -> Plan:
    device = ("cuda" if torch.cuda.is_available() else "cpu") if given.device == "auto" else given.device
    layers = given.layers or (SMOLLM2.layers if device == "cuda" else LAYERS_ON_CPU)
    shapes = QUICK if given.quick else tuple(shape for shape in SHAPES if not given.only or shape.name in given.only)
    options = Options(
        model=shrunk(SMOLLM2, 1 if given.quick else layers),
        device=device,
        token_budget=64 if given.quick else given.token_budget,
        threads=given.threads,
        folder=folder,
    )
    rounds = 1 if given.quick else given.rounds
    return Plan(shapes, options, rounds, min(rounds, given.stock_rounds), given.lock)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description="What the trie saves, measured.")
    add = parser.add_argument
    add("--quick", action="store_true", help="two tiny workloads, once: whether it runs, nothing about speed")
    add(
        "--only", action="append", choices=[shape.name for shape in SHAPES], help="measure these again, keep the others"
    )
    add("--rounds", type=int, default=3)
    add("--stock-rounds", type=int, default=3, help="how many of the rounds stock TRL takes part in")
    add("--layers", type=int, help="of SmolLM2's 30; the vocabulary shrinks with them (4 on a CPU, 30 on a GPU)")
    add("--token-budget", type=int, default=4096, help="of a micro-batch, for all variants")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--threads", type=int, help="of each process; only one works at a time")
    add("--lock", type=Path, help="a file that is locked while a round runs")
    add("--json", type=Path, default=RESULTS)
    add("--docs", type=Path, help="a document whose table, between its marks, is written anew")
    add("--plot", type=Path, default=PLOT)
    return parser


if __name__ == "__main__":
    main()
