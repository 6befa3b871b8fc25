"""Runs rules side by side and tells what became of each: one line, one verdict.

After every rule the gateway must still answer an ordinary call. A rule that hangs fails when its time is up. One that
failed is tried once more at the end, with nothing beside it, and its note then says so: a machine that is busy with
other things is no fault of the gateway.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import aiohttp

from tests.conformance.gateway import Engine, Gateway
from tests.conformance.rules import Rule
from tests.conformance.scene import Episode, NotApplicable, Scene

NUM_AT_ONCE = 6
ORDINARY_S = 5.0
UNEXPECTED = (AssertionError, aiohttp.ClientError, OSError, LookupError, TypeError, ValueError, AttributeError)
"""What an answer other than the right one raises in a rule that reads it."""
MAX_NOTE = 300


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a rule."""

    rule: str
    case: str
    verdict: str
    """`pass`, `fail` or `n/a`."""
    note: str
    area: str
    seconds: float

    def json(self) -> dict[str, object]:
        return asdict(self)


async def run_all(
    rules: Sequence[Rule], gateway: Gateway, engine: Engine, tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """The verdict of each rule, in the rules' order."""
    room = asyncio.Semaphore(NUM_AT_ONCE)
    found: dict[str, Verdict] = {}
    bench = Bench(gateway, engine, await Scene(gateway, engine).open("ordinary"))

    async def judged(rule: Rule) -> None:
        async with room:
            found[rule.name] = await bench.judge(rule)
        if found[rule.name].verdict != "fail":
            tell(found[rule.name])

    await asyncio.gather(*(judged(rule) for rule in rules if not rule.alone))
    for rule in rules:
        if rule.alone:
            await judged(rule)
    for rule in rules:
        if found[rule.name].verdict == "fail":
            found[rule.name] = await bench.judge_again(rule, found[rule.name])
            tell(found[rule.name])
    return [found[rule.name] for rule in rules]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where rules are tried, and an episode for the ordinary call after each."""

    gateway: Gateway
    engine: Engine
    ordinary: Episode

    async def judge(self, rule: Rule) -> Verdict:
        """Try one rule."""
        started_s = time.monotonic()
        verdict, note = await _tried(rule, Scene(self.gateway, self.engine), self.ordinary)
        seconds = round(time.monotonic() - started_s, 3)
        return Verdict(rule.name, rule.case, verdict, note[:MAX_NOTE], rule.area, seconds)

    async def judge_again(self, rule: Rule, first: Verdict) -> Verdict:
        """Try it with nothing beside it; a pass keeps the first failure as its note."""
        second = await self.judge(rule)
        note = f"at the second try; at first: {first.note}"[:MAX_NOTE]
        return replace(second, note=note) if second.verdict == "pass" else second


async def _tried(rule: Rule, scene: Scene, ordinary: Episode) -> tuple[str, str]:
    missing = [need for need in rule.needs if need not in scene.gateway.capabilities]
    if missing:
        return "n/a", f"the gateway has no {', '.join(dict.fromkeys(missing))}"
    try:
        async with asyncio.timeout(rule.timeout_s):
            await rule.run(scene)
    except NotApplicable as why:
        return "n/a", str(why)
    except TimeoutError:
        return "fail", f"no end within {rule.timeout_s:g} s"
    except UNEXPECTED as error:
        return "fail", _told(error)
    try:
        async with asyncio.timeout(ORDINARY_S):
            await _ordinary_call(Scene(scene.gateway, scene.engine), ordinary)
    except (TimeoutError, *UNEXPECTED) as error:
        return "fail", f"afterwards an ordinary call failed: {_told(error)}"
    return "pass", ""


async def _ordinary_call(scene: Scene, episode: Episode) -> None:
    answered = await scene.ask(episode)
    assert answered.status == 200, (answered.status, answered.raw)


def _told(error: BaseException) -> str:
    """Where a rule failed and why, in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "conformance" in f.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].line}: " if frames else ""
    said = str(error) if isinstance(error, AssertionError) else repr(error)
    return f"{where}{said}".replace("\n", " ")
