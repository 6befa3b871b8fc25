"""The bodies of the routes that take and give ids, as vLLM has them: generate from ids, put ids into words.

The rule: what rendering a chat answers can be sent back as the body of a generation, with other ids in it; and what is
refused in a chat is refused here, by the same list. Generating and wording are left to `service.py` and `wording.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tracker.errors import BadRequest
from trainer.engine.protocol import (
    ChatBody,
    CompletionBody,
    StreamOptions,
    num_top_logprobs,
    refuse_unserved,
    stop_strings,
)

TokenId = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Json = dict[str, Any]
SHARED = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "logit_bias",
)
"""Fields that chats, completions and the sampling parameters of a generation name alike."""


class GenerateTokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /inference/v1/generate`."""

    token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    sampling_params: Json
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    features: None = None
    """Of media, which this engine has none of."""
    content_parts: None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a generation, or what a chunk adds to it."""

    index: Count
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A whole generation, or a chunk of one."""

    choices: list[Chosen]
    request_id: str | None = None
    prompt_token_ids: list[TokenId] | None = None


class WordingState(msgspec.Struct, frozen=True, kw_only=True):
    """What a client carries from one chunk to the next, so that the engine need not remember it."""

    window_ids: Annotated[list[TokenId], msgspec.Meta(max_length=1024)] = []
    num_read: Count = 0
    """How many of these are in words already."""
    held: str = ""
    """Text that may become a tool call."""
    num_calls: Count = 0
    role_sent: bool = False


class DerenderBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/chat/completions/derender`, whole and streaming."""

    chat_request: ChatBody | None = None
    stream: bool | None = None
    model: str | None = None
    generate_response: Generated | None = None
    generate_chunk: Generated | None = None
    stream_state: WordingState | None = None
    prompt_tokens: Count | None = None
    prompt_token_ids: list[TokenId] | None = None


def sampling_params_of(body: ChatBody, max_tokens: int) -> Json:
    """What a chat is sampled with, in the words of a generation."""
    has_logprobs, num_top = num_top_logprobs(body)
    given = {name: value for name in SHARED if (value := getattr(body, name)) is not None}
    stops = list(stop_strings(body))
    return {
        **given,
        **({"stop": stops} if stops else {}),
        **({"logprobs": num_top} if has_logprobs else {}),
        "max_tokens": max_tokens,
    }


def completion_of(body: GenerateTokensBody, max_model_len: int) -> CompletionBody:
    """The completion that a generation is; no limit, or one beyond the context, means all the room there is."""
    known = CompletionBody.__struct_fields__
    fields = {name: value for name, value in body.sampling_params.items() if name in known}
    fields |= {"model": body.model, "prompt": body.token_ids, "stream": body.stream}
    fields["return_token_ids"] = body.return_token_ids
    try:
        asked = msgspec.convert(fields, CompletionBody)
    except msgspec.ValidationError as error:
        raise BadRequest(f"sampling_params are not valid: {error}", param="sampling_params") from error
    room = max(max_model_len - len(body.token_ids), 1)
    completion = msgspec.structs.replace(
        asked, max_tokens=min(asked.max_tokens or room, room), stream_options=body.stream_options
    )
    refuse_unserved(completion)
    return completion
