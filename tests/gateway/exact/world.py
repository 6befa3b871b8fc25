"""A small world for laws of exact prompting: a template over characters, answers sampled otherwise than it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from gateway.exact.history import Conversation, read_conversation
from gateway.exact.prompt import RENDERED, STORED
from tracker.types import Call, Choice, Prompting

Json = dict[str, Any]
START, END, LINE = 100_000, 100_001, 100_002
ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
ODD = 50_000
"""Added to a character's id where it was sampled as another token than the template writes."""
WORDS = st.text(alphabet="abc xyz", max_size=6)


def render(messages: Sequence[Json]) -> list[int]:
    """Ids of a conversation up to where the assistant begins; what comes before a bar is thinking, and is stripped."""
    ids: list[int] = []
    for message in messages:
        text = (message.get("content") or "").rpartition("|")[2]
        for call in message.get("tool_calls", []):
            arguments = json.loads(call["function"]["arguments"])
            text += f"<{call['function']['name']} {json.dumps(arguments, sort_keys=True)}>"
        ids += [START, ROLES[message["role"]], *map(ord, text), END, LINE]
    return [*ids, START, ROLES["assistant"]]


def conversation(messages: Sequence[Json], episode: str = "e", **fields: Any) -> Conversation:
    raws = {"messages": messages, **fields}
    return read_conversation(
        {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in raws.items()}, "p", episode
    )


def call_of(
    messages: Sequence[Json], prompt: Sequence[int], answers: Sequence[tuple[Json, Sequence[int]]], **fields: Any
) -> Call:
    """A recorded call that was prompted exactly."""
    asked = conversation(messages)
    source = fields.pop("source", "")
    prompting = Prompting(
        mode=STORED if source else RENDERED,
        source=source,
        history=asked.digests[-1],
        thoughts=fields.pop("thoughts", tuple(sorted(asked.thoughts.items()))),
    )
    choices = tuple(
        Choice(
            index=index,
            sampled_ids=tuple(ids),
            logprobs=tuple(-1.0 for _ in ids),
            message=msgspec.json.encode(message),
            truncated=ids[-1] != END,
        )
        for index, (message, ids) in enumerate(answers)
    )
    given = {"call_id": "c0", "episode_id": "e", "index": 0, "policy": "p", **fields}
    return Call(prompt_ids=tuple(prompt), choices=choices, prompting=prompting, **given)


def words(text: str) -> Json:
    return {"role": "assistant", "content": text}


def asking(text: str) -> Json:
    return {"role": "user", "content": text}


def calling(call_id: str, arguments: str = '{"b": 1, "a": 2}', content: str | None = None) -> Json:
    function = {"name": "get", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[Json, list[int], list[Json]]]:
    """Answers with the ids they were sampled as, and the messages that follow each."""
    told: list[tuple[Json, list[int], list[Json]]] = []
    for number in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            message, after = calling(f"call_{number}"), [{"role": "tool", "tool_call_id": f"call_{number}"}]
            after[0]["content"] = draw(WORDS)
            text, is_cut = '<get {"b": 1, "a": 2}>', False
        else:
            text, is_cut = draw(WORDS) + draw(st.sampled_from(["", "|x"])) + "w", draw(st.booleans())
            message, after = words(text), [asking(draw(WORDS))]
        ids = [ord(letter) + (ODD if draw(st.booleans()) else 0) for letter in text]
        told.append((message, ids if is_cut else [*ids, END], after))
    return told
