"""`hone policies`: what versions there are, and what becomes of them. Lists are read from SQL; whatever changes what
agents get is asked of a running gateway, which does it with its engines (`remote.py`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.answers import plain
from gateway.desk import open_ledger
from gateway.dialects.base import object_of
from gateway.routes.views import policy_view
from gateway.settings import load_for_asking
from gateway.shell.listing import LISTS, AsJson, show_all
from gateway.shell.remote import ask, read
from gateway.terminal import echo_json, show_table
from tracker.errors import NotFound
from tracker.settings import StoreSettings, load_stores

policies = typer.Typer(**LISTS, help="Policies, their versions, and which of them agents get.")
POLICY_COLUMNS: Final = ("policy", "model", "active", "epoch", "versions")
VERSION_COLUMNS: Final = ("version", "state", "epoch", "created_ms", "activated_ms", "folder", "detail")
RELEASE_COLUMNS: Final = ("policy", "mode", "stable", "canary", "waiting", "shadow")
ARM_COLUMNS: Final = ("arm", "version", "begun", "scored", "mean_reward")
CLAIM_COLUMNS: Final = ("claim", "evidence", "needed", "stable", "canary")
EVENT_COLUMNS: Final = ("at_ms", "version", "kind", "by", "why")
Share = Annotated[float, typer.Option(help="Percent.")]


@policies.callback()
def list_policies(context: typer.Context, as_json: AsJson = False) -> None:
    """List the policies."""
    if context.invoked_subcommand is not None:
        return
    found = asyncio.run(_policies())
    shown = [{**policy, "versions": len(policy["versions"])} for policy in found]
    show_all(found, shown, POLICY_COLUMNS, as_json)


@policies.command("show")
def show_policy(name: str, as_json: AsJson = False) -> None:
    """Show a policy with its versions."""
    found = next((policy for policy in asyncio.run(_policies()) if policy["policy"] == name), None)
    if found is None:
        raise NotFound(f"There is no policy {name!r} here.")
    if as_json:
        echo_json(found)
        return
    show_table(POLICY_COLUMNS, [{**found, "versions": len(found["versions"])}])
    show_table(VERSION_COLUMNS, list(reversed(found["versions"])), "\nVersions")


@policies.command("release")
def show_release(name: str, as_json: AsJson = False) -> None:
    """Show which version is stable, on trial, waiting or shadow, how the trial stands, and what was decided last."""
    told = asyncio.run(read(load_for_asking(os.environ, Path.cwd()), os.environ, f"/v1/policies/{name}/release"))
    if as_json:
        echo_json(told)
        return
    show_table(RELEASE_COLUMNS, [{column: _short(told.get(column)) for column in RELEASE_COLUMNS}])
    if told["canary"] is not None and told["verdict"] is not None:
        _show_trial(told["canary"], told["verdict"])
    show_table(EVENT_COLUMNS, told["events"], "\nDecisions")


@policies.command("canary")
def change_share(name: str, version: int, share: Share, as_json: AsJson = False) -> None:
    """Give the version on trial another share of new groups."""
    _asked(f"/v1/policies/{name}/canary", {"version": version, "share": share}, as_json)


@policies.command("promote")
def promote(name: str, version: int, as_json: AsJson = False) -> None:
    """Give the version on trial to all agents now."""
    _asked(f"/v1/policies/{name}/promote", {"version": version}, as_json)


@policies.command("pause")
def pause(name: str, as_json: AsJson = False) -> None:
    """Have new groups get the stable version; what is on trial is not promoted meanwhile."""
    _asked(f"/v1/policies/{name}/pause", {}, as_json)


@policies.command("resume")
def resume(name: str, as_json: AsJson = False) -> None:
    """Have the trial take in new groups again."""
    _asked(f"/v1/policies/{name}/resume", {}, as_json)


@policies.command("shadow")
def set_shadow(
    name: str,
    version: Annotated[int | None, typer.Argument(help="None: no version any more.")] = None,
    share: Share = 10.0,
    as_json: AsJson = False,
) -> None:
    """Have a version get copies of calls, which nobody is answered with."""
    _asked(f"/v1/policies/{name}/shadow", {"version": version, "share": share}, as_json)


@policies.command("rollback")
def roll_back(name: str, version: int, as_json: AsJson = False) -> None:
    """Go back to an earlier version (0 is the bare base model)."""
    _asked(f"/v1/policies/{name}/rollback", {"version": version}, as_json)


def _asked(path: str, body: Mapping[str, Any], as_json: bool) -> None:
    answer = asyncio.run(ask(load_for_asking(os.environ, Path.cwd()), os.environ, path, body))
    if as_json:
        echo_json(answer)
    else:
        show_table(tuple(answer), [answer])


def _show_trial(canary: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
    """What both arms have so far, and the evidence for each claim that would end the trial."""
    arms = [
        {
            "arm": arm,
            "version": version,
            "begun": canary["episodes"][arm],
            "scored": verdict[f"num_{arm}"],
            "mean_reward": verdict[f"mean_{arm}"],
        }
        for arm, version in (("stable", canary["stable"]), ("canary", canary["version"]))
    ]
    show_table(ARM_COLUMNS, arms, f"\nOn trial: {canary['state']}")
    claims = [
        {"claim": f"its reward is {what}", "evidence": verdict[f"evidence_{what}"], "needed": verdict[f"needed_{what}"]}
        for what in ("better", "worse")
    ]
    guards = [
        {**guard, "claim": f"{guard['name']} is {guard['side']} the limit of {guard['limit']:g}"}
        for guard in verdict["guards"]
    ]
    show_table(CLAIM_COLUMNS, claims + guards, "\nEvidence")


def _short(value: object) -> object:
    """A version on trial, or a shadow, in a few words."""
    told = object_of(value)
    return f"{told['version']} ({told['share']:g} %)" if "share" in told else value


async def _policies() -> list[dict[str, Any]]:
    stores = load_stores(os.environ, Path.cwd())
    async with open_ledger(stores) as ledger:
        return [
            plain(policy_view(known, _model(stores, known.policy), await ledger.list_versions(known.policy)))
            for known in await ledger.list_policies()
        ]


def _model(stores: StoreSettings, policy: str) -> str | None:
    settings = stores.policy(policy)
    return None if settings is None else settings.model
