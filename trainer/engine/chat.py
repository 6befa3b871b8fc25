"""Between messages and tokens: the chat template on the way in, tool calls on the way out.

The rule: the tokenizer's own template decides how a conversation reads; only what templates cannot take is made plain
first (role `developer` is `system`, text parts are joined, no content is empty text). Tool calls are Hermes-style,
`<tool_call>{"name": …, "arguments": …}</tool_call>`; what does not parse stays text. Sampling is left to others.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tracker.errors import BadRequest
from trainer.engine.protocol import ChatBody

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an answer; `arguments` is JSON text, as OpenAI has it."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a piece of text amounts to: some content, some tool calls."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def render(tokenizer: PreTrainedTokenizerBase, body: ChatBody) -> list[int]:
    """Return the prompt ids of a conversation, up to where the assistant begins to answer."""
    template = str(cast(Any, tokenizer).chat_template or "")
    if not template:
        raise BadRequest("the model has no chat template; use /v1/completions", param="messages")
    messages = [_plain(message, number) for number, message in enumerate(body.messages)]
    tools = None if body.tool_choice == "none" else body.tools
    # A template that does not know tools would drop them without a word.
    if tools and "tools" not in template:
        messages = _with_tools_in_system(messages, tools)
    try:
        text: str = cast(Any, tokenizer).apply_chat_template(
            messages,
            tools=tools or None,
            add_generation_prompt=True,
            tokenize=False,
            **(body.chat_template_kwargs or {}),
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise BadRequest(f"the chat template refuses these messages: {error}", param="messages") from error
    return encode(tokenizer, text, add_special_tokens=False)


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def _plain(message: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a message as templates take it."""
    role = message.get("role")
    if role not in _ROLES:
        raise BadRequest(f"messages[{number}].role is {role!r}; write one of {', '.join(_ROLES)}", param="messages")
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = "system" if role == "developer" else role
    plain["content"] = _text(message.get("content"), number)
    if plain.get("tool_calls"):
        calls: object = plain["tool_calls"]
        many = cast("list[Any]", calls) if isinstance(calls, list) else [calls]
        plain["tool_calls"] = [_plain_call(call, number) for call in many]
    return plain


def _text(content: object, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [_part_text(part, number) for part in parts]
    return "\n".join(texts)


def _part_text(part: object, number: int) -> str:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    text: object = fields.get("text") if fields.get("type") == "text" else None
    if not isinstance(text, str):
        raise BadRequest(f"messages[{number}].content must be text or a list of text parts", param="messages")
    return text


def _plain_call(call: Any, number: int) -> dict[str, Any]:
    """Give the template arguments as an object: it writes JSON itself, and text would be quoted twice."""
    try:
        function = dict(call["function"])
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = json.loads(arguments) if arguments else {}
        return {**call, "function": function}
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(
            f"messages[{number}].tool_calls must each have a function with a name and JSON arguments", param="messages"
        ) from error


def _with_tools_in_system(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = [
        "You may call these tools:",
        *(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools),
        f'To call one, answer with {_OPEN}{{"name": its name, "arguments": an object}}{_CLOSE}',
    ]
    told = "\n".join(lines)
    if messages[0]["role"] == "system":
        head = messages[0]["content"]
        return [{**messages[0], "content": f"{head}\n\n{told}" if head else told}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


class ToolCallReader:
    """Splits the text of one choice, as it comes, into content and tool calls."""

    def __init__(self, held: str = "", num_calls: int = 0) -> None:
        self._held = held
        self._num_calls = num_calls

    @property
    def num_calls(self) -> int:
        return self._num_calls

    @property
    def held(self) -> str:
        """What may still become a tool call."""
        return self._held

    def push(self, text: str, *, is_last: bool) -> Said:
        """Take the next text; what may still become a tool call is held until it is one, or is none."""
        self._held += text
        content: list[str] = []
        calls: list[ToolCall] = []
        while (found := self._next(is_last)) is not None:
            if isinstance(found, ToolCall):
                calls.append(found)
            else:
                content.append(found)
        return Said("".join(content), tuple(calls))

    def _next(self, is_last: bool) -> str | ToolCall | None:
        """Take what is certain from the front of the held text: content, a whole call, or nothing yet."""
        start = self._held.find(_OPEN)
        if start < 0:
            certain = len(self._held) if is_last else len(self._held) - held_back(self._held, (_OPEN,))
            return self._cut(certain) or None
        if start > 0:
            before = self._cut(start)
            # The line break before a call belongs to its markup.
            return before.rstrip("\n") or self._next(is_last)
        end = self._held.find(_CLOSE)
        if end < 0 and not is_last:
            return None
        inner = self._held[len(_OPEN) : end if end >= 0 else None]
        whole = self._cut(end + len(_CLOSE) if end >= 0 else len(self._held))
        return self._call(inner) or whole

    def _cut(self, count: int) -> str:
        front, self._held = self._held[:count], self._held[count:]
        return front

    def _call(self, inner: str) -> ToolCall | None:
        try:
            parsed: Any = json.loads(inner)
        except ValueError:
            return None
        if not isinstance(parsed, dict) or not isinstance(cast("dict[str, Any]", parsed).get("name"), str):
            return None
        call = cast("dict[str, Any]", parsed)
        arguments = call.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._num_calls += 1
        return ToolCall(self._num_calls - 1, f"call_{uuid.uuid4().hex}", call["name"], text)


def held_back(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the beginning of one of the marks.

    >>> held_back("say <tool", ("<tool_call>",))
    5
    """
    longest = 0
    for mark in marks:
        for count in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:count]):
                longest = count
                break
    return longest
