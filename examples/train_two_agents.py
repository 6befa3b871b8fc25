"""Trains the two agents of `two_agents.py`, each as a policy of its own:

    HONE_POLICIES="solver=smollm2,checker=smollm2" hone up        # in one terminal
    python examples/train_two_agents.py                           # in another

The solver is rewarded for its call, the checker for its verdict: an answer's id is what a reward aims at. The reward of
the episode says whether both were right; it has weight 0 here, so that neither is blamed for the other.
"""

import asyncio

import openai
from driving import Driver, arguments, driver, num_published, score, tell, words_of
from two_agents import CHECKER, SOLVER, play

from gateway.client import AsyncEpisode

RUN = "two-agents"
GROUPS_PER_STEP = 2


async def attempt(driving: Driver, client: openai.AsyncOpenAI, task: str, episode: AsyncEpisode) -> float:
    """One episode: both agents play, each is scored for its own call, then the episode as a whole."""
    item = task.partition("/")[2]
    told = await play(client, item)
    is_right = told[SOLVER]["content"] == f"LOOKUP({item})"
    scores = {
        SOLVER: score(told[SOLVER], f"LOOKUP({item})"),
        CHECKER: score(told[CHECKER], "yes" if is_right else "no"),
    }
    for agent, value in scores.items():
        await episode.reward_call(told[agent]["id"], value)
        driving.note(agent, value)
    return float(min(scores.values()) == 1.0)


async def main() -> None:
    asked = arguments("Train a solver and a checker at the same time.")
    async with driver(asked, RUN, groups_per_step=GROUPS_PER_STEP, credit={"own": 1, "episode": 0}) as driving:
        mix = {"lookup": GROUPS_PER_STEP}
        await driving.play(mix, words_of(asked.seed), attempt, {SOLVER: asked.versions, CHECKER: asked.versions})
        tell(driving.scores)
        for policy in await driving.hone.policies():
            print(f"{policy.policy}: {num_published(policy)} versions, {policy.active} is live")


if __name__ == "__main__":
    asyncio.run(main())
