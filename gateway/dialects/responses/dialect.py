"""OpenAI's Responses API, translated: engines are asked chat completions, since they give token ids on those.

Honoured by translation: items, `instructions` (the first system message, of this request only), functions and the
choice among them, `text.format`, `reasoning.effort`, `max_output_tokens`, `top_logprobs` and the log-probabilities of
`include`. Honoured here: `previous_response_id` (its items stand before the input), `stream_options`, `metadata` and
the labels that a response repeats; `store`: every call is recorded. Raw reasoning is shown where the model gives any;
no summary of it is made up. Harmless and kept on the record: labels for users and caches. Refused, because nothing here
can honour them: `background`, `conversation`, `prompt`, `truncation: auto` and their like. Fields that Responses do not
define go on to the engine, which may know them (`top_k`, `stop`, `chat_template_kwargs`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.dialects.base import Asked, Json, Limits, Target, Writer, decode_as, parse_fields, refuse_forbidden
from gateway.dialects.chat import MAX_TOP_LOGPROBS, chat_body
from gateway.dialects.fields import CommonFields, Int64, check_common, check_limit, sampling_asked
from gateway.dialects.openai_form import OpenAIForm
from gateway.dialects.responses.frame import SEALED_REASONING, StreamOptions
from gateway.dialects.responses.items_in import Conversation
from gateway.dialects.responses.items_out import COMPLETED, naming, output_items
from gateway.dialects.responses.stream import ResponsesWriter
from gateway.dialects.responses.tools import Tooling, read_tooling, response_format
from gateway.message_fold import decode_json_value, encode_json
from tracker.errors import BadRequest
from tracker.types import Call

OWN_WORDS: Final = frozenset({"input", "instructions", "metadata", "client_metadata", "guided_json"})
UNSUPPORTED: Final[Mapping[str, str]] = {
    "access_programs": "leave it out",
    "background_options": "leave it out",
    "context_management": "shorten the conversation in the agent, or leave it out",
    "conversation": "send the items in input, or name the answer before in previous_response_id",
    "moderation": "leave it out",
    "prompt": "templates are stored at OpenAI; write instructions and input",
}
TRANSLATED: Final = frozenset(
    {"include", "input", "instructions", "max_output_tokens", "parallel_tool_calls", "previous_response_id"}
    | {"reasoning", "text", "tool_choice", "tools"}
)
"""Sent to the engine in another form."""
KEPT_HERE: Final = frozenset(
    {"background", "client_metadata", "image", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_options"}
    | {"prompt_cache_retention", "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user"}
)
"""Honoured or harmless, and nothing for an engine."""
NOT_OURS: Final = frozenset({"functions", "function_call", "logprobs", "messages", "n", "prompt_logprobs"})
"""Fields of chat completions that Responses do not know, and that would say something else than the rest."""
INCLUDABLE: Final = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        SEALED_REASONING,
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
UNCOMPRESSED: Final = ("auto", "disabled")
ID_PREFIX: Final = "resp_"
SCORES: Final = "message.output_text.logprobs"


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    context: str | None = None
    mode: str | None = None


class _Body(CommonFields, kw_only=True):
    """The fields that must be known, with the types the dialect gives them."""

    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    top_logprobs: Int64 | None = None
    include: list[str] | None = None
    include_reasoning: bool | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    text: Json | None = None
    reasoning: _Reasoning | None = None
    background: bool | None = None
    truncation: str | None = None
    service_tier: str | None = None
    prompt_cache_options: Json | None = None
    image: Json | None = None


class Responses(OpenAIForm):
    """The dialect of `/v1/responses`."""

    name = "responses"
    id_prefix = ID_PREFIX
    engine_path = "/v1/chat/completions"

    def parse(self, body: bytes, limits: Limits) -> Asked:
        """Understand a request; raises `BadRequest`, saying what to write instead."""
        fields = parse_fields(body)
        refuse_forbidden(fields, OWN_WORDS)
        known = decode_as(body, _Body)
        _refuse_unsupported(fields, known)
        _check_ranges(known, limits)
        decode_as(fields.get("stream_options", b"{}"), StreamOptions, "stream_options")
        tooling = read_tooling(known.tools or (), known.tool_choice)
        form = response_format(known.text)
        sent = {name: raw for name, raw in fields.items() if name not in TRANSLATED | KEPT_HERE | NOT_OURS}
        sent |= _raw(_translated(known, tooling, form))
        limit = known.max_output_tokens or known.max_completion_tokens or known.max_tokens
        forced = tooling.is_forced or form is not None
        asked = Asked(
            model=known.model,
            streams=bool(known.stream),
            shows_logprobs=_shows_scores(known),
            shows_reasoning=known.include_reasoning is not False,
            has_stop=bool(known.stop),
            sampling=sampling_asked(known, fields, limit, limits, forced=forced),
            given=frozenset(fields),
            messages=_items(known.input),
            request=msgspec.json.encode({name: raw for name, raw in fields.items() if name != "input"}),
            previous=known.previous_response_id,
            fields=sent,
        )
        return with_items(asked, asked.messages)

    def engine_body(self, asked: Asked, target: Target) -> bytes:
        """What the engine is sent."""
        return chat_body(asked, target)

    def writer(self, asked: Asked, call_id: str) -> Writer:
        """Writes the answer to this request."""
        return ResponsesWriter(asked, call_id)


def with_items(asked: Asked, items: tuple[bytes, ...]) -> Asked:
    """The request with these items as its conversation, under its own instructions."""
    instructions = decode_as(asked.request, _Instructions).instructions
    conversation = Conversation(instructions)
    conversation.add_all(items)
    fields = {**asked.fields, **_raw({"messages": conversation.messages})}
    return msgspec.structs.replace(asked, messages=items, fields=fields, has_media=conversation.has_media)


def answer_items(message: Json, call_id: str) -> tuple[bytes, ...]:
    """An answer as the items that stand for it in a conversation that goes on."""
    items = output_items(message, naming(call_id), COMPLETED, [])
    return tuple(encode_json(item) for item in items)


def recorded_response(call: Call) -> bytes:
    """The response object of a call on the record."""
    choice, counted = call.choices[0], call.usage
    num_in = len(call.prompt_ids) if counted is None else counted.prompt_tokens
    num_out = len(choice.sampled_ids) if counted is None else counted.completion_tokens
    said: Json = {
        "created": call.started_ms // 1000,
        "choices": [{"message": decode_json_value(choice.message), "finish_reason": choice.finish_reason}],
        "usage": {"prompt_tokens": num_in, "completion_tokens": num_out},
    }
    return ResponsesWriter(Asked(model=call.model, request=call.request), call.call_id).whole(said)


class _Instructions(msgspec.Struct):
    instructions: str | None = None


def _items(given: str | list[msgspec.Raw] | None) -> tuple[bytes, ...]:
    """The input as items; a text is the user's."""
    if isinstance(given, str):
        return (msgspec.json.encode({"type": "message", "role": "user", "content": given}),)
    return tuple(bytes(raw) for raw in given or ())


