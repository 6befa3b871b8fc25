"""What a call to a model that is no policy took and cost: as the upstream reported it, else counted from the words.

The words are counted with tiktoken's `o200k_base`, whichever model answered, so that such a count is an estimate; it is
marked as one (`Usage.counted`). Nothing is counted of a call that got no word of an answer. The prices are those of
the settings, taken for every prompt token alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

import tiktoken

from gateway.capture import Capture
from gateway.dialects.base import Asked
from gateway.encoding import NAME, load_encoding
from gateway.message_fold import decode_json_value
from gateway.routing import UpstreamRoute
from gateway.upstream_settings import UpstreamSettings
from tracker.types import Usage

COUNTED: Final = f"tiktoken:{NAME}"
PER_MESSAGE: Final = 3
"""Tokens that a chat puts around each message, and before its answer."""
PER_PRICE: Final = 1_000_000


class Bills:
    """Counts and prices; the tokenizer is loaded when an upstream first reports nothing."""

    def __init__(self, upstreams: Sequence[UpstreamSettings]) -> None:
        self._prices = {each.name: (each.input_price, each.output_price) for each in upstreams}
        self._encoding: tiktoken.Encoding | None = None
        self._loading = asyncio.Lock()

    async def usage(self, route: UpstreamRoute, asked: Asked, capture: Capture) -> Usage | None:
        """What the call took, as far as it came; `None` if there was no answer."""
        prompt, completion = capture.usage_prompt_tokens, capture.usage_completion_tokens
        counted = "reported"
        if prompt is None or completion is None or prompt < 0 or completion < 0:
            words = capture.words()
            if not words:
                return None
            encoding = await self._loaded()
            prompt, completion = await asyncio.to_thread(count_words, encoding, asked, words)
            counted = COUNTED
        cost = price(prompt, completion, *self._prices[route.upstream])
        return Usage(prompt_tokens=prompt, completion_tokens=completion, counted=counted, cost=cost)

    async def estimate(self, asked: Asked) -> int:
        """The tokens of a prompt that is not sent."""
        prompt, _ = await asyncio.to_thread(count_words, await self._loaded(), asked, ())
        return prompt

    async def _loaded(self) -> tiktoken.Encoding:
        async with self._loading:
            if self._encoding is None:
                self._encoding = await asyncio.to_thread(load_encoding)
            return self._encoding


def price(prompt: int, completion: int, input_price: float | None, output_price: float | None) -> float | None:
    """The cost of a call at prices per million tokens; `None` where neither is known.

    >>> price(1_000_000, 500_000, 2.0, 8.0)
    6.0
    """
    if input_price is None and output_price is None:
        return None
    return (prompt * (input_price or 0.0) + completion * (output_price or 0.0)) / PER_PRICE


def count_words(encoding: tiktoken.Encoding, asked: Asked, answers: Sequence[object]) -> tuple[int, int]:
    """(prompt tokens, completion tokens) of a conversation and its answers, estimated."""
    tools = asked.fields.get("tools")
    chat = asked.fields.get("messages")
    pieces = [decode_json_value(raw) for raw in asked.messages] if chat is None else decode_json_value(bytes(chat))
    is_chat = any(isinstance(piece, dict) for piece in pieces)
    prompt = sum(_count(encoding, piece) for piece in pieces)
    prompt += _count(encoding, None if tools is None else decode_json_value(bytes(tools)))
    if is_chat:
        prompt += PER_MESSAGE * (len(pieces) + 1)
    return prompt, sum(_count(encoding, answer, leaves_out=("role",)) for answer in answers)


def _count(encoding: tiktoken.Encoding, value: object, leaves_out: Sequence[str] = ()) -> int:
    """Tokens of every text in a JSON value; data of images and sound is not text."""
    match value:
        case str():
            return 0 if value.startswith("data:") else len(encoding.encode_ordinary(_writable(value)))
        case list():
            return sum(_count(encoding, item) for item in cast("list[object]", value))
        case dict():
            fields = cast("dict[str, Any]", value)
            return sum(
                _count(encoding, item) for name, item in fields.items() if name not in (*leaves_out, "type", "id")
            )
        case _:
            return 0


def _writable(text: str) -> str:
    """Without the lone surrogates of a cut emoji, which have no bytes."""
    return text.encode("utf-8", "replace").decode()
