"""The two shapes that nearly every answer has, read for a fraction of what reading any JSON costs.

A *piece* is an event of a streamed chat completion that holds words and tokens of one choice, and nothing else. A whole
answer is cut into its fields, of which only those that are looked into are decoded. What has any other shape is left
to `capture.py`'s general way, which gives the same: a test holds the two against each other. Pure.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gateway.dialects.base import Json

MAX_TOKEN_ID: Final = 2**31
NO_LOGPROB: Final = -9999.0
"""What engines write where they have none; nothing at or below it is a log-probability."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_ID)]
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


_PIECE: Final = msgspec.json.Decoder(Piece)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHOICES: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_SCORES: Final = msgspec.json.Decoder(Scores)
_IDS: Final = msgspec.json.Decoder(tuple[TokenId, ...])
_DECODED: Final = frozenset({"index", "message", "finish_reason", "stop_reason"})
"""What is looked into of a choice, beside its tokens."""


def read_piece(data: bytes) -> Piece | None:
    """The piece that an event is, if it is one."""
    try:
        return _PIECE.decode(data)
    except msgspec.DecodeError:
        return None


def read_whole(data: bytes) -> Json | None:
    """A whole answer with only those fields decoded that are looked into, the others as they were written; `None` if
    it has another shape.

    Log-probabilities come as `Scores`, ids as tuples.
    """
    try:
        said: Json = dict(_FIELDS.decode(data))
        if "error" in said or bytes(said.get("object", b"")) != b'"chat.completion"':
            return None
        said["choices"] = [_read_choice(choice) for choice in _CHOICES.decode(said["choices"])]
        if "prompt_token_ids" in said:
            said["prompt_token_ids"] = _IDS.decode(said["prompt_token_ids"])
        if "usage" in said:
            said["usage"] = msgspec.json.decode(said["usage"])
    except (msgspec.DecodeError, KeyError):
        return None
    return said


def _read_choice(fields: dict[str, msgspec.Raw]) -> Json:
    choice: Json = dict(fields)
    for name in _DECODED & fields.keys():
        choice[name] = msgspec.json.decode(fields[name])
    choice["logprobs"] = _SCORES.decode(fields["logprobs"])
    choice["token_ids"] = _IDS.decode(fields["token_ids"])
    return choice


def logprobs_of(scores: Scores) -> list[float]:
    """Of each token."""
    return [scored.logprob for scored in scores.content]
