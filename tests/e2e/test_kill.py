"""kill -9 of each process in turn, in the middle of episodes and of training steps: nothing is lost unseen."""

import asyncio
import contextlib
import functools
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.local.up import LocalStack
from tests.e2e.stack import RUN, Player, player, running_stack, until

pytestmark = pytest.mark.slow
NUM_PLAYERS = 3


@contextlib.asynccontextmanager
async def playing(play: Player) -> AsyncIterator[None]:
    """Groups without end, until the block is left; then those begun are played to their end."""
    stopping = asyncio.Event()

    async def loop() -> None:
        while not stopping.is_set():
            await play.group()

    loops = [asyncio.create_task(loop()) for _ in range(NUM_PLAYERS)]
    try:
        yield
    finally:
        stopping.set()
        await asyncio.gather(*loops)


async def is_in_episode(play: Player) -> bool:
    """A call is with the engine right now."""
    return any(engine["num_in_flight"] > 0 for engine in await play.reader.engines())


async def is_in_step(play: Player) -> bool:
    """A batch was taken and is not trained yet."""
    return any(batch["state"] == "taken" for batch in await play.batches())


async def kill(stack: LocalStack, name: str) -> None:
    child = stack.child(name)
    pid = child.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        return child.pid not in (None, pid)

    await until(is_back)


async def test_killing_each_process_in_turn_loses_nothing_unseen(tiny_model: Path, tmp_path: Path):
    async with running_stack(tmp_path, tiny_model) as stack, player(stack) as play:
        async with playing(play):
            for name in ("gateway", "engine", "trainer", "redis"):
                for moment in (is_in_episode, is_in_step):
                    version = await play.active()
                    await until(functools.partial(moment, play), timeout_s=300)
                    await kill(stack, name)
                    await until(functools.partial(has_passed, play, version), timeout_s=600)
        await everything_settles(play)
        await check_every_call(play)
        await check_every_group(play)


async def has_passed(play: Player, version: int) -> bool:
    """The loop went on: at least one more version is live."""
    return await play.active() > version


async def everything_settles(play: Player) -> None:
    """Every episode is archived and no group is being trained."""

    async def is_settled() -> bool:
        states = {episode["state"] async for episode in play.reader.episodes(RUN)}
        groups = {group["state"] async for group in play.reader.groups(RUN)}
        return states == {"archived"} and "taken" not in groups

    await until(is_settled, timeout_s=300)


async def check_every_call(play: Player) -> None:
    """Each choice of each call is in exactly one sample or excluded with a reason."""
    reasons = Counter[str]()
    for episode_id in play.episodes:
        shown = await play.reader.samples(episode_id)
        spans = Counter(span["call_id"] for sample in shown["samples"] for span in sample["spans"])
        excluded = Counter(entry["call_id"] for entry in shown["excluded"])
        calls = [call["call_id"] for call in (await play.reader.timeline(episode_id))["calls"]]
        assert len(set(calls)) == len(calls) == shown["num_calls"]
        assert spans + excluded == Counter(calls), (episode_id, spans, excluded, calls)
        assert all(entry["reason"] for entry in shown["excluded"])
        reasons.update(entry["reason"] for entry in shown["excluded"])
    print("excluded:", dict(reasons))
    assert set(reasons) <= {"lost", "upstream_failed", "client_gone", "superseded", "ambiguous_retry", "stale"}


async def check_every_group(play: Player) -> None:
    """A group is in at most one batch that was not dropped."""
    batches = await play.batches()
    taken = Counter(group_id for batch in batches if batch["state"] != "dropped" for group_id in batch["group_ids"])
    assert taken
    assert max(taken.values()) == 1
    assert len({batch["step"] for batch in batches}) == len(batches)
