"""From the model name an agent asks for to the policy it means, and the settings the answer is sampled with.

On trained calls the policy's sampling replaces the agent's, every field written out, because an engine fills what is
left open from the model's own generation config; the agent's stands where the run says so, and on eval runs. What was
sent is recorded on the call. Engines and versions are chosen elsewhere. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tracker.errors import NotFound
from tracker.types import Record, RunSettings, Sampling

EXACT: Final = "exact"
"""The prompting under which stored ids stand in for what would be tokenised again."""
JOKER: Final = "*"
"""Stands for any characters in the name of an upstream's model."""
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


class UpstreamModels(Record, frozen=True):
    """Which models an upstream answers."""

    upstream: str
    """Its name in the settings."""
    url: str
    models: tuple[str, ...]
    """Names, or patterns with `*`."""


def find_route(model: str, policies: Sequence[PolicyRoute], upstreams: Sequence[UpstreamModels] = ()) -> Route:
    """What a model name means: a policy, or a model of an upstream.

    A name that stands there as it is wins over every pattern, and a longer pattern over a shorter one. With one policy
    and no upstreams, every name means that policy. Raises `NotFound` naming what there is.

    >>> find_route("gpt-4o", [PolicyRoute(name="solver")]).name
    'solver'
    >>> openai = UpstreamModels(upstream="openai", url="https://api.openai.com/v1", models=("gpt-*",))
    >>> find_route("gpt-4o", [PolicyRoute(name="solver")], [openai])
    UpstreamRoute(name='gpt-4o', url='https://api.openai.com/v1', upstream='openai')
    """
    for policy in policies:
        if model == policy.name or model in policy.aliases:
            return policy
    upstream = _upstream_of(model, upstreams)
    if upstream is not None:
        return UpstreamRoute(name=model, url=upstream.url, upstream=upstream.upstream)
    if len(policies) == 1 and not upstreams:
        return policies[0]
    names = {name for policy in policies for name in (policy.name, *policy.aliases)}
    told = ", ".join(sorted(names.union(*(upstream.models for upstream in upstreams))))
    raise NotFound(f"There is no model {model!r}; there are: {told}.", param="model", code="model_not_found")


def _upstream_of(model: str, upstreams: Sequence[UpstreamModels]) -> UpstreamModels | None:
    fits = [
        (name == model, len(name), -number)
        for number, upstream in enumerate(upstreams)
        for name in upstream.models
        if name == model or (JOKER in name and _pattern(name).fullmatch(model))
    ]
    return upstreams[-max(fits)[2]] if fits else None


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in name.split(JOKER)), re.DOTALL)


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
