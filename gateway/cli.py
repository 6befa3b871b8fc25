"""`hone`: the command line. Each command reads the settings once and hands over; none does its work here.

A mistake in settings or arguments is one line that says what to write, and exit status 2.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from gateway import desk
from gateway.answers import plain
from gateway.demo.show import DemoSettings, run_demo
from gateway.doctor.checks import examine
from gateway.doctor.engines import RehearsalEngine
from gateway.doctor.rehearsal import Rehearsal, rehearse
from gateway.key_commands import keys
from gateway.local.up import up as run_up
from gateway.serve import serve
from gateway.settings import GatewaySettings, LocalEngine, load
from gateway.shell.listing import episodes, groups, runs
from gateway.shell.moving import export_run, import_episodes
from gateway.shell.policies import policies
from gateway.shell.replaying import replay_recorded
from gateway.shell.rescoring import rescore_run
from gateway.verify import Asked, verify_batches
from tracker.errors import BadRequest, HoneError, SettingsError
from tracker.lines import lineage_line
from tracker.settings import StoreSettings, load_stores
from tracker.sql import downgrade, upgrade
from tracker.types import DEFAULT

BENCHES: Final = Path(__file__).parents[1] / "bench"
"""Measurements are no part of the package."""
MEASURES: Final = 'if __name__ == "__main__":'
"""What the file of one ends with."""
START, CHECK, DATA, STORED = "Start", "Check", "Take out, bring in, score again", "Look at what is stored"
"""Where a command stands in `hone --help`."""
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train your agent.")
app.add_typer(keys, name="keys", rich_help_panel=STORED)
app.add_typer(runs, name="runs", rich_help_panel=STORED)
app.add_typer(groups, name="groups", rich_help_panel=STORED)
app.add_typer(episodes, name="episodes", rich_help_panel=STORED)
app.add_typer(policies, name="policies", rich_help_panel=STORED)
tenants = typer.Typer(no_args_is_help=True, help="What tenants' archives are encrypted with.")
app.add_typer(tenants, name="tenants", rich_help_panel=STORED)

Tenant = Annotated[str, typer.Option(help="The tenant the key belongs to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """The entry point of `hone` and of `python -m gateway.cli`."""
    try:
        app()
    except HoneError as error:
        typer.echo(f"hone: {error.message}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


@app.command(rich_help_panel=START)
def gateway(
    host: Annotated[str | None, typer.Option(help="HONE_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="HONE_PORT")] = None,
) -> None:
    """Start the gateway before engines that run already."""
    given = {"HONE_HOST": host, "HONE_PORT": port}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    serve(_settings())


@app.command(rich_help_panel=START)
def up(
    engine: Annotated[LocalEngine | None, typer.Option(help="HONE_LOCAL_ENGINE: which engine to start.")] = None,
) -> None:
    """Start everything on this machine: redis-server, engine, gateway and trainer."""
    given = {} if engine is None else {"HONE_LOCAL_ENGINE": engine.value}
    asyncio.run(run_up({**os.environ, **given}, Path.cwd(), Console()))


@app.command(rich_help_panel=START)
def demo(
    model: Annotated[str, typer.Option(help="A folder, a hub id, or smollm2.")] = "smollm2",
    seed: int = 0,
    steps: int = 10,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where to write the figures.")] = None,
    data_dir: Annotated[Path, typer.Option(help="A folder of the demo's own.")] = Path(".hone/demo"),
) -> None:
    """Watch an agent that knows nothing of Hone get better."""
    settings = DemoSettings(
        data_dir=data_dir.resolve(),
        model=model,
        seed=seed,
        steps=steps,
        json_path=json_path.resolve() if json_path else None,
    )
    asyncio.run(run_demo(settings, os.environ, Console()))


@app.command(context_settings=PASS_ON, add_help_option=False, rich_help_panel=START)
def engine(context: typer.Context) -> None:
    """Start the embedded engine (needs the extra `train`)."""
    _become("trainer.engine", context.args)


@app.command(context_settings=PASS_ON, add_help_option=False, rich_help_panel=START)
def train(context: typer.Context) -> None:
    """Start the trainer (needs the extra `train`)."""
    _become("trainer", context.args)


@app.command(rich_help_panel=START)
def migrate(
    down: Annotated[str | None, typer.Option(help="Go back to this revision (`base` for none).")] = None,
) -> None:
    """Bring the SQL schema to this version of Hone, or back."""
    stores = _stores()
    stores.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    asyncio.run(upgrade(stores.database_url) if down is None else downgrade(stores.database_url, down))
    typer.echo("The schema is up to date." if down is None else f"The schema is at {down}.")


@app.command(context_settings={"allow_interspersed_args": False}, rich_help_panel=CHECK)
def doctor(
    command: Annotated[list[str] | None, typer.Argument(help="An agent's command, to be run before Hone.")] = None,
    engine: Annotated[RehearsalEngine | None, typer.Option(help="What the agent talks to.")] = None,
    episode: Annotated[bool, typer.Option("--episode", help="Give it the key of one explicit episode.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which the command is ended.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, stores and engines. With a command: run it, and say what of it could be trained.

    Exit status of `hone doctor -- COMMAND`: 0 trainable, 1 not, 2 it could not run.
    """
    if command:
        asked = Rehearsal(
            command=tuple(command), engine=engine, has_episode=episode, timeout_s=timeout, as_json=as_json
        )
        if not asyncio.run(rehearse(asked, os.environ, Path.cwd(), Console(stderr=as_json))):
            sys.exit(1)
        return
    findings = asyncio.run(examine(_settings()))
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.is_ok else 'FAIL'} {finding.what}: {finding.detail}")
    if not all(finding.is_ok for finding in findings):
        sys.exit(1)


