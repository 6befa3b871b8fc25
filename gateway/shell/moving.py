"""`hone export` and `hone import`: what their options mean. What they do is in `gateway/exporting`."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.answers import plain
from gateway.exporting.bringing import Brought, bring
from gateway.exporting.export import PARQUET, Order, export
from gateway.exporting.forms import Form, Wanted, columns
from gateway.exporting.parts import State
from gateway.terminal import echo_json, words
from tracker.errors import BadRequest
from tracker.settings import StoreSettings, load_stores
from tracker.types import DEFAULT

FORMATS = ("jsonl", PARQUET)
Tenant = Annotated[str, typer.Option(help="Whose episodes they are.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def export_run(  # noqa: PLR0913 - a command's options are its arguments
    run: Annotated[str, typer.Option(help="The run whose archived episodes are exported.")],
    out: Annotated[str, typer.Option(help="A file, or with / at its end a folder of parts.")],
    form: Annotated[Form, typer.Option("--as", help="What becomes of an episode.")] = Form.ROWS,
    file_format: Annotated[str, typer.Option("--format", help="jsonl or parquet.")] = "jsonl",
    policy: Annotated[str | None, typer.Option(help="Only calls to this policy.")] = None,
    role: Annotated[str | None, typer.Option(help="Only calls of this role.")] = None,
    threshold: Annotated[float | None, typer.Option(help="A reward from here on is correct.")] = None,
    only_correct: Annotated[bool, typer.Option("--only-correct", help="Of sft and grpo: correct ones alone.")] = False,
    margin: Annotated[float, typer.Option(min=0.0, help="Of dpo: rewards of a pair differ by more than this.")] = 0.0,
    part_episodes: Annotated[int, typer.Option(min=1, max=100_000, help="Episodes in a part, about.")] = 500,
    tenant: Tenant = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Export a run's archived episodes: as training rows, in TRL's forms, or whole (`--as episodes`).

    Killed midway, the same command goes on where it was.
    """
    if file_format not in FORMATS:
        raise BadRequest(f"--format is {' or '.join(FORMATS)}, not {file_format!r}.")
    if only_correct and threshold is None:
        raise BadRequest("--only-correct needs --threshold: from which reward on is an attempt correct?")
    if not (math.isfinite(margin) and math.isfinite(threshold or 0)):
        raise BadRequest("--threshold and --margin are finite numbers.")
    if file_format == PARQUET:
        columns(form)
    wanted = Wanted(form=form, policy=policy, role=role, threshold=threshold, only_correct=only_correct, margin=margin)
    order = Order(run=run, tenant=tenant, wanted=wanted, format=file_format, part_episodes=part_episodes)
    is_folder = out.endswith(os.sep) or Path(out).is_dir()
    state = asyncio.run(export(_stores(), order, Path(out).absolute(), _say_part, is_folder=is_folder))
    if as_json:
        fields = ("num_rows", "num_episodes", "left_out")
        echo_json({"out": out, **{name: plain(state)[name] for name in fields}})
        return
    told = f"; left out: {words(state.left_out)}" if state.left_out else ""
    typer.echo(f"{state.num_rows} rows of {state.num_episodes} episodes in {out}{told}")


def import_episodes(
    file: Annotated[Path, typer.Argument(help="Written by `hone export --as episodes`.")],
    tenant: Tenant = DEFAULT,
    run: Annotated[str | None, typer.Option(help="Bring them into this run instead of their own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring exported episodes here, each checked against its receipts. Again is no harm."""
    brought = asyncio.run(bring(_stores(), file, tenant, run, _say_nothing))
    if as_json:
        echo_json({"brought": brought.num_brought, "here": brought.num_here})
    else:
        typer.echo(f"{brought.num_brought} episodes brought, {brought.num_here} were here already.")


def _say_part(state: State) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{state.num_episodes} episodes, {state.num_rows} rows")
        sys.stderr.write("\n" if state.is_through else "")


def _say_nothing(_: Brought) -> None:
    return


def _stores() -> StoreSettings:
    return load_stores(os.environ, Path.cwd())
