"""A gateway of an older release goes on where the schema is this one's, beside a gateway of now, and is started again.

Its code comes from this repository's history: the last commit that did not know `NEWER` yet.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from bench.faulting.load import GROUP_SIZE, Load
from bench.faulting.reading import read_back, unsettled
from bench.faulting.servers import ROOT, GatewayServer
from bench.faulting.stage import RUN_SETTINGS, SETTINGS, Stage, open_stage
from bench.faulting.verdict import judge
from tests.e2e.stack import until

pytestmark = pytest.mark.slow
NEWER = "migrations/versions/0006_finding_episodes.py"
"""A revision that the older release has never seen."""
NUM_EPISODES = 2 * GROUP_SIZE
AT_ONCE = 6


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The tree of the older release."""
    try:
        added = git("log", "--diff-filter=A", "--format=%H", "--", NEWER).decode().split()
        commit = git("rev-parse", "--verify", "--quiet", f"{added[-1]}^") if added else b""
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"there is no git history here: {error}")
    if not commit:
        pytest.skip(f"the git history here does not go back to before {NEWER}")
    tree = tmp_path / "older"
    packages = ("gateway", "tracker", "trainer", "migrations")
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit.decode().strip(), *packages))) as archive:
        archive.extractall(tree, filter="data")
    assert not (tree / NEWER).exists()
    return tree


@asynccontextmanager
async def gateway_of(tree: Path, stage: Stage, folder: Path) -> AsyncIterator[GatewayServer]:
    """One more gateway on the stage, with the code in this tree."""
    assert stage.redis_relay is not None
    assert stage.sql_relay is not None
    settings = {
        **SETTINGS,
        "HONE_ENGINES": f"http://{stage.engine_relay.address}",
        "HONE_REDIS_URL": f"redis://{stage.redis_relay.address}/0",
        "HONE_DATABASE_URL": f"postgresql://postgres@{stage.sql_relay.address}/postgres",
        "PYTHONPATH": str(tree),
    }
    gateway = GatewayServer(folder, settings)
    try:
        await gateway.start(stage.http)
        yield gateway
    finally:
        await gateway.program.stop()


async def routes(stage: Stage, url: str) -> set[str]:
    return set((await stage.http.get(f"{url}/openapi.json")).json()["paths"])


async def revision(stage: Stage) -> str:
    assert stage.ledger is not None
    return str(await stage.ledger.read(lambda connection: connection.scalar(text("SELECT * FROM alembic_version"))))


async def played(stage: Stage, urls: list[str], run: str) -> None:
    """A small load through these gateways; nothing of it is lost or wrong, whichever of them served it."""
    [client] = stage.clients
    await client.create_run(run, **RUN_SETTINGS)
    load = Load(urls, stage.key, stage.session, run)
    await load.play(NUM_EPISODES, AT_ONCE)

    async def is_archived() -> bool:
        return await unsettled(client, run) == 0

    await until(is_archived, every_s=0.1)
    assert stage.ledger is not None
    verdict = judge(load.seen, await read_back(client, stage.ledger, run, load.seen.episodes.values(), []))
    assert verdict.holds, verdict.problems
    assert load.seen.num_errors == 0


async def test_an_older_gateway_serves_on_the_schema_of_now(older: Path, tmp_path: Path) -> None:
    head = max(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("0*.py"))
    async with open_stage(tmp_path / "stage", num_gateways=1) as stage:
        assert await revision(stage) == head
        async with gateway_of(older, stage, tmp_path / "gateway-older") as gateway:
            assert await routes(stage, gateway.url) < await routes(stage, stage.urls[0])
            await played(stage, [gateway.url], "alone")
            await played(stage, [stage.urls[0], gateway.url], "beside")
            await gateway.program.stop()
            await gateway.start(stage.http)
            await played(stage, [gateway.url], "again")
        assert await revision(stage) == head
