"""Anthropic's Messages, as agents send them; engines are asked chat completions instead.

Honoured: the conversation (`turns.py`), tools (`tools.py`), thinking (`thinking.py`),
`max_tokens`, `stop_sequences`, an answer that the agent began itself, `output_config` with effort and format (under its
older name `output_format` too), and the sampling fields, which the policy's may replace. Accepted, since they ask for
nothing that is not so anyway: `metadata`, `cache_control`, `diagnostics`, `fallbacks`, the usual `service_tier` and
`speed`; edits of the context that clear thinking are done. Refused, because nothing here can honour them: what
Anthropic runs or stores (containers, MCP servers, threads, compaction), and edits that need its token counts.
Fields that nobody defines are dropped: chat completions might know them as something else. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gateway.dialects.base import Asked, Json, Limits, Target, Writer, decode_as, parse_fields, refuse_forbidden
from gateway.dialects.chat import chat_body
from gateway.dialects.fields import CommonFields, Int64, check_common, sampling_asked
from gateway.dialects.messages.form import MessagesForm
from gateway.dialects.messages.thinking import Thinking, check_thinking, template_switches
from gateway.dialects.messages.tools import ToolChoice, read_choice, read_tools
from gateway.dialects.messages.turns import Block, Conversation, read_conversation
from gateway.dialects.messages.writer import MessagesWriter
from tracker.errors import BadRequest

OWN_WORDS: Final = frozenset({"messages", "system", "metadata"})
UNSUPPORTED: Final[Mapping[str, str]] = {
    "billing_policy": "nobody is billed here",
    "compaction": "ask the model for a summary instead",
    "container": "run the tools yourself instead",
    "fallback_credit_token": "none was ever given here",
    "mcp_servers": "give the model custom tools and call the servers yourself instead",
    "thread": "send the whole conversation instead",
}
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "inference_geo": ("global",),
}
"""Fields with the values that say what is so anyway."""


class _Kept(msgspec.Struct):
    type: str
    value: int = 1


class _Edit(msgspec.Struct):
    type: str
    keep: str | _Kept | None = None


class _ContextManagement(msgspec.Struct):
    edits: list[_Edit] | None = None


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: Json


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None
    task_budget: Json | None = None


class _Body(msgspec.Struct, kw_only=True):
    """The fields that must be known, with the types the dialect gives them."""

    model: str
    messages: list[msgspec.Raw]
    system: str | list[Block] | None = None
    max_tokens: Int64 | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None
    context_management: _ContextManagement | None = None
    metadata: Json | None = None
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None

    @property
    def format(self) -> _Format | None:
        """How the answer must be shaped."""
        return (self.output_config and self.output_config.format) or self.output_format


class MessagesAsked(Asked, frozen=True):
    """A request of this dialect. Its writer counts token ids, so the engine's events keep them up to there."""

    omits_thinking: bool = False


class Messages(MessagesForm):
    """The dialect of `/v1/messages`."""

    name = "messages"
    id_prefix = "msg_"
    engine_path = "/v1/chat/completions"

    def parse(self, body: bytes, limits: Limits) -> Asked:
        """Understand a request; raises `BadRequest`, saying what to write instead."""
        return _asked(body, limits, needs_limit=True)

    def parse_to_count(self, body: bytes, limits: Limits) -> Asked:
        """Understand a request whose tokens are to be counted; it has no limit."""
        return _asked(body, limits, needs_limit=False)

    def engine_body(self, asked: Asked, target: Target) -> bytes:
        """What the engine is sent; switches of chat templates only where there is one."""
        if not target.captures:
            plain = {name: raw for name, raw in asked.fields.items() if name not in ("chat_template_kwargs", "top_k")}
            asked = msgspec.structs.replace(asked, fields=plain)
        return chat_body(asked, target)

    def writer(self, asked: Asked, call_id: str) -> Writer:
        """Writes the answer to this request."""
        omits = isinstance(asked, MessagesAsked) and asked.omits_thinking
        return MessagesWriter(call_id, asked.model, asked.sampling.max_tokens, omits_thinking=omits)


