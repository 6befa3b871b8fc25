"""`hone import`: brings exported episodes into this installation, each checked against its receipts first.

Lines are taken one after the other, each in a transaction of its own. One that is here already and the same is passed
over, so the same file can be brought again after whatever stopped it; one that is here and differs, or that is not what
its receipts say, is refused with its line, and ends the import there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gateway.auditing import act_of_desk
from gateway.desk import open_ledger
from gateway.exporting.carried import is_same, whole_of
from tracker.errors import BadRequest, Conflict, CorruptRecord, Gone, SettingsError
from tracker.ledger import SqlLedger
from tracker.settings import StoreSettings
from tracker.types import Record
from tracker.wholes import WholeEpisode


class Brought(Record, frozen=True):
    """How far an import is."""

    num_brought: int = 0
    num_here: int = 0
    """Were here already, the same."""


Say = Callable[[Brought], None]


async def bring(stores: StoreSettings, path: Path, tenant: str, run: str | None, say: Say) -> Brought:
    """Bring the episodes of a file into a tenant, and into another run where one is named."""
    done = Brought()
    try:
        file = path.open("rb")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        async with open_ledger(stores) as ledger:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    whole = _placed(await asyncio.to_thread(whole_of, line), tenant, run)
                    is_new = await _bring_one(ledger, whole, path)
                except (BadRequest, Conflict, CorruptRecord, Gone) as error:
                    raise type(error)(f"{path}, line {number}: {error.message}") from error
                done = replace(done, num_brought=done.num_brought + is_new, num_here=done.num_here + (not is_new))
                say(done)
    return done


async def _bring_one(ledger: SqlLedger, whole: WholeEpisode, path: Path) -> bool:
    episode_id, tenant = whole.row.head.episode_id, whole.row.head.tenant
    act = act_of_desk(tenant, "episode.import", episode_id, {"file": path.name, "run": whole.run.run})
    if await ledger.bring_episode(whole, act):
        return True
    here = await ledger.whole_episodes(tenant, [episode_id])
    if not here or not await asyncio.to_thread(is_same, here[0], whole):
        where = f" in run {here[0].run.run}" if here else ""
        raise Conflict(f"Episode {episode_id} is here already{where}, and is another one.", param="episode_id")
    return False


def _placed(whole: WholeEpisode, tenant: str, run: str | None) -> WholeEpisode:
    """The episode in this tenant and run."""
    run = run or whole.run.run
    head = replace(whole.row.head, tenant=tenant, run=run)
    timeline = replace(whole.timeline, tenant=tenant, run=run)
    return replace(whole, row=replace(whole.row, head=head), run=replace(whole.run, run=run), timeline=timeline)
