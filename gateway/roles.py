"""What a call is for, seen from its words: the agent's own work, a sub-agent's, a title, a summary.

A title is asked for without tools, of a conversation; a summary is asked for at the end of a conversation, or of one
that is quoted whole. Any other call that goes on from an answer has the role of the call that gave it; where that is
not known, it is `main` if it has the system prompt and the tools of the first such call of its episode, and `subagent`
if not. `X-Hone-Role` wins over all of it. What becomes of a role is the run's to say. Pure.
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
_SIZE: Final = 8
"""Bytes of each digest in a mark."""
_LOOK_CHARS: Final = 2_000
"""Where in a text the wish stands: near its beginning or its end."""
_OPENING_CHARS: Final = 300
"""Where a system prompt says what the model is."""
_SHORT_CHARS: Final = 4_000
"""A system prompt for one purpose is shorter than an agent's."""
_DIGITS: Final = re.compile(r"\d+")
_BILLING_NAME: Final = "x-anthropic-billing-header:"
_BILLING: Final = re.compile(rf"^{_BILLING_NAME}.*\n?", re.MULTILINE)
"""Claude Code writes a line of its own into the system prompt, which differs in every call."""

_OF_TALK: Final = r"\b(?:conversation|chat|session|thread|dialog(?:ue)?|discussion|exchange)s?\b"
_OF_ONE_MESSAGE: Final = r"\b(?:message|request|prompt|query)\b"
"""What a title may be of where the system prompt asks for it; a user who says so may mean a text of his own."""
_TITLE: Final = re.compile(r"\b(?:title|headline|topic)s?\b", re.IGNORECASE)
_TITLE_WORDS: Final = ("title", "headline", "topic")
_MAKE: Final = re.compile(
    r"\b(?:generat|writ|creat|giv|provid|suggest|produc|return|output|extract|summari[sz]|com(?:e|ing) up)\w*\b",
    re.IGNORECASE,
)
_TITLE_MAKER: Final = re.compile(r"\btitle (?:generator|writer)\b|\bisNewTopic\b", re.IGNORECASE)
_OWN: Final = re.compile(_OF_TALK, re.IGNORECASE)
_OWN_OR_ONE: Final = re.compile(rf"{_OF_TALK}|{_OF_ONE_MESSAGE}", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"[.!?\n]+")
_TALK: Final = rf"(?:{_OF_TALK}|\b(?:history|transcript|context|messages|interactions?|progress|work so far)\b)"
_SUMMARY: Final = re.compile(
    rf"\b(?:summari[sz]|condens|compact)\w*\b[^.\n]{{0,100}}{_TALK}"
    rf"|\b(?:summary|recap|synopsis|takeaways?)\b[^.\n]{{0,100}}{_TALK}"
    rf"|{_TALK}[^.\n]{{0,40}}\bsummari[sz](?:ation|er)\b"
    rf"|\b(?:continu|resum)\w+\b[^.\n]{{0,40}}\b(?:our|the|this) {_OF_TALK}"
    r"|\bhand-?off summary\b|\bcontext (?:checkpoint )?compaction\b|\bcontext extraction\b"
    r"|\bextract\b[^.]{0,80}\bcontext\b[^.]{0,80}\bconversation\b",
    re.IGNORECASE,
)
_SUMMARY_WORDS: Final = (
    *("summar", "condens", "compact", "recap", "synopsis", "takeaway"),
    *("continu", "resum", "extract"),
)
"""What every match of the pattern has one of."""


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
    has_past: bool = False
    """Whether anything was answered before."""


