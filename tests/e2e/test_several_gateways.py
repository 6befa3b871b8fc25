"""Several gateways on one Redis and one PostgreSQL: the results of one, also while they are replaced or migrated."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.faulting.load import GROUP_SIZE, Load
from bench.faulting.reading import read_back, unsettled
from bench.faulting.servers import ROOT
from bench.faulting.stage import RUN_SETTINGS, Stage, open_stage
from bench.faulting.verdict import Verdict, judge
from gateway.auth import mint
from gateway.client import Client
from tests.e2e.stack import until
from tracker.types import Key, Scope

pytestmark = pytest.mark.slow

NUM_EPISODES = 2 * GROUP_SIZE
AT_ONCE = 16
FEW_AT_ONCE = 4
"""So that a load lasts while gateways are replaced."""
Json = dict[str, Any]
OURS = frozenset({"call_id", "parent", "engine", "started_ms", "ended_ms", "episode_id", "group_id", "created_ms"})
"""What differs between two plays of one load: ids and times."""
NEXT_REVISION = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision = "9999", {head!r}
    branch_labels = depends_on = None

    def upgrade():
        for table in ("episodes", "rewards", "keys", "groups", "timelines"):
            op.add_column(table, sa.Column("from_the_future", sa.String(), nullable=True))
            op.add_column(table, sa.Column("counted", sa.Integer(), nullable=False, server_default="0"))
        op.create_table("later", sa.Column("name", sa.String(), primary_key=True))
        op.create_index("ix_later_state", "episodes", ["state", "from_the_future"])

    def downgrade():
        raise NotImplementedError
"""


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path / "stage") as opened:
        yield opened


@asynccontextmanager
async def tenant(stage: Stage, name: str) -> AsyncIterator[tuple[str, Client]]:
    """A tenant of its own, so that one load can be played twice under the same names."""
    key, digest = mint()
    assert stage.ledger is not None
    await stage.ledger.add_key(Key(key_id=name, digest=digest, tenant=name, scopes=tuple(Scope)))
    async with Client(stage.urls[0], key) as client:
        await client.create_run("load", **RUN_SETTINGS)
        yield key, client


async def until_archived(client: Client) -> None:
    async def is_archived() -> bool:
        return await unsettled(client, "load") == 0

    await until(is_archived, every_s=0.1)


async def judged(stage: Stage, client: Client, load: Load) -> Verdict:
    await until_archived(client)
    assert stage.ledger is not None
    return judge(load.seen, await read_back(client, stage.ledger, "load", load.seen.episodes.values(), []))


def without_ids(value: Any, names: dict[str, str]) -> Any:
    """What is left once ids and times are gone; members of groups keep the number of their episode."""
    if isinstance(value, dict):
        told = {name: without_ids(each, names) for name, each in value.items() if name not in OURS}
        return told | ({"episode": names[value["episode_id"]]} if value.get("episode_id") in names else {})
    if isinstance(value, list):
        return sorted((without_ids(each, names) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


async def results(stage: Stage, name: str, urls: list[str]) -> list[Json]:
    """Play the load through these gateways; samples, calls and groups, as anybody reads them."""
    async with tenant(stage, name) as (key, client):
        load = Load(urls, key, stage.session, "load")
        await load.play(NUM_EPISODES, AT_ONCE)
        verdict = await judged(stage, client, load)
        assert verdict.holds, verdict.problems
        assert not verdict.reasons
        names = {episode_id: str(number) for number, episode_id in load.seen.episodes.items()}
        told: list[Json] = []
        for number, episode_id in sorted(load.seen.episodes.items()):
            samples = (await client.samples(episode_id))["samples"]
            calls = (await client.timeline(episode_id))["calls"]
            reward = (await client.episode(episode_id))["reward"]
            told.append({"number": number, "samples": samples, "calls": calls, "reward": reward})
        groups = [group async for group in client.groups("load")]
        return [without_ids(each, names) for each in (*told, {"groups": groups})]


async def test_two_gateways_give_the_results_of_one(stage: Stage) -> None:
    one = await results(stage, "one", stage.urls[:1])
    two = await results(stage, "two", stage.urls)
    assert len(two) == NUM_EPISODES + 1
    assert one == two


async def test_nobody_notices_that_gateways_are_replaced_and_the_schema_moves_on(stage: Stage, tmp_path: Path) -> None:
    """SIGTERM and a new process, one after the other, then a migration, then an older gateway starts again."""
    async with tenant(stage, "restarts") as (key, client):
        load = Load(stage.urls, key, stage.session, "load")
        playing = asyncio.create_task(load.play(2 * NUM_EPISODES, FEW_AT_ONCE))
        for gateway in stage.gateways:
            await gateway.program.stop()
            await gateway.start(stage.http)
        assert await migrated(tmp_path, stage.database_url) == 0
        await stage.gateways[0].program.stop()
        await stage.gateways[0].start(stage.http)
        await playing
        verdict = await judged(stage, client, load)
    assert verdict.holds, verdict.problems
    assert load.seen.num_errors == 0


async def migrated(folder: Path, database_url: str) -> int:
    """What `hone migrate` of a version that has one more revision ends with."""
    newer = folder / "newer" / "migrations"
    shutil.copytree(ROOT / "migrations", newer, ignore=shutil.ignore_patterns("__pycache__"))
    head = max(path.name[:4] for path in (newer / "versions").glob("0*.py"))
    (newer / "versions" / "9999_next.py").write_text(textwrap.dedent(NEXT_REVISION.format(head=head)))
    path = os.pathsep.join([str(newer.parent), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "HONE_DATABASE_URL": database_url, "HONE_DATA_DIR": str(folder / "none")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "migrate", env=env, cwd=newer.parent
    )
    return await process.wait()
