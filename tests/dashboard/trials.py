"""A version on trial, for the stage."""

from __future__ import annotations

import asyncio

from tests.dashboard.stories import Told
from tests.fakes.gateways import RunningGateway
from tests.fakes.scripted_engine import ScriptedEngine


async def tell_of_a_trial(gateway: RunningGateway, engine: ScriptedEngine) -> Told:
    """Two versions: the first was promoted by hand, the second is on trial and has played."""
    del engine
    for number in (1, 2):
        name = f"solver-{number}"
        answer = await gateway.publish(name, gateway.adapter(name, name.encode()))
        assert answer.status_code == 201, answer.text
        while not await gateway.ledger.open_trials():
            await asyncio.sleep(0.02)
        if number == 1:
            promoted = await gateway.admin.post("/v1/policies/solver/promote", json={"version": 1})
            assert promoted.is_success, promoted.text
    for place in range(4):
        episode = await gateway.open(task=f"task-{place}")
        await gateway.chat(episode)
        await gateway.admin.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": 0.5})
        await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
    return Told(versions=[1, 2])
