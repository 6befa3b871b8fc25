"""`hone episodes`, `groups` and `runs`: lists with filters, and one of each in full. What is read is in `reading.py`.
`--json` prints a line for each, and one line for one."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from gateway.answers import plain
from gateway.desk import open_ledger
from gateway.paging import episodes_of, groups_of, pages
from gateway.routes.views import group_view, row_view
from gateway.shell.episode import story_page, story_view
from gateway.shell.reading import episode_story
from gateway.terminal import console, echo_json, show_table
from tracker.errors import BadRequest
from tracker.ledger import SqlLedger
from tracker.settings import StoreSettings, load_stores
from tracker.shares import shares_of, total
from tracker.types import DEFAULT, EpisodeFilter, EpisodeRow, Group, RunSettings

T = TypeVar("T")
Tenant = Annotated[str, typer.Option(help="Whose they are.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, help="How many, newest first.")]
All = Annotated[bool, typer.Option("--all", help="All of them, however many, page by page.")]
Cursor = Annotated[str | None, typer.Option(help="Go on where a list ended.")]
Run = Annotated[str | None, typer.Option(help="Only of this run.")]
Task = Annotated[str | None, typer.Option(help="Only of this task.")]

LISTS: Final[Mapping[str, Any]] = {"invoke_without_command": True, "no_args_is_help": False}
episodes = typer.Typer(**LISTS, help="Episodes: the newest, by filters, or one in full.")
groups = typer.Typer(**LISTS, help="Groups: rewards, advantages, and why one is not trained.")
runs = typer.Typer(**LISTS, help="Runs and their settings.")

EPISODE_COLUMNS: Final = (
    "episode_id",
    "reward",
    "status",
    "state",
    "num_calls",
    "versions",
    "run",
    "created_ms",
    "task",
)
GROUP_COLUMNS: Final = ("group_id", "state", "scored", "reason", "rewards", "run", "round", "created_ms", "task")
RUN_COLUMNS: Final = (
    "run",
    "mode",
    "group_size",
    "groups_per_step",
    "staleness",
    "on_stale",
    "credit",
    "reward_weights",
)
MEMBER_COLUMNS: Final = ("episode_id", "reward", "advantage", "status", "state", "member", "why")


@episodes.callback()
def list_episodes(  # noqa: PLR0913 - a command's options are its arguments
    context: typer.Context,
    run: Run = None,
    task: Task = None,
    status: Annotated[str | None, typer.Option(help="A state or a status.")] = None,
    policy: Annotated[str | None, typer.Option(help="With a call to this policy.")] = None,
    version: Annotated[int | None, typer.Option(help="With a call to this version.")] = None,
    role: Annotated[str | None, typer.Option(help="With a call of this role.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="With at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="With at most this reward.")] = None,
    limit: Limit = 20,
    everything: All = False,
    cursor: Cursor = None,
    tenant: Tenant = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the newest episodes."""
    if context.invoked_subcommand is not None:
        return
    if not all(map(math.isfinite, (min_reward or 0, max_reward or 0))):
        raise BadRequest("--min-reward and --max-reward are finite numbers.")
    wanted = EpisodeFilter(
        run=run,
        task=task,
        status=status,
        policy=policy,
        version=version,
        role=role,
        min_reward=min_reward,
        max_reward=max_reward,
    )

    def read(ledger: SqlLedger) -> AsyncGenerator[tuple[Sequence[EpisodeRow], str | None]]:
        return pages(episodes_of(ledger, tenant, wanted), limit=None if everything else limit, cursor=cursor)

    asyncio.run(_list(read, row_view, EPISODE_COLUMNS, as_json))


