"""Trains one policy on a mix of two families of tasks, two groups of `lookup` for each of `shout`:

    hone up                                  # in one terminal
    python examples/train_cocktail.py        # in another

The agent is `small_tasks.py`. What is played next is what the coming steps lack most; the trainer's steps hold the
families in the proportions that the run asks for.
"""

import asyncio

import openai
from driving import Driver, arguments, driver, score, tell, words_of
from small_tasks import MODEL, play, right_answer

from gateway.client import AsyncEpisode

RUN = "cocktail"
FAMILIES = {"lookup": 2, "shout": 1}


async def attempt(driving: Driver, client: openai.AsyncOpenAI, task: str, episode: AsyncEpisode) -> float:
    """One episode: one answer, and its score."""
    kind, _, word = task.partition("/")
    value = score(await play(client, kind, word), right_answer(kind, word))
    driving.note(kind, value)
    return value


async def main() -> None:
    asked = arguments("Train one policy on two families of tasks.")
    async with driver(asked, RUN, groups_per_step=sum(FAMILIES.values()), credit="batch", families=FAMILIES) as driving:
        await driving.play(FAMILIES, words_of(asked.seed), attempt, {MODEL: asked.versions})
        tell(driving.scores)
        steps = [batch.metrics async for batch in driving.hone.batches() if batch.state == "trained"]
        for metrics in reversed(steps):
            shares = ", ".join(
                f"{family} {share['groups']} groups, reward {share['reward_mean'] or 0:.2f}"
                for family, share in metrics["families"].items()
            )
            print(f"step {metrics['step']}: {shares}")


if __name__ == "__main__":
    asyncio.run(main())
