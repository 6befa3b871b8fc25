"""From the model name an agent asks for to the policy it means, and the settings the answer is sampled with.

On trained calls the policy's sampling replaces the agent's, every field written out, because an engine fills what is
left open from the model's own generation config; the agent's stands where the run says so, and on eval runs. What was
sent is recorded on the call. Engines and versions are chosen elsewhere. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracker.errors import NotFound
from tracker.types import Record, RunSettings, Sampling

NEUTRAL: Final[Mapping[str, float]] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Penalties that change nothing."""
BIASES: Final = (
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "length_penalty",
    "logit_bias",
    "logits_processors",
    "min_tokens",
    "thinking_token_budget",
    "use_beam_search",
)
"""Fields that change the distribution and have no place in a policy's sampling."""
KNOBS: Final = ("temperature", "top_p", "top_k", "min_p", *NEUTRAL, *BIASES)
"""Every field that the policy's sampling replaces."""


class PolicyRoute(Record, frozen=True):
    """What the door must know of a policy."""

    name: str
    aliases: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    prompting: str = "plain"
    """`plain`: the engine renders the conversation; `exact`: stored ids stand in for what would be tokenised again."""


class UpstreamRoute(Record, frozen=True):
    """A model that is no policy, at a server that is no engine of ours: its calls are recorded as words only."""

    name: str
    """The model name there."""
    url: str
    """What comes before `/chat/completions`, as a base URL has it."""
    upstream: str
    """Its name in the settings: where its key is found, and what the call shows as its engine."""


Route = PolicyRoute | UpstreamRoute


def find_policy(model: str, policies: Sequence[PolicyRoute]) -> PolicyRoute:
    """The policy that a model name means; with one policy, every name means it.

    >>> find_policy("gpt-4o", [PolicyRoute(name="solver")]).name
    'solver'
    """
    for policy in policies:
        if model == policy.name or model in policy.aliases:
            return policy
    if len(policies) == 1:
        return policies[0]
    names = ", ".join(sorted(name for policy in policies for name in (policy.name, *policy.aliases)))
    raise NotFound(f"There is no model {model!r}; there are: {names}.", param="model", code="model_not_found")


def uses_policy_sampling(run: RunSettings) -> bool:
    """Whether the policy's sampling overrides the agent's on calls of this run."""
    return run.mode == "train" and run.sampling == "policy"


def override(policy: Sampling, asked: Sampling) -> Sampling:
    """The settings of a trained call: the policy's distribution, under the agent's limit and seed."""
    return Sampling(
        temperature=policy.temperature,
        top_p=policy.top_p,
        top_k=policy.top_k,
        min_p=policy.min_p,
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        constrained=asked.constrained,
    )


def knobs(sampling: Sampling) -> dict[str, float | int]:
    """The fields an engine is sent for these settings, none left to its defaults."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        **NEUTRAL,
    }


def sampling_of(run: RunSettings, policy: Sampling, asked: Sampling, given: frozenset[str]) -> Sampling:
    """What a call is really sampled with: the policy's settings, or the agent's where it named them."""
    if uses_policy_sampling(run):
        return override(policy, asked)
    return Sampling(
        temperature=asked.temperature if "temperature" in given else policy.temperature,
        top_p=asked.top_p if "top_p" in given else policy.top_p,
        top_k=asked.top_k if "top_k" in given else policy.top_k,
        min_p=asked.min_p if "min_p" in given else policy.min_p,
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        constrained=asked.constrained,
        biased=asked.biased,
    )
