"""What an engine is compared with before training begins: how this process reads texts and chats, and how it scores.

Texts and chats become ids by the trainer's own tokenizer and template. The scores are those of the bare base model, of
the likeliest tokens after short prompts (the chats) and after ever longer beginnings of one text: weights that differ
show in all of them, another position encoding (rope base or scaling, a window) in the long ones. Near each depth the
most open position is taken, where a small change of the logits moves the log-probabilities most. Asking the engines is
the gateway's part, and what follows `agreement.py`'s.

Axes: P positions, V vocabulary, K likeliest tokens, D depths, W positions near one depth.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainer.scoring import Inputs, logits_at, output_embeddings

LOG: Final = logging.getLogger("hone.trainer")
NOISE: Final = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.04}
"""Mean distance between a cached decoding and a full pass in this arithmetic, in nats."""
DEPTHS: Final = (16, 32, 64, 128, 256, 384, 1024, 2048, 4096)
CPU_DEPTH: Final = 384
"""The deepest prompt on a CPU, where each token costs a millisecond or more on both sides."""
GPU_DEPTH: Final = 4096
WINDOW: Final = 8
"""How far before each depth the most open position is looked for."""
NUM_LIKELY: Final = 8
MAX_SPECIAL: Final = 8

TEXTS: Final = {
    "a sentence": "The lamp costs 42, the desk 1,999.50; both are in stock.",
    "code": "def f(x):\n\treturn x ** 2  # squared\n\n\nprint(f(3))\n",
    "scripts": "naïve café, Ελληνικά, русский, 漢字かな, العربية, हिन्दी, ไทย",
    "signs": "“quoted” – dash … ½ € ™ \u00a0no-break \u200bzero-width \ufeff",
    "pictures": "👩‍🔬 🇪🇺 👍🏽 e\u0301 🙂",
    "spaces": "  two  three   \t tab\r\nline \n\n end ",
}
"""What tokenizers disagree about: numbers, spaces, other scripts, marks that combine, characters of several bytes."""

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "price_of",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
SYSTEM: Final[dict[str, Any]] = {"role": "system", "content": "You know the prices of a shop."}
ASKED: Final[dict[str, Any]] = {"role": "user", "content": "What does the lamp cost?"}
CHATS: Final[dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]] = {
    "a question": ([ASKED], []),
    "several turns": (
        [
            SYSTEM,
            ASKED,
            {"role": "assistant", "content": "It costs 42."},
            {"role": "user", "content": "And the desk,\n\nthe large one? ✓"},
        ],
        [],
    ),
    "a tool": (
        [
            SYSTEM,
            ASKED,
            {
                "role": "assistant",
                "content": "I look it up.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "price_of", "arguments": '{"item": "lamp"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        ],
        [TOOL],
    ),
}
ITEMS: Final = ("lamp", "desk", "chair", "shelf", "clock", "mirror", "carpet", "vase", "stool", "bench", "frame")
PLACES: Final = ("north shop", "harbour", "old mill", "station", "market hall", "garden house", "depot")

Json = dict[str, Any]


def expected_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_depth: int | None = None) -> Json:
    """The body of `POST /v1/policies/{name}/parity`. `model` is the base, without an adapter."""
    texts = [
        _rendered(tokenizer, f"the text of {name}", _ids(tokenizer, text)) | {"text": text}
        for name, text in _texts(tokenizer)
    ]
    chats = [chat for name in CHATS if (chat := _chat(tokenizer, name)) is not None]
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "dtype": dtype,
        "noise": NOISE.get(dtype, NOISE["bfloat16"]),
        "texts": texts,
        "chats": chats,
        "points": _points(model, tokenizer, [chat["token_ids"] for chat in chats], max_depth),
    }


def long_text(num_lines: int) -> str:
    """A text that speaks of the same few things again and again, so that what stands far back matters at its end."""
    lines = [
        f"{number}. The {ITEMS[number % 11]} in the {PLACES[number % 7]} costs {17 + number * 29 % 83}, "
        f"more than the {ITEMS[number * 3 % 11]} in the {PLACES[number * 5 % 7]}."
        for number in range(num_lines)
    ]
    return "\n".join(lines)


def _points(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, chats: Sequence[list[int]], max_depth: int | None
) -> list[Json]:
    """The end of each chat, and one position near each depth of the long text."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            points = [_point(ids, _scores_at(model, ids, [len(ids) - 1])[0]) for ids in chats if ids]
            return points + _deep_points(model, tokenizer, max_depth)
    finally:
        model.train(was_training)


