"""What holds of groups whatever happens in whatever order: places, membership, and states that nothing leaves."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracker.databases import Clock
from tests.tracker.filling import archived, batch, created, rewarded
from tracker.errors import Conflict, Gone, NotFound
from tracker.ledger import SqlLedger
from tracker.rounds import DONE
from tracker.sql import open_engine
from tracker.types import EpisodeState, EpisodeStatus, Group, GroupState, RunSettings

NUM_EPISODES = 6
EPISODE = st.integers(0, NUM_EPISODES - 1).map(lambda number: f"e{number}")
ACTION = st.one_of(
    st.tuples(st.just("create"), EPISODE),
    st.tuples(st.just("reward"), EPISODE),
    st.tuples(st.just("archive"), EPISODE),
    st.tuples(st.just("delete"), EPISODE),
    st.tuples(st.sampled_from(tuple(EpisodeStatus)), EPISODE),
    st.tuples(st.sampled_from(("settle", "wait", "take")), st.just("")),
)


class World:
    """A ledger, the time, and how its groups stood before."""

    def __init__(self, ledger: SqlLedger) -> None:
        self.ledger = ledger
        self.now_ms = 1_000_000
        self.step = 0
        self.before: dict[str, Group] = {}

    async def act(self, action: str, episode_id: str) -> None:
        """Do it if it can be done now; a refusal is an answer too."""
        try:
            await self._act(action, episode_id)
        except (NotFound, Conflict, Gone):
            return

    async def _act(self, action: str, episode_id: str) -> None:
        match action:
            case "create":
                await created(self.ledger, episode_id, created_ms=self.now_ms)
            case "reward":
                await rewarded(self.ledger, episode_id, float(episode_id[1:]), created_ms=self.now_ms)
            case "archive":
                await archived(self.ledger, episode_id, at_ms=self.now_ms)
            case "delete":
                await self.ledger.delete_episode("default", episode_id)
            case "settle":
                await self.ledger.settle_groups(self.now_ms)
            case "wait":
                self.now_ms += 400_000
            case "take":
                await self._take()
            case status:
                await self.ledger.end_episode(episode_id, EpisodeStatus(status), self.now_ms)

    async def _take(self) -> None:
        fence = await self.ledger.take_lease("p", "trainer", self.now_ms, 1)
        assert fence is not None
        for group in await self.ledger.ready_groups(
            "p", [head.group_id for head in await self.ledger.ready_heads("p")][:1]
        ):
            assert all(member.state is EpisodeState.ARCHIVED for member in group.members)
            self.step += 1
            taken = await self.ledger.take(batch(group, fence, self.step))
            await self.ledger.mark_trained(taken)

    async def check(self) -> None:
        """The laws."""
        groups, _ = await self.ledger.list_groups("default", run=None, task=None, limit=99, cursor=None)
        rows, _ = await self.ledger.list_episodes("default", run=None, task=None, status=None, limit=99, cursor=None)
        seats = [(row.head.group_id, row.member) for row in rows if row.member is not None]
        assert len(seats) == len(set(seats)), "a place is held once"
        assert all(0 <= place < 2 for _, place in seats)
        assert sorted(group.round for group in groups) == list(range(len(groups))), "rounds have no gaps"
        listed = [member.episode_id for group in groups for member in group.members]
        assert sorted(listed) == sorted(row.head.episode_id for row in rows), "an episode is in one group"
        for group in groups:
            old = self.before.get(group.group_id, group)
            assert old.state not in DONE or old.state == group.state, "nothing leaves trained or skipped"
            assert old.state is GroupState.OPEN or group.state is not GroupState.OPEN, "no round opens again"
        self.before = {group.group_id: group for group in groups}


async def play(path: Path, actions: list[tuple[str, str]]) -> None:
    ledger = SqlLedger(open_engine(f"sqlite:///{path}"), Clock())
    try:
        await ledger.put_run("default", RunSettings(run="default", group_size=2))
        world = World(ledger)
        for action, episode_id in actions:
            await world.act(action, episode_id)
            await world.check()
    finally:
        await ledger.close()


@pytest.mark.slow
def test_places_are_held_once_and_nothing_ends_twice(migrated_file: Path) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(ACTION, max_size=40))
    def holds(actions: list[tuple[str, str]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "hone.db"
            shutil.copy(migrated_file, path)
            asyncio.run(play(path, actions))

    holds()
