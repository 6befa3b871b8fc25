"""One fault, from its load to its verdict.

The load begins, the fault comes when a fifth of the episodes is done, and the load goes on to its end. Recovery is what
passes from the end of the fault until every gateway is ready and an episode of its own goes through each. Then
everything has to come to rest by itself: episodes archived, groups trained or skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from bench.faulting.catalogue import Fault
from bench.faulting.load import Failed, Load, Refused
from bench.faulting.reading import read_back, unsettled, untrained
from bench.faulting.stage import RUN_SETTINGS, Stage
from bench.faulting.takers import FastClock, Taker
from bench.faulting.verdict import Verdict, judge, num_refused_and_stored
from tracker.errors import HoneError

AT_ONCE = 24
REST_S = 120.0
LOOK_S = 0.1
NUM_TAKERS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fault did."""

    fault: Fault
    verdict: Verdict
    num_episodes: int
    recovery_s: float
    wall_s: float
    num_errors: int
    num_retries: int
    num_refused_and_stored: int
    num_late_writes: int
    """Writes of takers that had lost their lease, all refused."""


async def tried(fault: Fault, stage: Stage, num_episodes: int, run: str) -> Outcome:
    """Play the load with the fault in it, and judge."""
    began = time.monotonic()
    await stage.clients[0].create_run(run, **RUN_SETTINGS)
    clock = FastClock()
    takers = [Taker(f"taker-{n}", stage.database_url, stage.folder / f"taker-{n}", clock) for n in range(NUM_TAKERS)]
    load = Load(stage.urls, stage.key, stage.session, run)
    for taker in takers:
        taker.start()
    try:
        playing = asyncio.create_task(load.play(num_episodes, AT_ONCE))
        recovery_s = await _fault_and_recovery(fault, stage, load, num_episodes)
        await playing
        troubles = await _rest(stage, run)
    finally:
        for taker in takers:
            taker.stop()
        await asyncio.gather(*(asyncio.to_thread(taker.join) for taker in takers))
    troubles += [f"{taker.failure!r}" for taker in takers if taker.failure is not None]
    load.seen.given_up += troubles
    trained = [batch for taker in takers for batch in taker.diary.trained]
    assert stage.ledger is not None
    stored = await read_back(stage.clients[0], stage.ledger, run, load.seen.episodes.values(), trained)
    return Outcome(
        fault=fault,
        verdict=judge(load.seen, stored),
        num_episodes=num_episodes,
        recovery_s=recovery_s,
        wall_s=time.monotonic() - began,
        num_errors=load.seen.num_errors,
        num_retries=load.seen.num_retries,
        num_refused_and_stored=num_refused_and_stored(load.seen, stored.rewards),
        num_late_writes=sum(taker.diary.num_refused for taker in takers),
    )


async def _fault_and_recovery(fault: Fault, stage: Stage, load: Load, num_episodes: int) -> float:
    """Seconds from the end of the fault until everything works again."""
    while load.seen.num_done < num_episodes // 5:
        await asyncio.sleep(LOOK_S / 10)
    await fault.inject(stage)
    over = time.monotonic()
    works = asyncio.gather(*(_until_works(stage, number) for number in range(len(stage.urls))))
    try:
        await asyncio.wait_for(works, REST_S)
    except TimeoutError:
        load.seen.given_up.append(f"not every gateway works again after {REST_S:g} s")
    return time.monotonic() - over


async def _until_works(stage: Stage, number: int) -> None:
    """One gateway is ready, and an episode with a call and a reward goes through it."""
    gateway, client = stage.gateways[number], stage.clients[number]
    probe = Load([gateway.url], stage.key, stage.session, "default")
    while True:
        if await gateway.is_ready(stage.http):
            try:
                key = f"probe-{time.time_ns()}-{number}"
                episode = await client.start_episode("probe", idempotency_key=key)
                await probe.ask(episode["episode_id"], [{"role": "user", "content": key}], streams=True)
                await client.reward(episode["episode_id"], 1.0, idempotency_key=key)
            except (Failed, Refused, HoneError):
                pass  # not yet
            else:
                return
        await asyncio.sleep(LOOK_S)


async def _rest(stage: Stage, run: str) -> list[str]:
    """Wait until nothing is left to be done; what is left all the same, in words."""
    left = Counter[str]()
    try:
        async with asyncio.timeout(REST_S):
            for what, number in (("episodes are not archived", unsettled), ("groups are not trained", untrained)):
                while (count := await number(stage.clients[0], run)) > 0:
                    left[what] = count
                    await asyncio.sleep(2 * LOOK_S)
                del left[what]
    except TimeoutError:
        return [f"after {REST_S:g} s {number} {what}" for what, number in left.items()]
    return []