@episodes.command("show")
def show_episode(episode_id: str, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """Show one episode: its calls as a tree, its rewards, and what is not trained and why."""
    story, amiss = asyncio.run(episode_story(_stores(), tenant, episode_id))
    if as_json:
        echo_json(story_view(story, amiss))
    else:
        console().print(story_page(story, amiss))


@groups.callback()
def list_groups(  # noqa: PLR0913 - a command's options are its arguments
    context: typer.Context,
    run: Run = None,
    task: Task = None,
    state: Annotated[str | None, typer.Option(help="open, ready, taken, trained or skipped.")] = None,
    limit: Limit = 20,
    everything: All = False,
    cursor: Cursor = None,
    tenant: Tenant = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the newest groups."""
    if context.invoked_subcommand is not None:
        return

    def read(ledger: SqlLedger) -> AsyncGenerator[tuple[Sequence[Group], str | None]]:
        asked = groups_of(ledger, tenant, run=run, task=task, state=state)
        return pages(asked, limit=None if everything else limit, cursor=cursor)

    asyncio.run(_list(read, group_view if as_json else _group_row, GROUP_COLUMNS, as_json))


@groups.command("show")
def show_group(group_id: str, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """Show one group with its members."""

    async def read() -> Group:
        async with open_ledger(_stores()) as ledger:
            return await ledger.get_group(tenant, group_id)

    group = asyncio.run(read())
    if as_json:
        echo_json(group_view(group))
        return
    show_table(GROUP_COLUMNS, [_group_row(group)])
    show_table(MEMBER_COLUMNS, plain(group.members), "\nMembers")


@runs.callback()
def list_runs(context: typer.Context, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """List the runs."""
    if context.invoked_subcommand is not None:
        return

    async def read() -> list[RunSettings]:
        async with open_ledger(_stores()) as ledger:
            return await ledger.list_runs(tenant)

    found = asyncio.run(read())
    show_all([plain(run) for run in found], [_run_row(run) for run in found], RUN_COLUMNS, as_json)


@runs.command("show")
def show_run(run: str, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """Show a run: its settings, what of it was trained, and why groups were not."""

    async def read() -> dict[str, Any]:
        async with open_ledger(_stores()) as ledger:
            settings = await ledger.get_run(tenant, run)
            batches = await ledger.list_batches(run=(tenant, run))
            trained = [batch for batch in batches if batch.state == "trained"]
            shares = {
                policy: total(shares_of(batch) for batch in trained if batch.policy == policy).view()
                for policy in dict.fromkeys(batch.policy for batch in trained)
            }
            return {**plain(settings), "training": shares, "skipped_groups": await ledger.skipped_groups((tenant, run))}

    shown = asyncio.run(read())
    if as_json:
        echo_json(shown)
        return
    told = [{"setting": name, "value": value} for name, value in shown.items() if name != "training"]
    show_table(("setting", "value"), told)
    trained = [{"policy": policy, **shares} for policy, shares in shown["training"].items()]
    if trained:
        show_table(
            tuple(name for name, value in trained[0].items() if not isinstance(value, dict)), trained, "\nTrained"
        )


async def _list(
    read: Callable[[SqlLedger], AsyncGenerator[tuple[Sequence[T], str | None]]],
    view: Callable[[T], Mapping[str, Any]],
    columns: Sequence[str],
    as_json: bool,
) -> None:
    """Print page by page, so that a list of millions is no matter of memory."""
    last: str | None = None
    async with open_ledger(_stores()) as ledger:
        async for rows, cursor in read(ledger):
            shown = [view(row) for row in rows]
            show_all(shown, shown, columns, as_json)
            last = cursor
    if last is not None:
        sys.stderr.write(f"There are more: --all, or --cursor {last}\n")


def show_all(
    views: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool
) -> None:
    """A list, or a part of one."""
    if as_json:
        for view in views:
            echo_json(view)
    elif rows:
        show_table(columns, rows, is_list=True)
    else:
        sys.stderr.write("There are none.\n")


def _group_row(group: Group) -> dict[str, Any]:
    """A group on one line."""
    rewards = [member.reward for member in group.members if member.member]
    scored = [reward for reward in rewards if reward is not None]
    return {
        **group_view(group),
        "scored": f"{len(scored)} of {group.size}",
        "rewards": [f"{reward:.3g}" for reward in scored],
    }


def _run_row(run: RunSettings) -> dict[str, Any]:
    return {**plain(run), "credit": run.credit.kind}


def _stores() -> StoreSettings:
    return load_stores(os.environ, Path.cwd())
