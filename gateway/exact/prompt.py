"""The ids of a prompt in which stored ids stand for what would be tokenised again.

Stored are an earlier call's prompt and one of its answers, as the engine saw and sampled them. What comes after that
answer (the end token where none was sampled, the rest of its turn, later messages, the opening of the next answer) is
cut from renderings by the engine. Where the answer ends in a rendering is found by rendering twice with something else
in its place: what both renderings end in comes after it. No id is ever made here: each was sampled or rendered by the
engine. Where the end cannot be told for certain there is no such prompt, and the plain rendering stands. Pure.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.dialects.base import Json
from gateway.exact.history import ASSISTANT, Conversation, Match
from tracker.types import Prompting

Ids = Sequence[int]
STORED: Final = "stored"
RENDERED: Final = "rendered"
PROBES: Final = ("a", "b")
"""Words that stand in for an answer: they differ in their last token, whatever the tokenizer."""
PROBE_ARGUMENTS: Final = "{}"


class Fallback(enum.StrEnum):
    """Why a prompt is a plain rendering."""

    NO_ANSWER = "no_answer"
    """The conversation holds no answer yet."""
    NO_MATCH = "no_match"
    """None of its answers stands, unchanged, where an earlier call of the episode gave it."""
    MEDIA = "media"
    """The engine renders more than ids."""
    NO_BOUNDARY = "no_boundary"
    """The template does not show where the answer ends."""
    REFUSED = "refused"
    """The engine did not render the conversation with something else in the answer's place."""
    UNREAD = "unread"
    """The episode's earlier calls could not be read."""


def probes(messages: Sequence[Json], num_messages: int) -> tuple[list[Json], list[Json]]:
    """Two conversations that show where the answer, the last of the first `num_messages`, ends in their renderings.

    An answer in words is replaced by other words, twice. One with tool calls keeps them, as later messages refer to
    them, under other names; in the second conversation the message after it is changed instead.
    """
    head, answer, rest = list(messages[: num_messages - 1]), messages[num_messages - 1], list(messages[num_messages:])
    if not answer.get("tool_calls"):
        one, other = [[*head, {"role": ASSISTANT, "content": word}, *rest] for word in PROBES]
        return one, other
    renamed = {
        **answer,
        "content": _other_than(answer),
        "tool_calls": [_renamed(call) for call in answer["tool_calls"]],
    }
    changed = [{**rest[0], "content": _other_than(rest[0])}, *rest[1:]] if rest else []
    return [*head, renamed, *rest], [*head, answer, *changed]


def after_answer(full: Ids, one: Ids, other: Ids, match: Match, conversation: Conversation) -> Ids | None:
    """What of the whole rendering comes after the ids of the answer, from the renderings of its `probes`.

    `None` where it cannot be told. A sampled end token is not repeated; one that was not sampled is part of it.
    """
    answer = conversation.messages[match.num_messages - 1]
    if answer.get("tool_calls"):
        is_last = match.num_messages == len(conversation.messages)
        return None if match.ending.truncated else _after_calls(full, one, other, match.ending.sampled_ids[-1], is_last)
    return _after_words(full, one, other, match.ending.sampled_ids[-1])


def prompting_of(
    conversation: Conversation, full: Ids, prompt: Ids, match: Match | None, reason: Fallback | None
) -> Prompting:
    """What is told of a prompt: where it came from and what that changed of the plain rendering."""
    known = dict(conversation.thoughts) if match is None else {**match.known, **conversation.thoughts}
    is_stored = match is not None and reason is None
    num_front = num_common(full, prompt)
    shorter = min(len(full), len(prompt)) - num_front
    num_back = min(shorter, num_common(reversed(full), reversed(prompt)))
    return Prompting(
        mode=STORED if is_stored else RENDERED,
        source="" if match is None else match.ending.call_id,
        choice=0 if match is None else match.ending.choice,
        num_stored=match.ending.num_ids if match is not None and is_stored else 0,
        num_changed=len(prompt) - num_front - num_back,
        num_replaced=len(full) - num_front - num_back,
        reason="" if reason is None else reason.value,
        history=conversation.digests[-1],
        thoughts=tuple(sorted(known.items())),
    )


def _after_words(full: Ids, one: Ids, other: Ids, last: int) -> Ids | None:
    """After an answer in words: what both probes end in, and the whole rendering too."""
    num_after = num_common(reversed(one), reversed(other))
    if not 0 < num_after < len(one) or num_common(reversed(full), reversed(one)) < num_after:
        return None
    tail = full[len(full) - num_after :]
    return tail[1:] if tail[0] == last else tail


def _after_calls(full: Ids, renamed: Ids, changed: Ids, last: int, is_last: bool) -> Ids | None:
    """After an answer with tool calls: its end token, which stands between the calls and the next message's words."""
    start = len(full) - num_common(reversed(full), reversed(renamed))
    stop = len(full) if is_last else num_common(full, changed)
    is_bracketed = 0 < start < stop and (is_last or stop < len(full))
    if not is_bracketed or last not in full[start:stop]:
        return None
    return full[full.index(last, start) + 1 :]


def num_common(left: Iterable[int], right: Iterable[int]) -> int:
    """How many ids both begin with.

    >>> num_common((1, 2, 3), (1, 2, 4, 5))
    2
    """
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _other_than(message: Json) -> str:
    """A word that the content of a message does not begin with."""
    content = message.get("content")
    first, second = PROBES
    return second if isinstance(content, str) and content.startswith(first) else first


def _renamed(call: Json) -> Json:
    function: Json = call.get("function") or {}
    name = f"{PROBES[0]}{function.get('name', '')}{PROBES[1]}"
    return {**call, "function": {**function, "name": name, "arguments": PROBE_ARGUMENTS}}
