"""What a request asks for: the JSON bodies of the API parsed once into typed records, everything unservable refused.

The rule: a field that the dialect defines is honoured or refused with a message that says what to write instead; `null`
means absent; fields nobody defines are dropped. Reading a conversation into tokens is left to `chat.py`.
"""

from typing import Annotated, Any, TypeVar

import msgspec

from tracker.errors import BadRequest
from trainer.engine.sampling import SamplingSettings

MAX_CHOICES = 64
MAX_TOP_LOGPROBS = 20

Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
AboveZero = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of a streamed answer."""

    include_usage: bool | None = None


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True):
    """What chat completions and completions have in common."""

    model: str | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: AboveZero | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # Known, and refused unless they say what would happen without them.
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Any = None
    include_stop_str_in_output: bool | None = None
    use_beam_search: bool | None = None
    prompt_embeds: Any = None
    truncate_prompt_tokens: int | None = None
    response_format: dict[str, Any] | None = None


class ChatBody(GenerateBody, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: AboveZero | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None


class CompletionBody(GenerateBody, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[int | str | list[int]]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class TextBody(msgspec.Struct, frozen=True):
    """`POST /tokenize` of a text; of a chat it is a `ChatBody`."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None


class _Peek(msgspec.Struct, frozen=True):
    prompt: Any = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    """`POST /detokenize`."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


class LoadBody(msgspec.Struct, frozen=True):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Annotated[str, msgspec.Meta(min_length=1)]
    lora_path: Annotated[str, msgspec.Meta(min_length=1)]
    load_inplace: bool | None = None


class UnloadBody(msgspec.Struct, frozen=True):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Annotated[str, msgspec.Meta(min_length=1)]


# The values under which a field may stand there, because they ask for nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "structured_outputs": (),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "chat_template": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "load_inplace": (False,),
}


S = TypeVar("S", bound=msgspec.Struct)


def parse(body: bytes, kind: type[S]) -> S:
    """Parse a JSON body into one of the records of this module."""
    try:
        parsed = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body is not valid: {error}") from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the request body is no JSON: {error}") from error
    refuse_unserved(parsed)
    return parsed


def parse_tokenize(body: bytes) -> ChatBody | TextBody:
    """Parse the body of `POST /tokenize`: a text has a `prompt`, a chat has `messages`."""
    return parse(body, TextBody if parse(body, _Peek).prompt is not None else ChatBody)


def refuse_unserved(parsed: msgspec.Struct) -> None:
    """Raise on a field that asks for what this engine does not do."""
    for name in parsed.__struct_fields__:
        value = getattr(parsed, name)
        allowed = _NEUTRAL.get(name)
        if allowed is not None and value is not None and value not in allowed:
            raise BadRequest(f"the embedded engine does not serve {name}={value!r}; leave it out", param=name)


def sampling_settings(body: GenerateBody, vocab_size: int) -> SamplingSettings:
    """Return how tokens are drawn; a top_k of -1 is none, as at vLLM."""
    return SamplingSettings(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        logit_bias=_bias(body.logit_bias or {}, vocab_size),
    )


def _bias(given: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs: list[tuple[int, float]] = []
    for key, value in given.items():
        if not key.isdecimal() or int(key) >= vocab_size or not -100.0 <= value <= 100.0:
            raise BadRequest(
                f"logit_bias has {key!r}: {value}; write token ids below {vocab_size} with values from -100 to 100",
                param="logit_bias",
            )
        pairs.append((int(key), value))
    return tuple(pairs)


def stop_strings(body: GenerateBody) -> tuple[str, ...]:
    given = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if any(not text for text in given):
        raise BadRequest("stop must not hold an empty string", param="stop")
    return tuple(given)


def answer_length(body: GenerateBody, num_prompt: int, max_model_len: int) -> int:
    """Return how many tokens may be sampled; what does not fit the context is refused in vLLM's words."""
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    if asked is None and isinstance(body, CompletionBody):
        asked = 16
    if num_prompt >= max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has {num_prompt} "
            "input tokens. Please reduce the length of the input messages."
        )
    room = max_model_len - num_prompt
    if asked is not None and asked > room:
        raise BadRequest(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is "
            f"{max_model_len} tokens and your request has {num_prompt} input tokens "
            f"({asked} > {max_model_len} - {num_prompt})."
        )
    return room if asked is None else asked


def num_top_logprobs(body: GenerateBody) -> tuple[bool, int]:
    """Return whether log-probabilities are asked for, and for how many of the most likely tokens."""
    match body:
        case ChatBody():
            if body.top_logprobs and not body.logprobs:
                raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
            return bool(body.logprobs), body.top_logprobs or 0
        case CompletionBody():
            return body.logprobs is not None, body.logprobs or 0
        case _:
            raise TypeError(f"no such body: {body!r}")
