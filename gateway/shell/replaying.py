"""`hone replay`: what its options mean. What it does is in `gateway/replay`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.replay.play import Play, replay
from gateway.replay.recordings import Source
from tracker.errors import BadRequest
from tracker.settings import load_stores
from tracker.types import DEFAULT


def replay_recorded(  # noqa: PLR0913 - a command's options are its arguments
    command: Annotated[
        list[str] | None, typer.Argument(help="An agent's command; without one, the port alone.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="The archived episodes of this run.")] = None,
    episodes: Annotated[str | None, typer.Option(help="These episodes, with commas.")] = None,
    file: Annotated[Path | None, typer.Option(help="Written by `hone export --as episodes`.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Also fail if something recorded is not asked for.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which the command is ended.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose episodes they are.")] = DEFAULT,
) -> None:
    """Answer an agent with what was recorded: a regression test without a model.

    Exit status: the command's own; 1 at the first request that nobody recorded, shown as a diff.
    """
    if sum(given is not None for given in (run, episodes, file)) != 1:
        raise BadRequest("Say what is replayed: one of --run, --episodes and --file.")
    named = tuple(name.strip() for name in (episodes or "").split(",") if name.strip())
    play = Play(
        source=Source(run=run, episode_ids=named, path=file, tenant=tenant),
        port=port,
        command=tuple(command or ()),
        strict=strict,
        timeout_s=timeout,
    )
    stores = load_stores(os.environ, Path.cwd())
    sys.exit(asyncio.run(replay(stores, play, os.environ, Path.cwd(), Console(stderr=bool(command)))))
