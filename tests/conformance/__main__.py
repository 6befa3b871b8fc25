"""Checks any gateway against the contract: one line and one verdict a rule.

    python -m tests.conformance                                       # starts Hone before a scripted engine of its own
    python -m tests.conformance URL KEYS --engine-control URL         # any gateway that stands before a scripted engine

The engine that the gateway under test uses is `python -m tests.fakes.scripted_engine --port N --control`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import aiohttp

from tests.conformance.capabilities import probed
from tests.conformance.gateway import Engine, Gateway, Keys
from tests.conformance.hone import hone_gateway
from tests.conformance.rules import Rule
from tests.conformance.runner import Verdict, run_all
from tests.conformance.suite import all_rules

MARKS = {"pass": "pass", "fail": "FAIL", "n/a": "n/a "}


def main() -> None:
    options = _options()
    verdicts = asyncio.run(_run(options))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [{name: v.json()[name] for name in ("rule", "case", "verdict", "note")} for v in verdicts]
        options.json.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")
    counts = Counter(verdict.verdict for verdict in verdicts)
    print(", ".join(f"{counts[name]} {name}" for name in MARKS))
    sys.exit(1 if counts["fail"] or (options.complete and counts["n/a"]) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", nargs="?", help="root URL of the gateway, without /v1; none: start Hone")
    parser.add_argument(
        "keys",
        nargs="?",
        default="",
        help="agent=K,reward=K,read=K,trainer=K,admin=K,other=K (other: of another tenant), or one key for everything; "
        "what is not named is done with the admin key",
    )
    parser.add_argument("--engine-control", metavar="URL", help="the scripted engine that the gateway uses")
    parser.add_argument("--model", default="solver", help="the model that agents ask for")
    parser.add_argument("--data-dir", type=Path, help="the gateway's data folder, for rules that publish adapters")
    parser.add_argument("--session-header", metavar="NAME", help="a header that it takes for an agent's session")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write [{rule, case, verdict, note}]")
    parser.add_argument("--only", default="", metavar="WORDS", help="rules whose area, case or sentence holds this")
    parser.add_argument("--complete", action="store_true", help="a rule that is n/a counts as failed")
    parser.add_argument("--list", action="store_true", help="print the rules and run none")
    parser.add_argument("--slowest", action="store_true", help="tell the seconds of each rule")
    options = parser.parse_args()
    if options.list:
        for rule in _chosen(options.only):
            print(f"{rule.area:11} {rule.case:4} {rule.name}")
        sys.exit(0)
    if options.url and not options.engine_control:
        parser.error("--engine-control is needed: the suite scripts the engine behind the gateway")
    return options


async def _run(options: argparse.Namespace) -> list[Verdict]:
    started_s, rules = time.monotonic(), _chosen(options.only)
    if not rules:
        _refuse(f"no rule holds the words {options.only!r}; --list prints them")
    async with _under_test(options) as (gateway, engine):
        seen = await _found(gateway, engine)
        print(f"{gateway.url} has: {', '.join(sorted(seen.capabilities))}", flush=True)

        def tell(verdict: Verdict) -> None:
            case = f"[{verdict.case}] " if verdict.case else ""
            took = f" ({verdict.seconds:.1f} s)" if options.slowest else ""
            note = f" — {verdict.note}" if verdict.note else ""
            print(f"{MARKS[verdict.verdict]}  {verdict.area}: {case}{verdict.rule}{note}{took}", flush=True)

        verdicts = await run_all(rules, seen, engine, tell)
    print(f"{len(verdicts)} rules in {time.monotonic() - started_s:.0f} s")
    return verdicts


async def _found(gateway: Gateway, engine: Engine) -> Gateway:
    """The gateway with what it has; the end, in one line, where one of the two is not there or takes no key."""
    try:
        await engine.models()
    except (aiohttp.ClientError, AssertionError, TypeError) as error:
        _refuse(f"at {engine.url} is no scripted engine with --control: {error}")
    try:
        return await probed(gateway, engine)
    except (aiohttp.ClientError, AssertionError, TypeError) as error:
        _refuse(f"at {gateway.url} is no gateway that takes these keys: {error}")


def _refuse(why: str) -> NoReturn:
    print(f"python -m tests.conformance: {' '.join(why.split())[:500]}", file=sys.stderr)
    sys.exit(2)


def _chosen(words: str) -> list[Rule]:
    return [rule for rule in all_rules() if words in f"{rule.area} {rule.case} {rule.name}"]


@asynccontextmanager
async def _under_test(options: argparse.Namespace) -> AsyncIterator[tuple[Gateway, Engine]]:
    if not options.url:
        with tempfile.TemporaryDirectory(prefix="hone-conformance-") as folder:
            async with hone_gateway(Path(folder)) as both:
                yield both
        return
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        gateway = Gateway(
            url=options.url.rstrip("/"),
            keys=Keys.parse(options.keys),
            client=client,
            model=options.model,
            data_dir=options.data_dir,
            session_header=options.session_header,
        )
        yield gateway, Engine(options.engine_control.rstrip("/"), client)


if __name__ == "__main__":
    main()