def _asked(body: bytes, limits: Limits, *, needs_limit: bool) -> Asked:
    fields = parse_fields(body)
    refuse_forbidden(fields, OWN_WORDS)
    known = decode_as(body, _Body)
    _refuse_unsupported(fields, known)
    if needs_limit and known.max_tokens is None:
        raise BadRequest("max_tokens: write how many tokens the answer may have.", param="max_tokens")
    thinking = known.thinking
    conversation = _conversation(known)
    chat = _in_chat(known, conversation)
    shaped = bool(known.format) or bool(known.tool_choice and known.tool_choice.is_forced)
    common = CommonFields(
        model=known.model,
        temperature=known.temperature,
        top_p=known.top_p,
        top_k=known.top_k,
        max_tokens=known.max_tokens,
    )
    check_common(common, limits)
    return MessagesAsked(
        model=known.model,
        streams=bool(known.stream),
        shows_token_ids=True,
        shows_reasoning=thinking is not None and thinking.shows,
        has_media=conversation.has_media,
        has_stop=bool(known.stop_sequences),
        sampling=sampling_asked(common, {}, known.max_tokens, limits, forced=shaped),
        given=frozenset(fields),
        messages=tuple(bytes(raw) for raw in known.messages),
        request=msgspec.json.encode({name: raw for name, raw in fields.items() if name != "messages"}),
        fields={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in chat.items()},
        omits_thinking=thinking is not None and thinking.omits,
    )


def _refuse_unsupported(fields: Mapping[str, msgspec.Raw], known: _Body) -> None:
    for name, instead in UNSUPPORTED.items():
        if name in fields and bytes(fields[name]) != b"[]":
            raise BadRequest(f"{name} is not supported: {instead}.", param=name, code="unsupported_field")
    for name, values in ONLY.items():
        if getattr(known, name) not in (None, *values):
            told = " or ".join(f'"{value}"' for value in values)
            raise BadRequest(f"{name}: write {told}, or leave it out.", param=name)
    config = known.output_config or _OutputConfig()
    if config.task_budget is not None:
        told = "output_config.task_budget is not supported: max_tokens bounds each answer."
        raise BadRequest(told, param="output_config.task_budget", code="unsupported_field")
    if config.effort not in (None, *EFFORTS):
        raise BadRequest(f"output_config.effort: write one of {', '.join(EFFORTS)}.", param="output_config.effort")
    if known.thinking is not None:
        check_thinking(known.thinking)


def _conversation(known: _Body) -> Conversation:
    if not known.messages:
        raise BadRequest("messages: send at least one.", param="messages")
    return read_conversation(known.system or "", known.messages, _num_thoughts_kept(known.context_management))


def _num_thoughts_kept(management: _ContextManagement | None) -> int | None:
    """How many turns keep their thinking, by the edits asked for; all of them where none is."""
    kept: int | None = None
    for number, edit in enumerate((management and management.edits) or ()):
        if edit.type != "clear_thinking_20251015":
            told = f"context_management.edits[{number}]: {edit.type} is not supported: shorten the messages instead."
            raise BadRequest(told, param="context_management", code="unsupported_field")
        match edit.keep:
            case "all" | _Kept(type="all"):
                kept = None
            case _Kept(type="thinking_turns", value=value) if value > 0:
                kept = value
            case None:
                kept = 1
            case _:
                told = f'context_management.edits[{number}].keep: write "all" or a number of thinking_turns.'
                raise BadRequest(told, param="context_management")
    return kept


def _in_chat(known: _Body, conversation: Conversation) -> Json:
    """The request in the fields of chat completions, but for what the gateway owns."""
    tools = read_tools(known.tools or [])
    fields: dict[str, Any] = {
        "messages": conversation.messages,
        "stream": known.stream,
        "max_completion_tokens": known.max_tokens,
        "stop": known.stop_sequences or None,
        "temperature": known.temperature,
        "top_p": known.top_p,
        "top_k": known.top_k,
        "tools": tools or None,
        "reasoning_effort": known.output_config and known.output_config.effort,
        "chat_template_kwargs": template_switches(known.thinking) or None,
    }
    if known.tool_choice is not None:
        fields |= read_choice(known.tool_choice, bool(tools))
    if known.format is not None:
        shape = {"name": "answer", "schema": known.format.schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": shape}
    if conversation.is_open:
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    return {name: value for name, value in fields.items() if value is not None}
