"""What a call is for, seen from its words: the agent's own work, a sub-agent's, a title, a summary.

A title is asked for without tools, of a conversation; a summary is asked for at the end of a conversation, or of one
that is quoted whole. Any other call is `main` if it has the system prompt and the tools of the first such call of its
episode, and `subagent` if not; one that goes on from an answer has the role of the call that gave it, as long as its
system prompt begins the same. `X-Hone-Role` wins over all of it. What becomes of a role is the run's to say. Pure.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from gateway.conversation import Conversation, system_of, text_of
from gateway.dialects.base import Asked, decode_as
from tracker.types import Record

MAIN: Final = "main"
SUBAGENT: Final = "subagent"
TITLE: Final = "title"
SUMMARY: Final = "summary"

HEAD_CHARS: Final = 128
"""How much of a system prompt must be the same where the rest changes from call to call (dates, folders, memories)."""
_LOOK_CHARS: Final = 2_000
"""Where in a text the wish stands: near its beginning or its end."""
_SHORT_CHARS: Final = 4_000
"""A system prompt for one purpose is shorter than an agent's."""
_DIGITS: Final = re.compile(r"\d+")
_BILLING: Final = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""Claude Code writes a line of its own into the system prompt, which differs in every call."""

_SUBJECT: Final = r"\b(?:conversation|chat|session|thread|dialog(?:ue)?|discussion|exchange)\b"
_MAKE: Final = (
    r"\b(?:generat|writ|creat|giv|provid|suggest|produc|return|output|extract|summari[sz]|com(?:e|ing) up)\w*\b"
)
_TITLES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_MAKE}[^.]{{0,120}}\b(?:title|headline|topic)s?\b",
        r"\btitle (?:generator|writer)\b",
        r"\bisNewTopic\b",
    )
)
_TITLE_SUBJECT: Final = re.compile(rf"{_SUBJECT}|\b(?:message|request|prompt|query|task)s?\b", re.IGNORECASE)
_OWN_SUBJECT: Final = re.compile(_SUBJECT, re.IGNORECASE)
_TALK: Final = rf"(?:{_SUBJECT}|\b(?:history|transcript|context|messages|interactions?|progress|work so far)\b)"
_SUMMARIES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:summari[sz](?:e|es|ing)|condens(?:e|es|ing)|compact(?:s|ing)?)\b[^.\n]{{0,100}}{_TALK}",
        rf"\b(?:summary|recap|synopsis|takeaways?)\b[^.\n]{{0,100}}{_TALK}",
        rf"\b(?:continu|resum)\w+\b[^.\n]{{0,40}}\b(?:our|the|this) {_SUBJECT}",
        r"\bhand-?off summary\b|\bcontext (?:checkpoint )?compaction\b|\bcontext extraction\b",
        r"\bextract\b[^.]{0,80}\bcontext\b[^.]{0,80}\bconversation\b",
    )
)


class _Function(msgspec.Struct):
    name: str = ""


class _Tool(msgspec.Struct):
    name: str = ""
    type: str = ""
    function: _Function | None = None


class Shape(Record, frozen=True):
    """A call by itself."""

    role: str
    """`main` where only the rest of the episode can tell."""
    mark: bytes = b""
    """The agent that speaks, by system prompt and tools; empty where it says nothing of the episode's main agent."""


def shape_of(asked: Asked, conversation: Conversation) -> Shape:
    """What a call looks like."""
    messages = conversation.messages
    tools = _tool_names(asked)
    system = _BILLING.sub("", system_of(messages)).strip()
    last = messages[-1] if messages else {}
    wish = _BILLING.sub("", text_of(last.get("content"))) if last.get("role") == "user" else ""
    if not tools and _asks_title(system, wish):
        return Shape(role=TITLE)
    has_past = any(message.get("role") == "assistant" for message in messages)
    if wish and _asks_summary(system, wish, has_past=has_past, has_tools=bool(tools)):
        return Shape(role=SUMMARY)
    return Shape(role=MAIN, mark=_mark(system, tools))


def settled_role(shape: Shape, lineage: str | None, first: bytes) -> str:
    """The role of a call in its episode.

    `lineage` is the role of the call whose answer it goes on from, `first` the mark of the episode's main agent.
    """
    if not shape.mark:
        return shape.role
    if lineage not in (None, MAIN, TITLE, SUMMARY):
        return str(lineage)
    return MAIN if _is_same_agent(shape.mark, first or shape.mark, is_next=lineage == MAIN) else SUBAGENT


def _asks_title(system: str, wish: str) -> bool:
    """Whether the wish stands in the system prompt, or near the beginning of what the user says."""
    head = wish[:_LOOK_CHARS]
    if len(system) <= _SHORT_CHARS and any(p.search(system) for p in _TITLES):
        return _TITLE_SUBJECT.search(system) is not None or _TITLE_SUBJECT.search(head) is not None
    return any(pattern.search(head) for pattern in _TITLES) and _OWN_SUBJECT.search(head) is not None


def _asks_summary(system: str, wish: str, *, has_past: bool, has_tools: bool) -> bool:
    """Whether the user's last words ask for it, where there is something to sum up; or the system prompt is for it."""
    if not has_tools and len(system) <= _SHORT_CHARS and any(p.search(system[:_LOOK_CHARS]) for p in _SUMMARIES):
        return True
    looked_at = wish if len(wish) <= 2 * _LOOK_CHARS else f"{wish[:_LOOK_CHARS]}\n{wish[-_LOOK_CHARS:]}"
    is_quoted = not has_tools and len(wish) > _LOOK_CHARS
    return (has_past or is_quoted) and any(pattern.search(looked_at) for pattern in _SUMMARIES)


def _tool_names(asked: Asked) -> tuple[str, ...]:
    """The tools the model may use, by name, or by kind where they have none."""
    raw = asked.fields.get("tools")
    choice = asked.fields.get("tool_choice")
    if raw is None or (choice is not None and bytes(choice) == b'"none"'):
        return ()
    tools = decode_as(raw, list[_Tool], "tools")
    return tuple(sorted({tool.function.name if tool.function else tool.name or tool.type for tool in tools}))


def _mark(system: str, tools: tuple[str, ...]) -> bytes:
    """Head and whole of the system prompt, then the tools; numbers in a prompt do not count."""
    plain = _DIGITS.sub("0", system)
    names = sorted(_short(name, 4) for name in tools)
    return _short(plain[:HEAD_CHARS], 8) + _short(plain, 8) + b"".join(names)


def _is_same_agent(mark: bytes, first: bytes, *, is_next: bool) -> bool:
    """Whether two marks are of one agent: its prompt, or one that begins so, and not other tools on both sides."""
    tools, others = _names(mark), _names(first)
    if not (tools <= others or others <= tools):
        return False
    if mark[8:16] == first[8:16]:
        return True
    return mark[:8] == first[:8] and (is_next or tools == others)


def _names(mark: bytes) -> frozenset[bytes]:
    return frozenset(mark[at : at + 4] for at in range(16, len(mark), 4))


def _short(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size, person=b"hone-role").digest()
