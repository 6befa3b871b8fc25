"""Runs rules side by side and tells what became of each: one line, one verdict.

After every rule the gateway must still answer an ordinary call. A rule that hangs fails when its time is up.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from tests.conformance.gateway import Engine, Gateway
from tests.conformance.rules import Rule
from tests.conformance.scene import NotApplicable, Scene

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

    async def judged(rule: Rule) -> Verdict:
        async with room:
            verdict = await judge(rule, Scene(gateway, engine))
        tell(verdict)
        return verdict

    beside = [rule for rule in rules if not rule.alone]
    found = dict(zip([r.name for r in beside], await asyncio.gather(*map(judged, beside)), strict=True))
    for rule in rules:
        if rule.alone:
            found[rule.name] = await judged(rule)
    return [found[rule.name] for rule in rules]


async def judge(rule: Rule, scene: Scene) -> Verdict:
    """Try one rule."""
    started_s = time.monotonic()
    verdict, note = await _tried(rule, scene)
    return Verdict(rule.name, rule.case, verdict, note[:MAX_NOTE], rule.area, round(time.monotonic() - started_s, 3))


async def _tried(rule: Rule, scene: Scene) -> tuple[str, str]:
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
            await _ordinary_call(Scene(scene.gateway, scene.engine))
    except (TimeoutError, *UNEXPECTED) as error:
        return "fail", f"afterwards an ordinary call failed: {_told(error)}"
    return "pass", ""


async def _ordinary_call(scene: Scene) -> None:
    answered = await scene.ask(await scene.open("ordinary"))
    assert answered.status == 200, (answered.status, answered.raw)


def _told(error: BaseException) -> str:
    """Where a rule failed and why, in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "conformance" in f.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].line}: " if frames else ""
    said = str(error) if isinstance(error, AssertionError) else repr(error)
    return f"{where}{said}".replace("\n", " ")
