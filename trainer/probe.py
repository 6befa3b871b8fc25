"""The tokens by which an engine's version is recognised: those a version changed most.

One step is often smaller than the noise of bf16, so tokens are looked for where this version differs most from both the
version before and the base, among the likeliest 20 of a position, since an engine tells no others. Scored at
temperature 1. Judging an engine by them is the gateway's part.

Axes: N positions, V vocabulary, K = 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import torch
from torch import Tensor

from tracker.samples import Row
from tracker.types import ProbePoint
from trainer.grpo import PolicyTrainer
from trainer.scoring import logits_of

MAX_ROWS: Final = 8
MAX_POSITIONS: Final = 16
"""Of one row."""
MAX_POINTS: Final = 12
NUM_LIKELY: Final = 20


def probe_points(
    trainer: PolicyTrainer, rows: Sequence[Row], previous: dict[str, Tensor] | None
) -> tuple[ProbePoint, ...]:
    """Points from the shortest rows, most telling first. `previous` are the weights before; `None` is the base."""
    chosen = _contexts(rows)
    current_NV, base_NV, previous_NV = _under_each(trainer, chosen, previous)
    likely_NK = current_NV.topk(min(NUM_LIKELY, current_NV.shape[1])).indices
    now, base, before = (values.gather(1, likely_NK) for values in (current_NV, base_NV, previous_NV))
    change_N, place_N = torch.minimum((now - base).abs(), (now - before).abs()).max(dim=1)
    prompts = [row.prompt_ids + row.sampled_ids[:end] for row in chosen for end in range(len(row.sampled_ids))]
    order = [int(number) for number in change_N.argsort(descending=True)[:MAX_POINTS]]
    return tuple(
        ProbePoint(
            prompt_ids=prompts[number],
            token_id=int(likely_NK[number, place]),
            logprob=float(now[number, place]),
            previous=float(before[number, place]),
            base=float(base[number, place]),
        )
        for number in order
        for place in [int(place_N[number])]
    )


def _contexts(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The shortest rows with different prompts, cut to their first tokens, at temperature 1."""
    by_prompt = {row.prompt_ids: row for row in sorted(rows, key=lambda row: -len(row.prompt_ids))}
    shortest = sorted(by_prompt.values(), key=lambda row: len(row.prompt_ids))[:MAX_ROWS]
    return tuple(
        msgspec.structs.replace(row, sampled_ids=row.sampled_ids[:MAX_POSITIONS], temperature=1.0) for row in shortest
    )


def _under_each(
    trainer: PolicyTrainer, rows: tuple[Row, ...], previous: dict[str, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(N, V) log-probabilities of these rows' positions under this version, the base, and the version before."""
    with torch.no_grad():
        current_NV = _logprobs(trainer, rows)
        with trainer.lora.disable_adapter():
            base_NV = _logprobs(trainer, rows)
        if previous is None:
            return current_NV, base_NV, base_NV
        weights = trainer.adapter_weights()
        trainer.load_adapter_weights(previous)
        try:
            return current_NV, base_NV, _logprobs(trainer, rows)
        finally:
            trainer.load_adapter_weights(weights)


def _logprobs(trainer: PolicyTrainer, rows: tuple[Row, ...]) -> Tensor:
    parts: dict[int, Tensor] = {}
    for micro_batch in trainer.plan(rows).micro_batches:
        for one in micro_batch:
            logits = logits_of(trainer.lora, trainer.head, one, rows)
            exact = torch.promote_types(logits.dtype, torch.float32)
            lengths = [len(rows[number].sampled_ids) for number in one.row_numbers]
            pieces = torch.split(torch.log_softmax(logits.to(exact), dim=-1), lengths)
            parts |= dict(zip(one.row_numbers, pieces, strict=True))
    return torch.cat([parts[number] for number in range(len(rows))])