def _deep_points(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_depth: int | None) -> list[Json]:
    on_cpu = next(model.parameters()).device.type == "cpu"
    limit = max_depth or (CPU_DEPTH if on_cpu else GPU_DEPTH)
    known: object = getattr(model.config, "max_position_embeddings", None)
    limit = min(limit, known - 1) if isinstance(known, int) else limit
    ids = _ids(tokenizer, long_text(1 + limit // 8))[:limit]
    depths = [depth for depth in DEPTHS if depth <= len(ids)]
    windows = [range(depth - WINDOW, depth) for depth in depths]
    if not windows:
        return []
    scores_PV = _scores_at(model, ids, [position for window in windows for position in window])
    openness_P = -(scores_PV.exp() * scores_PV).sum(dim=-1)
    open_DW = openness_P.reshape(len(windows), WINDOW)
    places = [number * WINDOW + int(place) for number, place in enumerate(open_DW.argmax(dim=1))]
    positions = [window[place % WINDOW] for window, place in zip(windows, places, strict=True)]
    return [_point(ids[: position + 1], scores_PV[place]) for position, place in zip(positions, places, strict=True)]


def _point(prompt_ids: Sequence[int], scores_V: Tensor) -> Json:
    likely_K = scores_V.topk(min(NUM_LIKELY, scores_V.shape[0])).indices
    return {
        "prompt_ids": list(prompt_ids),
        "token_ids": [int(token) for token in likely_K],
        "logprobs": [min(float(scores_V[token]), 0.0) for token in likely_K],
    }


def _scores_at(model: PreTrainedModel, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
    """(P, V) log-probabilities of what follows these positions."""
    device = next(model.parameters()).device
    inputs = Inputs({"input_ids": torch.tensor([ids], device=device)}, torch.tensor(positions, device=device))
    return torch.log_softmax(logits_at(model, output_embeddings(model), inputs).float(), dim=-1)


def _texts(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, str]]:
    """The fixed texts, and one with the tokenizer's own marks in it."""
    marks: list[str] = list(cast(Any, tokenizer).all_special_tokens)[:MAX_SPECIAL]
    return [*TEXTS.items(), *([("marks", f"a{'b '.join(marks)}c")] if marks else [])]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = True) -> list[int]:
    return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def _chat(tokenizer: PreTrainedTokenizerBase, name: str) -> Json | None:
    """A chat as the template renders it; `None` where there is no template or it takes no such chat, which is said."""
    messages, tools = CHATS[name]
    template = str(cast(Any, tokenizer).chat_template or "")
    if not template or (tools and "tools" not in template):
        LOG.warning("parity: the chat of %s is not checked: the model has no template for it", name)
        return None
    try:
        text: str = cast(Any, tokenizer).apply_chat_template(
            _for_template(messages), tools=tools or None, add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        LOG.warning("parity: the chat of %s is not checked: the template refuses it: %s", name, error)
        return None
    ids = _ids(tokenizer, text, add_special_tokens=False)
    return _rendered(tokenizer, f"the chat of {name}", ids) | {"messages": messages, "tools": tools}


def _for_template(messages: Sequence[Json]) -> list[Json]:
    """The messages as templates take them: arguments of tools as an object."""
    plain: list[Json] = []
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        plain.append({**message, "tool_calls": calls} if calls else message)
    return plain


def _rendered(tokenizer: PreTrainedTokenizerBase, name: str, ids: list[int]) -> Json:
    decode: Any = cast(Any, tokenizer).decode
    pieces = [str(decode([token_id], skip_special_tokens=False)) for token_id in ids]
    return {"name": name, "token_ids": ids, "pieces": pieces}
