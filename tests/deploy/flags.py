"""vLLM's flags as a mapping, so that two ways of writing them compare; and those that Hone itself would start with."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.local.vllm import command_line, derived_options
from tracker.settings import LoraSettings
from tracker.types import RunSettings

OWN = ("--host", "--port")
"""Where it listens is the deployment's."""


def vllm_flags(words: Sequence[str]) -> dict[str, str]:
    """What follows `vllm serve MODEL`, without where it listens."""
    rest = list(words)[list(words).index("serve") + 2 :]
    parts = [part for word in rest for part in word.split("=", 1)]
    found: dict[str, str] = {}
    for place, word in enumerate(parts):
        if word.startswith("--"):
            after = parts[place + 1] if place + 1 < len(parts) else "--"
            found[word] = "" if after.startswith("--") else after
    return {name: value for name, value in found.items() if name not in OWN}


def wanted_vllm_flags(policies: str, memory_share: float) -> dict[str, str]:
    """What `hone up --engine vllm` would tell an engine of these policies."""
    (model,) = {one.split("=", 1)[1] for one in policies.split(",")}
    options = derived_options(
        name=model,
        max_loras=(RunSettings(run="r").staleness + 2) * len(policies.split(",")),
        max_lora_rank=LoraSettings().r,
        number=0,
        num_engines=1,
    )
    told = {**options, "gpu_memory_utilization": memory_share}
    return vllm_flags(command_line(("vllm", "serve"), model, told))