def shape_of(asked: Asked, conversation: Conversation) -> Shape:
    """What a call looks like."""
    messages = conversation.messages
    tools = _tool_names(asked)
    system = _without_billing(system_of(messages)).strip()
    last = messages[-1] if messages else {}
    wish = _without_billing(text_of(last.get("content"))) if last.get("role") == "user" else ""
    if not tools and _asks_title(system, wish):
        return Shape(role=TITLE)
    has_past = any(message.get("role") == "assistant" for message in messages)
    if wish and _asks_summary(system, wish, has_past=has_past, has_tools=bool(tools)):
        return Shape(role=SUMMARY)
    return Shape(role=MAIN, mark=_mark(system, tools), has_past=has_past)


def settled_role(shape: Shape, lineage: str | None, first: bytes) -> str:
    """The role of a call in its episode.

    `lineage` is the role of the call whose answer it goes on from, `first` the mark of the episode's main agent.
    """
    if not shape.mark:
        return shape.role
    if lineage not in (None, TITLE, SUMMARY):
        return str(lineage)
    return MAIN if _is_same_agent(shape, first or shape.mark) else SUBAGENT


def _asks_title(system: str, wish: str) -> bool:
    """Whether one sentence of the system prompt, or near the beginning of what the user says, asks for it."""
    if len(system) <= _SHORT_CHARS and (_TITLE_MAKER.search(system) or _wants_title(system, _OWN_OR_ONE)):
        return True
    return _wants_title(wish[:_LOOK_CHARS], _OWN)


def _wants_title(text: str, subject: re.Pattern[str]) -> bool:
    lowered = text.lower()
    if not any(word in lowered for word in _TITLE_WORDS):  # nearly always, and much faster than the patterns
        return False
    wanted = (_TITLE, _MAKE, subject)
    return any(all(pattern.search(sentence) for pattern in wanted) for sentence in _SENTENCE.split(text))


def _asks_summary(system: str, wish: str, *, has_past: bool, has_tools: bool) -> bool:
    """Whether the user's last words ask for it, where there is something to sum up; or the system prompt is for it."""
    if not has_tools and len(system) <= _SHORT_CHARS and _wants_summary(system[:_OPENING_CHARS]):
        return True
    looked_at = wish if len(wish) <= 2 * _LOOK_CHARS else f"{wish[:_LOOK_CHARS]}\n{wish[-_LOOK_CHARS:]}"
    is_quoted = not has_tools and len(wish) > _LOOK_CHARS
    return (has_past or is_quoted) and _wants_summary(looked_at)


def _wants_summary(text: str) -> bool:
    lowered = text.lower()  # nearly always there is none of the words, and that is seen much faster than no match
    return any(word in lowered for word in _SUMMARY_WORDS) and _SUMMARY.search(text) is not None


def _without_billing(text: str) -> str:
    return _BILLING.sub("", text) if _BILLING_NAME in text else text


def _tool_names(asked: Asked) -> tuple[str, ...]:
    """The tools the model may use, by name, or by kind where they have none."""
    raw = asked.fields.get("tools")
    choice = asked.fields.get("tool_choice")
    if raw is None or (choice is not None and bytes(choice) == b'"none"'):
        return ()
    tools = decode_as(raw, list[_Tool], "tools")
    return tuple(sorted({tool.function.name if tool.function else tool.name or tool.type for tool in tools}))


def _mark(system: str, tools: tuple[str, ...]) -> bytes:
    """How the system prompt begins, all of it, then the tools; numbers in a prompt do not count."""
    plain = _DIGITS.sub("0", system)
    return _short(plain[:HEAD_CHARS]) + _short(plain) + (_short("\0".join(tools)) if tools else b"")


def _is_same_agent(shape: Shape, first: bytes) -> bool:
    """Whether the prompt is the first one's (with tools: begins as it does), and so are the tools.

    Those may be left out at last, when an agent is to end with what it has.
    """
    tools = shape.mark[2 * _SIZE :]
    if tools != first[2 * _SIZE :] and (tools or not shape.has_past):
        return False
    compared = _SIZE if tools else 2 * _SIZE
    return shape.mark[:compared] == first[:compared]


def _short(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE, person=b"hone-role").digest()
