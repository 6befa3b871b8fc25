"""The two shapes that nearly every answer has, read for a fraction of what reading any JSON costs.

A *piece* is an event of a streamed chat completion that holds words and tokens of one choice, and nothing else. A whole
answer is one with the fields that engines are known to send; those that are not looked into stay as they were written.
Each is read in one pass. What has any other shape is left to `capture.py`'s general way, which gives the same: a test
holds the two against each other. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.base import Json

MAX_TOKEN_ID: Final = 2**31
NO_LOGPROB: Final = -9999.0
"""What engines write where they have none; nothing at or below it is a log-probability."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_ID)]
Passed = msgspec.Raw | UnsetType
"""A field that is handed on as it was written, if it is there."""
Logprob = Annotated[float, msgspec.Meta(gt=NO_LOGPROB)]


class Scored(msgspec.Struct, gc=False):
    """One sampled token."""

    logprob: Logprob


class Scores(msgspec.Struct, gc=False):
    """The log-probabilities of a choice, as chat completions have them."""

    content: list[Scored]


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: str


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_ID)]
    delta: _Delta
    logprobs: Scores
    finish_reason: None
    token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]


class Piece(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Words and tokens of one choice; every field is there and no other."""

    id: str
    object: str
    created: int
    model: str
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1, max_length=1)]


class _WholeChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: Any
    message: Any
    logprobs: Scores
    token_ids: tuple[TokenId, ...]
    finish_reason: Any = UNSET
    stop_reason: Any = UNSET
    routed_experts: Passed = UNSET


class _Whole(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """With the fields that vLLM 0.32 sends, of which most are null; an answer with others takes the general way."""

    object: Literal["chat.completion"]
    choices: list[_WholeChoice]
    id: Passed = UNSET
    created: Passed = UNSET
    model: Passed = UNSET
    usage: Any = UNSET
    prompt_token_ids: tuple[TokenId, ...] | UnsetType = UNSET
    prompt_text: Passed = UNSET
    prompt_logprobs: Passed = UNSET
    service_tier: Passed = UNSET
    system_fingerprint: Passed = UNSET
    kv_transfer_params: Passed = UNSET
    ec_transfer_params: Passed = UNSET
    metrics: Passed = UNSET


_PIECE: Final = msgspec.json.Decoder(Piece)
_WHOLE: Final = msgspec.json.Decoder(_Whole)


def read_piece(data: bytes) -> Piece | None:
    """The piece that an event is, if it is one."""
    try:
        return _PIECE.decode(data)
    except msgspec.DecodeError:
        return None


def read_whole(data: bytes) -> Json | None:
    """A whole answer with only those fields decoded that are looked into; `None` if it has another shape.

    Log-probabilities come as `Scores`, ids as tuples.
    """
    try:
        whole = _WHOLE.decode(data)
    except msgspec.DecodeError:
        return None
    said = _given(whole)
    said["choices"] = [_given(choice) for choice in whole.choices]
    return said


def _given(fields: msgspec.Struct) -> Json:
    named = ((name, getattr(fields, name)) for name in fields.__struct_fields__)
    return {name: value for name, value in named if value is not UNSET}


def logprobs_of(scores: Scores) -> list[float]:
    """Of each token."""
    return [scored.logprob for scored in scores.content]
