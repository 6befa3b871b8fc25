"""The fields that chat completions and completions share, and what the gateway owns of a request to an engine.

Limits, the number of choices and streaming are honoured here; sampling may be replaced by the policy's. An engine is
always asked for token ids, log-probabilities and usage. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from gateway.dialects.base import Asked, Json, Limits, Target, decode_as
from gateway.routing import KNOBS, NEUTRAL, knobs
from tracker.errors import BadRequest
from tracker.types import Sampling

CONSTRAINTS: Final = (
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "structured_outputs",
)
"""Fields that shape the answer with a grammar."""
NEUTRAL_BIASES: Final = (b"{}", b"[]", b"0", b"false", b"0.0")
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number as engines and records hold one; JSON knows longer ones."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str = "text"


class CommonFields(msgspec.Struct):
    """The shared fields that must be known, with their types."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Int64 | None = None
    max_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    return_token_ids: bool | None = None
    response_format: _ResponseFormat | None = None
    stop: str | list[str] | None = None

    @property
    def shows_usage(self) -> bool:
        """Whether the agent is to see the token counts."""
        return not self.stream or (self.stream_options is not None and bool(self.stream_options.include_usage))


def check_common(known: CommonFields, limits: Limits) -> None:
    """Raise on a value that cannot be honoured."""
    if not known.model:
        raise BadRequest("model: name one.", param="model")
    if known.n is not None and not 1 <= known.n <= limits.max_choices:
        raise BadRequest(f"n: write 1 to {limits.max_choices}.", param="n")
    if known.stream_options is not None and not known.stream:
        raise BadRequest("stream_options is only allowed with stream: true.", param="stream_options")
    check_limit("max_tokens", known.max_tokens)


def check_limit(name: str, value: int | None) -> None:
    """Raise on a limit that leaves no answer."""
    if value is not None and value < 1:
        raise BadRequest(f"{name}: write at least 1, or leave it out.", param=name)


def sampling_asked(
    known: CommonFields, fields: Mapping[str, msgspec.Raw], limit: int | None, limits: Limits, *, forced: bool = False
) -> Sampling:
    """What the agent asked for, neutral where it did not say; `forced` by a tool choice."""
    if limits.max_output_tokens is not None:
        limit = min(limit or limits.max_output_tokens, limits.max_output_tokens)
    return Sampling(
        temperature=1.0 if known.temperature is None else known.temperature,
        top_p=1.0 if known.top_p is None else known.top_p,
        top_k=-1 if known.top_k is None else known.top_k,
        min_p=known.min_p or 0.0,
        max_tokens=limit,
        seed=known.seed,
        constrained=forced or _is_constrained(known, fields),
        biased=_is_biased(known, fields),
    )


def owned_body(asked: Asked, target: Target) -> Json:
    """The agent's fields, with those replaced that the gateway owns in every dialect."""
    body: dict[str, Any] = dict(asked.fields)
    if target.overrides:
        for name in KNOBS:
            body.pop(name, None)
    body.pop("return_token_ids", None)
    if target.captures:
        body |= {
            name: value for name, value in knobs(target.sampling).items() if name not in NEUTRAL or name not in body
        }
        body["return_token_ids"] = True
    body["model"] = target.model
    if asked.streams:
        given = asked.fields.get("stream_options")
        options = {} if given is None else decode_as(given, Json, "stream_options")
        body["stream_options"] = {**options, "include_usage": True}
    if target.sampling.max_tokens is not None:
        body |= dict.fromkeys(_limit_names(body, target), target.sampling.max_tokens)
    return body


def _limit_names(body: Json, target: Target) -> list[str]:
    """The names under which the limit is sent: the agent's own to a server that may know only one of them."""
    given = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
    return list(dict.fromkeys(["max_tokens", *given])) if target.captures else given or ["max_tokens"]


def _is_constrained(known: CommonFields, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether a grammar shapes the answer."""
    if known.response_format is not None and known.response_format.type != "text":
        return True
    return any(name in fields for name in CONSTRAINTS)


def _is_biased(known: CommonFields, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether something beside temperature and truncation changes the distribution."""
    if any(getattr(known, name) not in (None, neutral) for name, neutral in NEUTRAL.items()):
        return True
    names = [name for name in KNOBS if name not in CommonFields.__struct_fields__]
    return any(name in fields and bytes(fields[name]) not in NEUTRAL_BIASES for name in names)
