"""What is asked of an engine before it gets calls: does it score what it samples from, does it serve a version.

Both are answered by a few one-token completions, not by what the engine says of itself: vLLM accepts adapters whose
weights land on no layer and then serves the bare model under their name. How the answers are judged is in `scoring.py`
and `probe.py`; what follows from them is left to `engines.py` and `hotswap.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from gateway.engine_api import EngineApi
from gateway.probe import Told, is_blind, judge_probe, logprob_in
from gateway.routing import EXACT
from gateway.scoring import PROMPT, TEMPERATURES, Scoring, judge
from tracker.errors import Conflict, SettingsError, UpstreamFailed
from tracker.settings import PolicySettings
from tracker.types import Probe

LOG: Final = logging.getLogger("hone.engines")
EXACT_ROUTES: Final = ("/v1/chat/completions/render", "/inference/v1/generate", "/v1/chat/completions/derender")
"""What a call that is prompted exactly asks for."""
HOW_TO_SERVE_IDS: Final = "start vLLM with --enable-scale-out"
PROMPTS: Final = (PROMPT, "Once upon a time", "def main():")
HOW_TO_SCORE: Final = "start it with --logprobs-mode processed_logprobs"


async def check_scoring(api: EngineApi, url: str, base: str) -> Scoring:
    """Two scored completions at two temperatures; raises `SettingsError` for an engine of no use in training."""
    try:
        one, other = [await api.score(url, base, PROMPT, temperature) for temperature in TEMPERATURES]
    except UpstreamFailed as error:
        LOG.warning("the scores of %s could not be checked: %s", url, error.message)
        return Scoring.UNKNOWN
    scoring = judge(one, other)
    if scoring is Scoring.UNSCALED:
        raise SettingsError(
            f"HONE_ENGINES: {url} reports log-probabilities that are not those of the distribution it samples from "
            f"(not processed_logprobs); {HOW_TO_SCORE}."
        )
    if scoring is Scoring.UNKNOWN:
        LOG.warning("%s gives no alternatives with its log-probabilities; they could not be checked", url)
    return scoring


async def check_exact(api: EngineApi, url: str, policies: Collection[PolicySettings]) -> None:
    """Raise `SettingsError` if a policy is prompted exactly and the engine cannot render, or generate from ids."""
    exact = [policy.name for policy in policies if policy.prompting == EXACT]
    missing = [path for path in EXACT_ROUTES if not await api.serves(url, path)] if exact else []
    if missing:
        raise SettingsError(
            f'policies: {", ".join(exact)} has prompting = "exact", and the engine at {url} does not serve '
            f'{", ".join(missing)}; {HOW_TO_SERVE_IDS}, or write prompting = "plain".'
        )


async def recognise(api: EngineApi, url: str, name: str, probe: Probe | None) -> str:
    """Raise `Conflict` unless the engine serves under this name what the trainer made; else how sure that is."""
    if probe is None or is_blind(probe):
        return "probe: weak (the digest decides)"
    scored: list[Told | None] = []
    for point in probe.points:
        top = await api.score(url, name, point.prompt_ids, 1.0)
        scored.append(logprob_in(top, point.token_id))
    verdict = judge_probe(probe, scored)
    if not verdict.accepted:
        raise Conflict(f"the engine at {url} does not serve it: {verdict.detail}")
    return verdict.detail


async def refuse_idle(api: EngineApi, url: str, name: str, base: str) -> None:
    """Raise `Conflict` if the engine answers under a name to the last digit as its base does.

    For weights that are no small change: tensors that land on no layer are left out by vLLM without a word.
    """
    for prompt in PROMPTS:
        if await api.score(url, name, prompt, 1.0) != await api.score(url, base, prompt, 1.0):
            return
    raise Conflict(
        f"the engine at {url} answers under {name} exactly as without it: "
        "the tensors of the adapter are named for no layer of the model"
    )
