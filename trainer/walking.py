"""Whether a model's layers can be walked as a tree, found out before the first step.

What a configuration says is asked first, for a clear reason. Then the model is tried: a small trie is run packed, and
each of its rows alone. The rule: the trie is used only where it gives the same as rows alone, next to how much
difference another context makes. Everything else runs as merged rows, with a line that says why.

Axes: N trained tokens, V vocabulary.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import random
from typing import Any, Final, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tracker.samples import Row
from trainer.attention import ATTENTION, register_attention
from trainer.micro_batches import plan_tiles, plan_trie
from trainer.scoring import logits_of, output_embeddings

WALKABLE_LAYERS: Final = frozenset({"full_attention", "sliding_attention"})
ROPES_BY_LENGTH: Final = frozenset({"dynamic", "longrope"})
SAME: Final = 0.1
"""Packed and alone may differ by this share of what a wrong context changes; a wrong walk differs by all of that."""
TRIAL_PROMPT: Final = 12
TRIAL_TAILS: Final = ((0, 3), (0, 4), (7, 3), (1, 3))
"""Of each row behind the shared prompt: context of its own, and scored tokens, so that many stand right at a fork."""


def walk_as_tree(model: PreTrainedModel) -> str:
    """Give the model the attention of the trie; where that is not right, leave it as it is and say why."""
    reason = _reason(model)
    if reason:
        return reason
    own = str(cast(Any, model.config)._attn_implementation)
    register_attention()
    rows = _trial_rows(int(cast(Any, model.config).vocab_size))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            alone = _alone(model, rows)
            wrong = _alone(model, _misplaced(rows))
            cast(Any, model).set_attn_implementation(ATTENTION)
            packed = _packed(model, rows)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        cast(Any, model).set_attn_implementation(own)
        return f"its layers do not take the trie's attention ({error})"
    finally:
        model.train(training)
    if not float((packed - alone).abs().mean(dim=1).max()) <= SAME * float((wrong - alone).abs().mean()):
        cast(Any, model).set_attn_implementation(own)
        return "its layers look at other tokens in a way of their own"
    return ""


def _reason(model: PreTrainedModel) -> str:
    """What the configuration says against it."""
    config: Any = model.config
    others = set(getattr(config, "layer_types", None) or ()) - WALKABLE_LAYERS
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    # One kind for the model, or one for each kind of layer.
    parts: list[Any] = [rope, *rope.values()]
    kinds = {cast("dict[str, str]", part).get("rope_type", "") for part in parts if isinstance(part, dict)}
    if others:
        return f"it has layers of kind {', '.join(sorted(others))}"
    if kinds & ROPES_BY_LENGTH:
        return "its positions depend on how long a sequence is"
    if getattr(config, "attn_logit_softcapping", None):
        return "its attention caps scores"
    if any(hasattr(module, "sinks") for module in model.modules()):
        return "its attention has sinks"
    if getattr(config, "vision_config", None) is not None:
        return "it takes images"
    return ""


def _trial_rows(vocabulary: int) -> tuple[Row, ...]:
    chance = random.Random(0)  # noqa: S311 - any tokens will do

    def ids(length: int) -> tuple[int, ...]:
        return tuple(chance.randrange(vocabulary) for _ in range(length))

    prompt = ids(TRIAL_PROMPT)
    return tuple(_row(number, prompt + ids(own), ids(scored)) for number, (own, scored) in enumerate(TRIAL_TAILS))


def _row(number: int, prompt: tuple[int, ...], sampled: tuple[int, ...]) -> Row:
    return Row(
        policy="",
        episode_id="trial",
        call_id=f"trial-{number}",
        choice=0,
        version=0,
        adapter_digest="",
        role="",
        prompt_ids=prompt,
        sampled_ids=sampled,
        logprobs=(0.0,) * len(sampled),
        temperature=1.0,
        receipt=b"",
    )


def _misplaced(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The same rows as a walk that knows no forks would have them: each behind all tokens of the one before it."""
    before: tuple[int, ...] = ()
    wrong: list[Row] = []
    for number, row in enumerate(rows):
        wrong.append(_row(number, before + row.prompt_ids, row.sampled_ids))
        before += row.prompt_ids + row.sampled_ids
    return tuple(wrong)


def _alone(model: PreTrainedModel, rows: tuple[Row, ...]) -> Tensor:
    """(N, V) log-probabilities at the trained positions, each row run by itself with the model's own attention."""
    head = output_embeddings(model)
    found = [logits_of(model, head, plan_tiles((row,), 1).micro_batches[0][0], (row,)) for row in rows]
    return torch.log_softmax(torch.cat(found).double(), dim=-1)


def _packed(model: PreTrainedModel, rows: tuple[Row, ...]) -> Tensor:
    """The same from one pack."""
    ((one,),) = plan_trie(rows, budget=sum(len(row.prompt_ids + row.sampled_ids) for row in rows)).micro_batches
    found = torch.log_softmax(logits_of(model, output_embeddings(model), one, rows).double(), dim=-1)
    pieces = torch.split(found, [len(rows[number].sampled_ids) for number in one.row_numbers])
    by_row = dict(zip(one.row_numbers, pieces, strict=True))
    return torch.cat([by_row[number] for number in range(len(rows))])
