# %% [markdown]
# # A first agent
#
# With `hone up` in a terminal, this plays a function on a few tasks, a whole group of attempts at each, scores them,
# and waits until they were trained. It finds the gateway and its keys in `./.hone`, or by `HONE_BASE_URL` and
# `HONE_API_KEY`. All that the client can do is in [docs/client.md](../docs/client.md).

# %%
from collections import defaultdict

import openai

from gateway.client import Episode, Hone

hone = Hone()
POLICY = hone.policies()[0].policy
RUN = hone.create_run("first-agent", group_size=4, reward_weights={"short": 0.1}).run
before = hone.policy(POLICY).active
print(f"{POLICY} is at version {before}")

# %% [markdown]
# ## The agent
#
# Any function of an episode and a task, with whatever client it likes: what makes its calls an episode are the address
# and the key. What it returns is the reward. A reward of another name stands beside that one, and weighs what the run
# says.

# %%
TASKS = {
    "Is the sky blue? Answer yes or no.": "yes",
    "Is snow green? Answer yes or no.": "no",
    "Is grass green? Answer yes or no.": "yes",
}


def agent(episode: Episode, task: str) -> float:
    client = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key)
    answer = client.chat.completions.create(model=POLICY, messages=[{"role": "user", "content": task}], max_tokens=32)
    said = (answer.choices[0].message.content or "").lower()
    episode.reward(float(len(said) < 80), name="short", final=False)
    return float(TASKS[task] in said)


# %% [markdown]
# ## Play
#
# What an agent raises is the end of its attempt and of nothing else.

# %%
attempts = list(hone.rollout(TASKS, agent, run=RUN))
for attempt in attempts:
    if attempt.error is not None:
        print(f"{attempt.task} {attempt.episode_id}: {attempt.error!r}")
print(f"{len(attempts)} attempts")

# %% [markdown]
# ## What is compared
#
# Attempts at one task are a group. It is trained once all are scored, if their rewards differ; else its reason is here.

# %%
for group in hone.groups(run=RUN):
    rewards = [member.reward for member in group.members]
    print(f"{group.task:40} {group.state:8} {group.reason or '':12} {rewards}")

# %% [markdown]
# ## The next version
#
# It is live without a restart, and the next episode gets it.

# %%
version = hone.wait_for_version(POLICY, newer_than=before, timeout_s=900)
attempts = list(hone.rollout(TASKS, agent, run=RUN))

# %%
by_version = defaultdict[int, list[float]](list)
for episode in hone.episodes(run=RUN, status="ok"):
    for number in episode.versions.values():
        by_version[number].append(episode.reward or 0.0)
for number, rewards in sorted(by_version.items()):
    print(f"version {number}: reward {sum(rewards) / len(rewards):.2f} of {len(rewards)} episodes")

# %%
hone.close()
