"""The adapter of a policy: what it is like, and whether engines can serve it.

The rule: what vLLM and the embedded engine would refuse, or load and ignore, is refused before anything is trained.
"""

from __future__ import annotations

from typing import Final

from peft import LoraConfig

from tracker.errors import SettingsError
from trainer.config import TrainerSettings

UNSERVED_TARGETS: Final = ("lm_head", "embed_tokens", "embed_in", "embed_out", "wte", "wpe")


def lora_config(settings: TrainerSettings) -> LoraConfig:
    """The policy's adapter, refused if no engine could serve it."""
    lora = settings.policy.lora
    targets = [lora.target] if isinstance(lora.target, str) else list(lora.target)
    for target in targets:
        if target.rsplit(".", 1)[-1] in UNSERVED_TARGETS:
            raise SettingsError(f"lora.target: engines cannot serve adapters on {target}; write all-linear.")
    if settings.max_lora_rank is not None and lora.r > settings.max_lora_rank:
        raise SettingsError(f"lora.r: engines take ranks up to {settings.max_lora_rank}, not {lora.r}.")
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] - peft divides by r; fractions are fine
        target_modules=lora.target if isinstance(lora.target, str) else list(lora.target),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    check_servable(config)
    return config


def check_servable(config: LoraConfig) -> None:
    """Refuse what vLLM and the embedded engine do not load."""
    if config.use_dora:
        raise SettingsError("lora: engines cannot serve DoRA.")
    if config.bias != "none" or config.lora_bias:
        raise SettingsError("lora: engines cannot serve a bias.")
    if config.modules_to_save:
        raise SettingsError("lora: engines cannot serve modules_to_save.")
