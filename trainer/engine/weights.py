"""The model in memory: loading it, what of it the engine needs to know, and one forward over a planned step.

The rule: a model that the slots cannot serve exactly (sliding windows, recurrent layers, position encodings that depend
on the length of the batch, softcapped attention) is refused at start, not served approximately. Adapters are added by
`adapters.py`; who calls forward, and when, is the scheduler's.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tracker.errors import SettingsError
from trainer.engine.attention import ATTENTION_NAME, StepPlan, register_attention
from trainer.engine.config import EngineConfig
from trainer.engine.slots import BLOCK, CacheShape

# transformers' own types are partial: what crosses this seam is typed here.
_tokenizers: Any = AutoTokenizer
_models: Any = AutoModelForCausalLM


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    return _tokenizers.from_pretrained(path)


def load_model(path: str, dtype_name: str) -> PreTrainedModel:
    """Load the base weights for serving: no gradients, no dropout, attention over slots."""
    model: PreTrainedModel = _models.from_pretrained(path, dtype=_dtype(dtype_name))
    _refuse_unservable(model.config)
    register_attention()
    cast(Any, model).set_attn_implementation(ATTENTION_NAME)
    model.eval().requires_grad_(False)
    return model


def _dtype(name: str) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _refuse_unservable(config: PretrainedConfig) -> None:
    kinds: set[str] = set(getattr(config, "layer_types", None) or ())
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    reasons = {
        "layers other than full attention": bool(kinds - {"full_attention"})
        or (not kinds and getattr(config, "sliding_window", None) is not None),
        "a rotary encoding that depends on the length": rope.get("rope_type") in {"dynamic", "longrope"},
        "softcapped attention": getattr(config, "attn_logit_softcapping", None) is not None,
        "an encoder": bool(getattr(config, "is_encoder_decoder", False)),
    }
    for what, is_so in reasons.items():
        if is_so:
            raise SettingsError(f"the embedded engine cannot serve {config.model_type}: it has {what}; use vLLM for it")


def cache_shape(config: PretrainedConfig, dtype: torch.dtype, settings: EngineConfig) -> CacheShape:
    heads = config.num_attention_heads
    return CacheShape(
        num_layers=config.num_hidden_layers,
        num_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=dtype,
        max_slots=settings.max_num_seqs,
        max_len=settings.max_model_len,
        max_blocks=settings.prefix_tokens // BLOCK,
    )


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end an answer: those of the generation settings and the tokenizer's own."""
    configured: int | list[int] | None = getattr(model.generation_config, "eos_token_id", None)
    own: int | None = cast(Any, tokenizer).eos_token_id
    many = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in [*many, own] if i is not None)


def forward(model: PreTrainedModel, ids: Sequence[int], plan: StepPlan) -> torch.Tensor:
    """Run the step's tokens through the model and return the logits `[P, V]` after each piece's last token."""
    output = model(
        input_ids=torch.tensor([ids]),
        position_ids=plan.positions_N[None],
        use_cache=False,
        logits_to_keep=plan.last_P,
        plan=plan,
    )
    logits: torch.Tensor = output.logits
    return logits[0]


def context_limit(config: PretrainedConfig, settings: EngineConfig) -> int:
    """The most tokens of prompt and answer: what was asked for, if the model was made for as many."""
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and settings.max_model_len > most:
        raise SettingsError(f"--max-model-len {settings.max_model_len} is more than the model's own {most}")
    return settings.max_model_len
