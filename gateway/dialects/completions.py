"""OpenAI's completions: a prompt as text or token ids, and its continuation.

One prompt a call: several would be several calls under one id. Refused, because what comes back could not be told from
what was sampled: `echo`; because the engine would choose among answers unseen: `best_of` above `n`. The prompt is
recorded as the call's only message. Pure.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from gateway.dialects.base import Asked, Limits, Target, Writer, decode_as, parse_fields, refuse_forbidden
from gateway.dialects.fields import CommonFields, Int64, check_common, owned_body, sampling_asked
from gateway.dialects.openai_form import OpenAIForm, PassingWriter
from tracker.errors import BadRequest

OWN_WORDS: Final = frozenset({"prompt", "suffix", "metadata", "guided_json"})
MAX_LOGPROBS: Final = 20


class _Body(CommonFields, kw_only=True):
    """The fields that must be known, with the types the dialect gives them."""

    prompt: msgspec.Raw
    logprobs: Int64 | None = None
    echo: bool | None = None
    best_of: Int64 | None = None


CONVERSATION: Final = frozenset({"messages", "tools"})
"""Mean nothing beside a prompt, and are dropped: a prompt is all that is known of the conversation."""


class Completions(OpenAIForm):
    """The dialect of `/v1/completions`."""

    name = "completions"
    id_prefix = "cmpl-"
    engine_path = "/v1/completions"

    def parse(self, body: bytes, limits: Limits) -> Asked:
        """Understand a request; raises `BadRequest`, saying what to write instead."""
        fields = {name: raw for name, raw in parse_fields(body).items() if name not in CONVERSATION}
        refuse_forbidden(fields, OWN_WORDS)
        known = decode_as(body, _Body)
        check_common(known, limits)
        _check_own(known)
        return Asked(
            model=known.model,
            streams=bool(known.stream),
            num_choices=known.n or 1,
            shows_usage=known.shows_usage,
            shows_logprobs=known.logprobs is not None,
            shows_token_ids=bool(known.return_token_ids),
            has_stop=bool(known.stop),
            sampling=sampling_asked(known, fields, known.max_tokens, limits),
            given=frozenset(fields),
            messages=(bytes(known.prompt),),
            request=msgspec.json.encode({name: raw for name, raw in fields.items() if name != "prompt"}),
            fields=fields,
        )

    def engine_body(self, asked: Asked, target: Target) -> bytes:
        """What the engine is sent: the agent's fields, with those replaced that the gateway owns."""
        body = owned_body(asked, target)
        if target.captures:
            body.setdefault("logprobs", 1)
        return msgspec.json.encode(body)

    def writer(self, asked: Asked, call_id: str) -> Writer:
        """Writes the answer to this request."""
        return PassingWriter(asked, call_id)


def _check_own(known: _Body) -> None:
    if known.echo:
        raise BadRequest("echo is not supported: the prompt is yours already.", param="echo")
    if known.best_of is not None and known.best_of != (known.n or 1):
        raise BadRequest("best_of is not supported: write n instead.", param="best_of")
    if known.logprobs is not None and not 0 <= known.logprobs <= MAX_LOGPROBS:
        raise BadRequest(f"logprobs: write 0 to {MAX_LOGPROBS}.", param="logprobs")
    if not _is_one_prompt(decode_as(known.prompt, object, "prompt")):
        raise BadRequest("prompt: write one text, or one list of token ids.", param="prompt")


def _is_one_prompt(prompt: object) -> bool:
    """A text, a list of ids, or a list that holds just one of these."""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    items = cast("list[object]", prompt)
    return all(type(item) is int for item in items) or (len(items) == 1 and _is_one_prompt(items[0]))
