"""Evaluates versions of a policy on held-out tasks, greedily, while training goes on:

    hone up                                             # in one terminal, with whatever trains in it
    python examples/evaluate.py --versions 0 3          # in another: the base model, and version 3

Episodes of an eval run have no group and are never trained; each is pinned to the version it was opened with, however
many are published meanwhile. The agent is `lookup_agent.py` as it is: it is told to be greedy by its own setting, and
an eval run leaves an agent's sampling alone.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from gateway.client import Episode, Hone

AGENT = Path(__file__).with_name("lookup_agent.py")
ITEM_LIST = """
    anchor barrel compass dagger emblem flute goblet helmet icon jar kite lantern medal necklace organ pipe
"""
ITEMS = ITEM_LIST.split()
"""Words that no other example trains on."""
AT_ONCE = 4
AGENT_S = 600
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


def evaluate(asked: argparse.Namespace, version: int, hone: Hone) -> list[float]:
    """One episode for each item, pinned to the version; what each was scored."""
    prices = random.Random(0)
    jobs = {item: prices.randint(11, 99) for item in ITEMS}
    agents = {"AGENT_MODEL": asked.policy, "AGENT_TEMPERATURE": str(asked.temperature)}

    def agent(episode: Episode, item: str) -> float:
        command = [sys.executable, str(AGENT), item, str(jobs[item])]
        env = {**os.environ, **agents, **episode.env}
        told = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, timeout=AGENT_S)
        return float(is_won(json.loads(told.stdout)))

    scores: list[float] = []
    attempts = hone.rollout(
        jobs,
        agent,
        name=lambda item: f"price of {item}",
        run=asked.run,
        policy=asked.policy,
        version=version,
        concurrency=AT_ONCE,
    )
    for attempt in attempts:
        if attempt.reward is None:
            print(f"  {attempt.task}: {attempt.error}")
        else:
            scores.append(attempt.reward)
    return scores


def main() -> None:
    asked = arguments()
    with Hone(asked.url, data_dir=asked.data_dir) as hone:
        hone.create_run(asked.run, mode="eval")
        for version in asked.versions:
            scores = evaluate(asked, version, hone)
            rate = sum(scores) / len(scores) if scores else 0.0
            print(f"{asked.policy} version {version}: {rate:.0%} of {len(scores)} at temperature {asked.temperature:g}")


if __name__ == "__main__":
    main()
