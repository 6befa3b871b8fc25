"""Evaluates versions of a policy on held-out tasks, greedily, while training goes on:

    hone up                                             # in one terminal, with whatever trains in it
    python examples/evaluate.py --versions 0 3          # in another: the base model, and version 3

Episodes of an eval run have no group and are never trained; each is pinned to the version it was opened with, however
many are published meanwhile. The agent is `lookup_agent.py` as it is: it is told to be greedy by its own setting, and
an eval run leaves an agent's sampling alone.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import uuid
from pathlib import Path
from typing import Any

from gateway.client import Client

AGENT = Path(__file__).with_name("lookup_agent.py")
ITEM_LIST = """
    anchor barrel compass dagger emblem flute goblet helmet icon jar kite lantern medal necklace organ pipe
"""
ITEMS = ITEM_LIST.split()
"""Words that no other example trains on."""
AT_ONCE = 8
Json = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluate versions of a policy, greedily.")
    parser.add_argument("--url", default="http://127.0.0.1:8600", help="where the gateway is")
    parser.add_argument("--data-dir", type=Path, default=Path(".hone"), help="where `hone up` wrote its keys")
    parser.add_argument("--policy", default="solver")
    parser.add_argument("--versions", type=int, nargs="+", default=[0], help="0 is the bare base model")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--run", default="held-out", help="an eval run; it is made if it is not there")
    return parser.parse_args()


def is_won(outcome: Json) -> bool:
    """Both turns as they should be, each ended by the model itself."""
    turns = outcome.get("turns", [])
    if len(turns) != 2 or turns[1]["finish_reason"] != "stop":
        return False
    return turns[1]["content"] == str(outcome["price"])


async def evaluate(asked: argparse.Namespace, version: int, starter: Client, scorer: Client) -> list[float]:
    """One episode for each item, pinned to the version; what each was scored."""
    prices = random.Random(0)
    jobs: dict[str, Json] = {}
    for item in ITEMS:
        episode = await starter.start_episode(
            f"price of {item}", run=asked.run, policy=asked.policy, version=version, idempotency_key=uuid.uuid4().hex
        )
        job = {"job": episode["episode_id"], "item": item, "price": prices.randint(11, 99), "env": episode["env"]}
        jobs[episode["episode_id"]] = job
    env = {**os.environ, "AGENT_MODEL": asked.policy, "AGENT_TEMPERATURE": str(asked.temperature)}
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        str(AGENT),
        "--worker",
        str(AT_ONCE),
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await agent.communicate("".join(f"{json.dumps(job)}\n" for job in jobs.values()).encode())
    scores: list[float] = []
    for line in printed.decode().splitlines():
        outcome = json.loads(line)
        if "error" in outcome:
            print(f"  {outcome['error']}")
            await starter.finish(outcome["job"], "infra_error")
            continue
        scores.append(float(is_won(outcome)))
        await scorer.reward(outcome["job"], scores[-1], idempotency_key=outcome["job"])
    return scores


async def main() -> None:
    asked = arguments()
    keys = json.loads((asked.data_dir / "keys.json").read_text())
    async with (
        Client(asked.url, keys["agent"]) as starter,
        Client(asked.url, keys["reward"]) as scorer,
        Client(asked.url, keys["admin"]) as admin,
    ):
        await admin.create_run(asked.run, mode="eval")
        for version in asked.versions:
            scores = await evaluate(asked, version, starter, scorer)
            rate = sum(scores) / len(scores) if scores else 0.0
            print(f"{asked.policy} version {version}: {rate:.0%} of {len(scores)} at temperature {asked.temperature:g}")


if __name__ == "__main__":
    asyncio.run(main())
