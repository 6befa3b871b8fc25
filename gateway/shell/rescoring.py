"""`hone rescore`: what its options mean, and how its result is told. What it does is in `gateway/rescoring`."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.answers import plain
from gateway.rescoring.rescore import Rescored, Rescoring, rescore
from gateway.terminal import echo_json, words
from tracker.errors import BadRequest
from tracker.settings import load_stores
from tracker.types import DEFAULT


def rescore_run(  # noqa: PLR0913 - a command's options are its arguments
    run: Annotated[str, typer.Option(help="The run whose archived episodes are judged.")],
    judge: Annotated[
        str, typer.Option(help="A command: an episode a line in, a score a line out; or module:function.")
    ],
    name: Annotated[str, typer.Option(help="The name of the new reward.")],
    weight: Annotated[float, typer.Option(help="What it would weigh in the run.")] = 1.0,
    apply: Annotated[bool, typer.Option("--apply", help="Post the rewards, beside what counts.")] = False,
    activate: Annotated[bool, typer.Option("--activate", help="With --apply: they count, with --weight.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Episodes judged at once.")] = 4,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what this judge said before.")] = False,
    tenant: Annotated[str, typer.Option(help="Whose run it is.")] = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Have a judge score stored episodes, and see how many advantages would change sign; --apply posts the scores."""
    if activate and not apply:
        raise BadRequest("--activate goes with --apply.")
    if not name.strip():
        raise BadRequest("--name: give the new reward a name.")
    if not math.isfinite(weight) or (activate and weight == 0):
        raise BadRequest("--weight: write a number other than 0.")
    asked = Rescoring(
        run=run,
        judge=judge,
        name=name,
        tenant=tenant,
        weight=weight,
        applies=apply,
        counts=activate,
        concurrency=concurrency,
        fresh=fresh,
    )
    done = asyncio.run(rescore(load_stores(os.environ, Path.cwd()), asked, Path.cwd(), _say))
    if as_json:
        echo_json(plain(done))
        return
    for line in _lines(done, asked):
        typer.echo(line)


def _lines(done: Rescored, asked: Rescoring) -> list[str]:
    effect = done.effect
    unreadable = f", {done.num_unreadable} cannot be read" if done.num_unreadable else ""
    lines = [
        f"{done.num_scored} episodes judged{unreadable}",
        f"with weight {asked.weight:g}, {effect.num_changed} of {effect.num_advantages} advantages change sign, "
        f"in {effect.num_groups} groups ({effect.num_still_open} of them can still be trained)",
        f"rank correlation with the rewards so far: {words(effect.rank_correlation)}",
    ]
    if done.weight is None:
        return [*lines, "Nothing was posted: --apply does."]
    posted = f"{done.num_posted} rewards posted as {asked.name!r}, {done.num_late} of all too late to be trained"
    counts = f"they weigh {done.weight:g} in {asked.run}" if done.weight else "they count nothing yet: --activate"
    return [*lines, f"{posted}; {counts}"]


def _say(num_scored: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{num_scored} episodes judged ")
