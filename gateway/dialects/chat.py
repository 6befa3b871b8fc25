"""OpenAI's chat completions, as agents send them and as vLLM is asked for them.

Honoured by the engine: everything that is passed on untouched. Honoured here: `n`, the limits (`max_completion_tokens`
wins over `max_tokens`), `stream_options`, `logprobs`, `return_token_ids`, `include_reasoning`, role `developer` (the
engine gets `system` in its place), `store` (every call is recorded), and the sampling fields, which the policy's may
replace. Refused, because no engine here can honour them: `functions`, `function_call`, `audio`, `modalities` other
than text, `web_search_options`, a `service_tier` other than the default, media by remote URL. Fields that nobody
defines go on. The conversation is never rewritten, joined or re-encoded beyond the role. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from gateway.dialects.base import Asked, Json, Limits, Target, Writer, decode_as, parse_fields, refuse_forbidden, walk
from gateway.dialects.fields import CommonFields, Int64, check_common, check_limit, owned_body, sampling_asked
from gateway.dialects.openai_form import OpenAIForm, PassingWriter
from tracker.errors import BadRequest

OWN_WORDS: Final = frozenset({"messages", "metadata", "guided_json"})
UNSUPPORTED: Final[Mapping[str, str]] = {
    "functions": "write tools instead",
    "function_call": "write tool_choice instead",
    "audio": "this model answers with text only",
    "web_search_options": "give the model a tool that searches instead",
}
MAX_TOP_LOGPROBS: Final = 20
_WORDS: Final = frozenset({"type", "text", "refusal", "thinking"})
"""Keys of a content part that hold words, where a URL is only text."""
_REMOTE: Final = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")


class _Body(CommonFields, kw_only=True):
    """The fields that must be known, with the types the dialect gives them."""

    messages: list[msgspec.Raw]
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    include_reasoning: bool | None = None
    tool_choice: str | Json | None = None
    tools: list[msgspec.Raw] | None = None
    modalities: list[str] | None = None
    service_tier: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: Any = None


class Chat(OpenAIForm):
    """The dialect of `/v1/chat/completions`."""

    name = "chat"
    id_prefix = "chatcmpl-"
    engine_path = "/v1/chat/completions"

    def parse(self, body: bytes, limits: Limits) -> Asked:
        """Understand a request; raises `BadRequest`, saying what to write instead."""
        fields = parse_fields(body)
        refuse_forbidden(fields, OWN_WORDS)
        known = decode_as(body, _Body)
        _refuse_unsupported(fields, known)
        _check_ranges(known, limits)
        request = msgspec.json.encode({name: raw for name, raw in fields.items() if name != "messages"})
        messages, has_media = _read_messages(known.messages)
        fields["messages"] = msgspec.Raw(b"[" + b",".join(_for_engine(raw) for raw in messages) + b"]")
        limit = known.max_completion_tokens or known.max_tokens
        return Asked(
            model=known.model,
            streams=bool(known.stream),
            num_choices=known.n or 1,
            shows_usage=known.shows_usage,
            shows_logprobs=bool(known.logprobs),
            shows_token_ids=bool(known.return_token_ids),
            shows_reasoning=known.include_reasoning is not False,
            has_media=has_media,
            has_stop=bool(known.stop),
            sampling=sampling_asked(known, fields, limit, limits, forced=_is_tool_forced(known)),
            given=frozenset(fields),
            messages=messages,
            request=request,
            fields=fields,
        )

    def engine_body(self, asked: Asked, target: Target) -> bytes:
        """What the engine is sent: the agent's fields, with those replaced that the gateway owns."""
        return chat_body(asked, target)

    def writer(self, asked: Asked, call_id: str) -> Writer:
        """Writes the answer to this request."""
        return PassingWriter(asked, call_id)


def chat_body(asked: Asked, target: Target) -> bytes:
    """A request in the form of chat completions: how every dialect but completions is asked."""
    body = owned_body(asked, target)
    if target.captures:
        body["logprobs"] = True
        body.setdefault("top_logprobs", 0)
        if not asked.shows_reasoning:
            body["include_reasoning"] = True
        if target.sampling.max_tokens is not None:
            body["max_completion_tokens"] = target.sampling.max_tokens
    return msgspec.json.encode(body)


def _refuse_unsupported(fields: Mapping[str, msgspec.Raw], known: _Body) -> None:
    for name, instead in UNSUPPORTED.items():
        if name in fields and bytes(fields[name]) != b"[]":
            raise BadRequest(f"{name} is not supported: {instead}.", param=name, code="unsupported_field")
    if known.modalities is not None and set(known.modalities) - {"text"}:
        raise BadRequest('modalities: write ["text"]; this model answers with text only.', param="modalities")
    if known.service_tier not in (None, "auto", "default"):
        raise BadRequest('service_tier: write "auto" or leave it out; there is one tier.', param="service_tier")
    if known.top_logprobs and not known.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true.", param="top_logprobs")


def _check_ranges(known: _Body, limits: Limits) -> None:
    check_common(known, limits)
    check_limit("max_completion_tokens", known.max_completion_tokens)
    if not known.messages:
        raise BadRequest("messages: send at least one.", param="messages")
    if known.top_logprobs is not None and not 0 <= known.top_logprobs <= MAX_TOP_LOGPROBS:
        raise BadRequest(f"top_logprobs: write 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs")


def _read_messages(raws: list[msgspec.Raw]) -> tuple[tuple[bytes, ...], bool]:
    """Every message as its own bytes, and whether any holds media."""
    has_media = False
    for number, raw in enumerate(raws):
        content: object = decode_as(raw, _Message, f"messages[{number}]").content
        if isinstance(content, list):
            for part in cast("list[object]", content):
                has_media |= _holds_media(part, f"messages[{number}].content")
    return tuple(bytes(raw) for raw in raws), has_media


def _holds_media(part: object, where: str) -> bool:
    """Whether a content part is more than words; raises if it would make the engine fetch something."""
    if not isinstance(part, dict):
        return False
    rest = {name: value for name, value in cast("Json", part).items() if name not in _WORDS and value is not None}
    for name, value in rest.items():
        if name.endswith("_embeds"):
            raise BadRequest(f"{where}: {name} is not allowed.", param=where, code="forbidden_field")
        if _is_remote(value):
            told = f"{where}: {name} names a remote address, which is never fetched; send a data: URL instead."
            raise BadRequest(told, param=where, code="remote_media")
    kind = str(cast("Json", part).get("type", "text"))
    if kind.endswith("_embeds"):
        raise BadRequest(f"{where}: {kind} is not allowed.", param=where, code="forbidden_field")
    return any(mark in name for name in (kind, *rest) for mark in ("image", "audio", "video", "file"))


def _is_remote(value: object) -> bool:
    """Whether any text in it is an address with a scheme and a host."""
    texts = [value, *(item for _, item in walk(value))]
    return any(isinstance(text, str) and _REMOTE.match(text) is not None for text in texts)


def _for_engine(raw: bytes) -> bytes:
    """The message with role `developer` as `system`; every other one as it is."""
    if b"developer" not in raw and b"\\u" not in raw:
        return raw
    message = decode_as(raw, Json, "messages")
    if message.get("role") != "developer":
        return raw
    return msgspec.json.encode({**message, "role": "system"})


def _is_tool_forced(known: _Body) -> bool:
    return isinstance(known.tool_choice, dict) or known.tool_choice not in (None, "auto", "none")
