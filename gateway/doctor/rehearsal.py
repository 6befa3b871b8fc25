"""`hone doctor -- COMMAND`: runs an agent as it is before a private gateway, and says what could be trained of it.

The command gets base URLs and an ordinary key in its environment, as the user's own runs would, and nothing else
changes for it. What came of it is read once it has ended; then everything that was started is stopped, and the private
data folder is gone. What is told is made in `report.py`, how it is written in `words.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
import msgspec
from rich.console import Console

from gateway.agent_command import AgentCommand, Ended, agent_env, run_agent
from gateway.doctor.drift import Step, StepKind
from gateway.doctor.engines import RehearsalEngine, rehearsal_engine
from gateway.doctor.report import Report, Seen, report_of
from gateway.doctor.stage import PrivateGateway, private_gateway
from gateway.doctor.words import Difference, as_json, show
from gateway.engine_api import engine_http
from tracker.types import Call, Record

MAX_DECODED: Final = 50
"""Of the differences; more would be the same again."""
TASK: Final = "rehearsal"


class Rehearsal(Record, frozen=True):
    """What is to be run, and how."""

    command: tuple[str, ...]
    engine: RehearsalEngine | None = None
    has_episode: bool = False
    """With the key of one explicit episode, rather than an ordinary one."""
    timeout_s: float | None = None
    as_json: bool = False


async def rehearse(rehearsal: Rehearsal, env: Mapping[str, str], cwd: Path, console: Console) -> bool:
    """Run the command and tell what was seen; whether it is trainable. Raises `SettingsError` if it could not run."""
    folder = Path(tempfile.mkdtemp(prefix="hone-doctor-"))

    def say(line: str) -> None:
        console.print(f"doctor: {line}", style="dim", highlight=False, soft_wrap=True)

    try:
        async with (
            rehearsal_engine(rehearsal.engine, env, cwd, folder, say) as engine,
            private_gateway(engine.env, cwd, folder, is_plain=engine.is_plain) as gateway,
        ):
            say(f"running {' '.join(rehearsal.command)} before {gateway.url}, engine: {engine.name}")
            key = await gateway.agent_key()
            key = await gateway.open_episode(key, TASK) if rehearsal.has_episode else key
            gateway.watch.paths.clear()
            output = sys.stderr if rehearsal.as_json else None
            command = AgentCommand(argv=rehearsal.command, timeout_s=rehearsal.timeout_s)
            ended = await run_agent(command, agent_env(env, gateway.url, key), cwd, output)
            report = report_of(await _seen(gateway, ended, engine.name))
            differences = await _decoded(gateway, report)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    if rehearsal.as_json:
        sys.stdout.write(msgspec.json.encode(as_json(report, differences)).decode() + "\n")
    else:
        show(console, report, differences)
    return report.is_trainable


async def _seen(gateway: PrivateGateway, ended: Ended, engine: str) -> Seen:
    episodes = await gateway.rehearsed()
    return Seen(
        exit_status=ended.status,
        was_stopped=ended.was_stopped,
        timeout_s=ended.timeout_s,
        engine=engine,
        episodes=episodes,
        refusals=tuple(gateway.watch.refusals),
        paths=dict(gateway.watch.paths),
    )


async def _decoded(gateway: PrivateGateway, report: Report) -> tuple[Difference, ...]:
    """Drifts and forks with their tokens as text, where the engine can say it."""
    calls = {call.call_id: call for episode in report.seen.episodes for call in episode.calls}
    parted = [step for step in report.steps if step.kind in (StepKind.DRIFTS, StepKind.FORKS)][:MAX_DECODED]
    key = gateway.settings.engine_key
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with engine_http(gateway.settings.engine_timeout_s) as http:
        http.headers.update(headers)
        return tuple([await _difference(http, step, calls[step.call_id]) for step in parted])


async def _difference(http: httpx.AsyncClient, step: Step, call: Call) -> Difference:
    place = step.place
    assert place is not None
    parts = (place.before, place.stored[:1], place.stored, place.new[:1], place.new)
    texts = [await _text(http, call.engine, ids) for ids in parts]
    return Difference(
        step=step,
        before=texts[0],
        stored_token=texts[1],
        stored=texts[2],
        new_token=texts[3],
        new=texts[4],
    )


async def _text(http: httpx.AsyncClient, engine: str, ids: tuple[int, ...]) -> str | None:
    """Token ids as text; `None` where the engine does not say."""
    if not ids:
        return ""
    try:
        answered = await http.post(f"{engine}/detokenize", json={"tokens": list(ids)})
        return str(answered.json()["prompt"]) if answered.is_success else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