def _translated(known: _Body, tooling: Tooling, form: Json | None) -> Json:
    """What chat completions call it."""
    sent: Json = {
        "tools": tooling.tools or None,
        "tool_choice": tooling.choice,
        "parallel_tool_calls": known.parallel_tool_calls if tooling.tools else None,
        "response_format": form,
        "verbosity": (known.text or {}).get("verbosity"),
        "reasoning_effort": None if known.reasoning is None else known.reasoning.effort,
        "logprobs": True if _shows_scores(known) else None,
        "max_completion_tokens": known.max_output_tokens,
    }
    return {name: value for name, value in sent.items() if value is not None}


def _shows_scores(known: _Body) -> bool:
    return SCORES in (known.include or ()) or bool(known.top_logprobs)


def _refuse_unsupported(fields: Mapping[str, msgspec.Raw], known: _Body) -> None:
    for name, instead in UNSUPPORTED.items():
        if name in fields and bytes(fields[name]) != b"[]":
            raise BadRequest(f"{name} is not supported: {instead}.", param=name, code="unsupported_field")
    reasoning = known.reasoning or _Reasoning()
    for param, value, allowed, told in (
        ("background", known.background, (False,), "leave it out, and stream"),
        ("truncation", known.truncation, ("disabled",), "leave it out; no part of a conversation is dropped here"),
        ("service_tier", known.service_tier, ("auto", "default"), "leave it out; there is one tier"),
        ("reasoning.mode", reasoning.mode, ("standard",), "leave it out; there is one mode"),
        ("reasoning.context", reasoning.context, ("auto",), "leave it out; the chat template decides what is shown"),
        ("prompt_cache_options.prewarm", (known.prompt_cache_options or {}).get("prewarm"), (False,), "leave it out"),
        ("image.context_compression", (known.image or {}).get("context_compression"), UNCOMPRESSED, "leave it out"),
    ):
        if value is not None and value not in allowed:
            raise BadRequest(f"{param}: {value!r} is not supported: {told}.", param=param, code="unsupported_value")


def _check_ranges(known: _Body, limits: Limits) -> None:
    check_common(msgspec.structs.replace(known, n=None), limits)
    check_limit("max_output_tokens", known.max_output_tokens)
    if known.top_logprobs is not None and not 0 <= known.top_logprobs <= MAX_TOP_LOGPROBS:
        raise BadRequest(f"top_logprobs: write 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs")
    if unknown := set(known.include or ()) - INCLUDABLE:
        told = f"include: {', '.join(sorted(unknown))} is not known; there are: {', '.join(sorted(INCLUDABLE))}."
        raise BadRequest(told, param="include")
    if known.input in (None, []) and known.previous_response_id is None:
        raise BadRequest("input: send a text or items.", param="input")


def _raw(fields: Json) -> dict[str, msgspec.Raw]:
    """Each as JSON; raises `BadRequest` on what is too deep to be written, though it could be read."""
    try:
        return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from error