@app.command(rich_help_panel=CHECK)
def lineage(episode_id: str, tenant: Tenant = DEFAULT, as_json: AsJson = False) -> None:
    """Tell which versions were trained on an episode, also of one that was deleted."""
    found = asyncio.run(desk.episode_lineage(_stores(), tenant, episode_id))
    if as_json:
        _echo_json(plain(found))
    else:
        typer.echo(lineage_line(found))


@app.command("verify", rich_help_panel=CHECK)
def verify_stored(
    batch_id: Annotated[list[str] | None, typer.Argument(help="Batches; all of them where none is given.")] = None,
    run: Annotated[str | None, typer.Option(help="Only batches of this run.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only batches of this policy.")] = None,
    tenant: Annotated[str, typer.Option(help="The tenant the run belongs to.")] = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Check stored batches again: tokens, contexts and versions against the receipts. Exit status 1 if one fails."""
    asked = Asked(batch_ids=tuple(batch_id or ()), run=run, policy=policy, tenant=tenant)
    answer = asyncio.run(verify_batches(_stores(), asked))
    if as_json:
        _echo_json(answer.view())
    else:
        for line in answer.lines():
            typer.echo(line)
    if not answer.is_ok:
        sys.exit(1)


@tenants.command("shred")
def shred_tenant(
    tenant: str, yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it cannot be undone.")] = False
) -> None:
    """Delete a tenant's key: tokens and text of all its archived episodes become unreadable, for ever."""
    if not yes:
        asked = f"Tokens and text of every archived episode of {tenant} will be unreadable for ever. Go on?"
        typer.confirm(asked, abort=True)
    num_keys = asyncio.run(desk.shred_tenant(_stores(), tenant))
    typer.echo(f"{num_keys} keys of {tenant} are shredded.")


@tenants.command("rewrap")
def rewrap_tenants() -> None:
    """Wrap every tenant's key with the first of the keys in HONE_ENCRYPTION_KEY, after that was rotated."""
    typer.echo(f"{asyncio.run(desk.rewrap_tenants(_stores()))} keys are wrapped anew.")


def _settings() -> GatewaySettings:
    return load(os.environ, Path.cwd())


def _stores() -> StoreSettings:
    return load_stores(os.environ, Path.cwd())


@app.command(context_settings=PASS_ON, rich_help_panel=CHECK)
def bench(context: typer.Context, name: Annotated[str, typer.Argument(help="As in make bench-NAME.")]) -> None:
    """Measure something: make bench-NAME without make, in a checkout of Hone."""
    module = name.replace("-", "_")
    there = sorted(path.stem for path in BENCHES.glob("*.py") if MEASURES in path.read_text())
    if module not in there:
        told = ", ".join(there) if there else f"none in {BENCHES.parent}, which is no checkout of Hone"
        raise BadRequest(f"There is no measurement {name!r}; there is: {told}.", param="name")
    os.chdir(BENCHES.parent)
    _become(f"bench.{module}", context.args)


def _become(module: str, arguments: list[str]) -> None:
    """Run a program of the trainer in this process's place, so that signals reach it; gateway imports none of it."""
    try:
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise SettingsError(f"{module} could not be started: {error.strerror}.") from error


def _echo_json(value: dict[str, Any]) -> None:
    typer.echo(msgspec.json.encode(plain(value)).decode())


app.command("replay", context_settings={"allow_interspersed_args": False}, rich_help_panel=CHECK)(replay_recorded)
app.command("export", rich_help_panel=DATA)(export_run)
app.command("import", rich_help_panel=DATA)(import_episodes)
app.command("rescore", rich_help_panel=DATA)(rescore_run)

if __name__ == "__main__":
    main()
