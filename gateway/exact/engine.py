"""What an engine is asked when a call is prompted exactly: to render, to generate from ids, to put ids into words.

The routes that vLLM serves with `--enable-scale-out`, and the embedded engine always. An answer that nobody can read is
`UpstreamFailed`; what the answers mean is left to `prompt.py` and `words.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec

from gateway.dialects.base import Json
from gateway.exact.words import NOT_UNDERSTOOD, Piece
from gateway.inspection import EXACT_ROUTES
from gateway.message_fold import decode_json_value, encode_json
from gateway.upstream import Answer, Upstream, engine_object
from tracker.errors import UpstreamFailed

RENDER, GENERATE, DERENDER = EXACT_ROUTES


class Rendered(msgspec.Struct):
    """What a conversation is to the engine: what it would generate from."""

    token_ids: list[int]
    sampling_params: dict[str, Any]
    features: Any = None
    """Of images, sound or video: their prompt is more than ids."""


class ExactEngine:
    """One engine, for one call."""

    def __init__(self, upstream: Upstream, url: str, request_id: str) -> None:
        self._upstream = upstream
        self._url = url
        self._request_id = request_id

    async def render(self, body: Json) -> tuple[Rendered, Json]:
        """The conversation of a chat completion in ids, with the request for a generation from them."""
        raw = await self._whole(RENDER, body)
        try:
            return msgspec.json.decode(raw, type=Rendered), cast("Json", decode_json_value(raw))
        except ValueError as error:
            raise UpstreamFailed(f"{NOT_UNDERSTOOD}: a rendering without ids.") from error

    def generate(self, body: Json, *, streams: bool) -> AbstractAsyncContextManager[Answer]:
        """Generate from ids."""
        return self._upstream.ask(self._url + GENERATE, encode_json(body), self._request_id, streams=streams)

    async def derender(self, asked: Json, prompt_ids: Sequence[int], pieces: Sequence[Piece]) -> dict[int, Json]:
        """The messages of whole choices, by index; of those that have any words."""
        choices = [_choice(piece) for piece in pieces if piece.words_ids]
        if not choices:
            return {}
        generated = {"request_id": self._request_id, "prompt_token_ids": list(prompt_ids), "choices": choices}
        body = {"generate_response": generated, "stream": False, **_context(asked, prompt_ids)}
        said = engine_object(await self._whole(DERENDER, body), NOT_UNDERSTOOD)
        found = cast("list[Json]", said.get("choices") or [])
        return {
            one["index"]: one["message"] for one in found if "index" in one and isinstance(one.get("message"), dict)
        }

    async def derender_piece(
        self, asked: Json, prompt_ids: Sequence[int], piece: Piece, state: Json | None
    ) -> tuple[Json, Json]:
        """What a piece of a stream adds to its message, and the state to give back with the next piece."""
        generated = {"request_id": self._request_id, "choices": [_choice(piece)]}
        body = {"generate_chunk": generated, "stream": True, "stream_state": state, **_context(asked, prompt_ids)}
        said = engine_object(await self._whole(DERENDER, body), NOT_UNDERSTOOD)
        event = said.get("chunk")
        choices = cast("list[Json]", cast("Json", event).get("choices") or []) if isinstance(event, dict) else []
        if not isinstance(said.get("stream_state"), dict):
            raise UpstreamFailed(f"{NOT_UNDERSTOOD}: a derendering without its state.")
        return (choices[0].get("delta") or {}) if choices else {}, said["stream_state"]

    async def _whole(self, path: str, body: Json) -> bytes:
        async with self._upstream.ask(self._url + path, encode_json(body), self._request_id, streams=False) as answer:
            return await answer.whole()


def derendering(body: Json) -> Json:
    """What derendering must know of the request: not what was said before, beyond the tool calls that ids may count."""
    messages = cast("list[Json]", body["messages"])
    called = [{**message, "content": ""} for message in messages if message.get("tool_calls")]
    return {**body, "messages": [*called, {"role": "user", "content": ""}]}


def _choice(piece: Piece) -> Json:
    return {
        "index": piece.index,
        "token_ids": piece.words_ids,
        "finish_reason": piece.finish_reason,
        "stop_reason": piece.stop_reason,
    }


def _context(asked: Json, prompt_ids: Sequence[int]) -> Json:
    return {
        "model": asked.get("model"),
        "chat_request": asked,
        "prompt_token_ids": list(prompt_ids),
        "prompt_tokens": len(prompt_ids),
    }
