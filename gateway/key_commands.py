"""`hone keys`: the keys of a data folder, also while a gateway runs on it. What the commands do is in `desk.py`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway import desk
from gateway.key_making import Wanted, key_view, standing
from gateway.shell.listing import LISTS, show_all
from gateway.terminal import echo_json, show_table
from tracker.clock import SystemClock
from tracker.errors import BadRequest
from tracker.settings import StoreSettings, load_stores
from tracker.types import DEFAULT, Key, KeyLimits, KeyUsage, Scope

keys = typer.Typer(**LISTS, help="API keys of a data folder.")

COLUMNS: Final = ("key_id", "standing", "scopes", "calls", "tokens", "today", "expires_ms", "label")
Tenant = Annotated[str, typer.Option(help="The tenant the key belongs to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Rate = Annotated[int | None, typer.Option(min=0, help="Calls in any minute, over all gateways.")]
Concurrent = Annotated[int | None, typer.Option(min=0, help="Calls in flight, over all gateways.")]
Budget = Annotated[int | None, typer.Option(min=0, help="Prompt and sampled tokens, for the life of the key.")]
DailyBudget = Annotated[int | None, typer.Option(min=0, help="The same for each day (UTC).")]


@keys.command("create")
def create_key(  # noqa: PLR0913 - a command's options are its arguments
    scope: Annotated[list[Scope], typer.Option(help="May be given several times.")],
    tenant: Tenant = DEFAULT,
    label: Annotated[str, typer.Option(help="For people.")] = "",
    expires_days: Annotated[float | None, typer.Option(min=0.0, max=36_500.0)] = None,
    expires_in_s: Annotated[float | None, typer.Option(min=0.0, help="The same in seconds.")] = None,
    requests_per_minute: Rate = None,
    max_concurrent: Concurrent = None,
    token_budget: Budget = None,
    token_budget_per_day: DailyBudget = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once."""
    limits = KeyLimits(
        requests_per_minute=requests_per_minute,
        max_concurrent=max_concurrent,
        token_budget=token_budget,
        token_budget_per_day=token_budget_per_day,
    )
    if expires_days is not None and expires_in_s is not None:
        raise BadRequest("Write --expires-days or --expires-in-s, not both.")
    life_s = expires_in_s if expires_days is None else expires_days * 86_400
    wanted = Wanted(scopes=tuple(scope), tenant=tenant, label=label, expires_in_s=life_s, limits=limits)
    secret, key = asyncio.run(desk.create_key(_stores(), wanted))
    _show_secret(secret, key, as_json)


@keys.callback()
def list_unless_told(context: typer.Context, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """API keys of a data folder: a list, or what is to be done with them."""
    if context.invoked_subcommand is None:
        list_keys(tenant, as_json)


@keys.command("list")
def list_keys(tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """List a tenant's keys and what calls with them took, without the keys themselves."""
    found = asyncio.run(desk.list_keys(_stores(), tenant))
    show_all([key_view(*one) for one in found], [_row(*one) for one in found], COLUMNS, as_json)


@keys.command("show")
def show_key(key_id: str, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """Show one key: its limits, and what calls with it took."""
    key, usage = asyncio.run(desk.key_with_usage(_stores(), tenant, key_id))
    shown = key_view(key, usage)
    if as_json:
        echo_json(shown)
    else:
        show_table(("field", "value"), [{"field": name, "value": value} for name, value in shown.items()])


@keys.command("rotate")
def rotate_key(
    key_id: str,
    grace_s: Annotated[float, typer.Option(min=0.0, help="How long the old secret still works.")] = 0.0,
    tenant: Tenant = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give a key another secret, which is shown once; its id, limits and usage stay."""
    secret, key, until_ms = asyncio.run(desk.rotate_key(_stores(), tenant, key_id, grace_s))
    _show_secret(secret, key, as_json, old_until_ms=until_ms)


@keys.command("limit")
def limit_key(  # noqa: PLR0913 - a command's options are its arguments
    key_id: str,
    requests_per_minute: Rate = None,
    max_concurrent: Concurrent = None,
    token_budget: Budget = None,
    token_budget_per_day: DailyBudget = None,
    tenant: Tenant = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change limits of a key, within seconds also at gateways that run. 0 takes a limit away."""
    given = {
        "requests_per_minute": requests_per_minute,
        "max_concurrent": max_concurrent,
        "token_budget": token_budget,
        "token_budget_per_day": token_budget_per_day,
    }
    changes = {name: limit or None for name, limit in given.items() if limit is not None}
    if not changes:
        raise BadRequest("Name the limit to change, such as --requests-per-minute 600; 0 takes one away.")
    _show_key(asyncio.run(desk.limit_key(_stores(), tenant, key_id, changes)), "has other limits", as_json)


@keys.command("revoke")
def revoke_key(key_id: str, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """Make a key worthless, within seconds also at gateways that run."""
    _show_key(asyncio.run(desk.revoke_key(_stores(), tenant, key_id)), "is revoked", as_json)


def _stores() -> StoreSettings:
    return load_stores(os.environ, Path.cwd())


def _show_secret(secret: str, key: Key, as_json: bool, **more: int) -> None:
    if as_json:
        echo_json({"key": secret, **more, **key_view(key)})
    else:
        typer.echo(secret)


def _show_key(key: Key, done: str, as_json: bool) -> None:
    if as_json:
        echo_json(key_view(key))
    else:
        typer.echo(f"{key.key_id} {done}.")


def _row(key: Key, usage: tuple[KeyUsage, KeyUsage]) -> dict[str, Any]:
    """A key on one line."""
    took = {"calls": usage[0].calls, "tokens": usage[0].tokens, "today": usage[1].tokens}
    return {**key_view(key), **took, "standing": standing(key, SystemClock().now_ms())}
