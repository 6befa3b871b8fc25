"""What counts as sent back unchanged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.exact.history import Conversation, Match, canonical, endings, read_conversation
from tests.gateway.exact.world import END, Json, asking, call_of, calling, conversation, words
from tracker.errors import BadRequest
from tracker.types import Call, CallState, Reason

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_keys(value[name]) for name in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_arguments_are_the_same_however_they_are_written(arguments: Json) -> None:
    told = canonical(calling("c", json.dumps(arguments)))
    assert told == canonical(calling("c", json.dumps(reversed_keys(arguments), indent=2)))
    assert told == canonical(calling("c", json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))))
    assert told != canonical(calling("c", json.dumps({**arguments, "other": 1})))
    assert told != canonical(calling("d", json.dumps(arguments)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (words("hi"), {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}),
        (words("hi"), {"content": "hi", "role": "assistant", "tool_calls": [], "refusal": None, "audio": None}),
        (calling("c"), {**calling("c"), "content": ""}),
        (calling("c", '{"n": 1.0}'), calling("c", '{"n": 1}')),
        (calling("c", ""), calling("c", "{}")),
        (asking("hi"), {**asking("hi"), "traceId": "x"}),
        (words("hi"), {**words("hi"), "reasoning": "hm"}),
    ],
)
def test_the_same_message_said_otherwise_is_unchanged(one: Json, other: Json) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (words("hi"), words("hi ")),
        (words("hi"), asking("hi")),
        (words("hi"), {**words("hi"), "name": "n"}),
        (calling("c", '{"n": 1}'), calling("c", '{"n": "1"}')),
        (calling("c", '{"n": [1, 2]}'), calling("c", '{"n": [2, 1]}')),
        (calling("c", "not json"), calling("c", "not  json")),
        (asking("ab"), {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    ],
)
def test_an_edit_is_an_edit(one: Json, other: Json) -> None:
    assert canonical(one) != canonical(other)


@given(st.lists(st.builds(asking, st.text(max_size=3)), min_size=1, max_size=5), st.integers(0, 4))
def test_a_changed_message_changes_every_digest_from_it_on(messages: list[Json], place: int) -> None:
    place %= len(messages)
    changed = [*messages]
    changed[place] = {**changed[place], "content": changed[place]["content"] + "!"}
    one, other = conversation(messages).digests, conversation(changed).digests
    assert [a == b for a, b in zip(one, other, strict=True)] == [n <= place for n in range(len(messages) + 1)]
    assert not set(one) & set(conversation(messages, episode="another").digests)


def test_what_shapes_the_whole_rendering_changes_every_message() -> None:
    plain = conversation([asking("hi")])
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert conversation([asking("hi")], tools=[]).digests == plain.digests
    assert conversation([asking("hi")], seed=3, tool_choice="auto").digests == plain.digests
    shaped = [
        conversation([asking("hi")], tools=tools),
        conversation([asking("hi")], tools=tools, tool_choice="none"),
        conversation([asking("hi")], chat_template_kwargs={"enable_thinking": False}),
    ]
    assert len({plain.digests[0], *(one.digests[0] for one in shaped)}) == 4


def fits(call: Call, then: Conversation, num_messages: int) -> bool:
    (ending,) = endings(call)
    assert ending.digest == then.digests[num_messages]
    return Match(ending=ending, num_messages=num_messages).fits(then)


def test_reasoning_that_is_left_out_is_no_change_and_other_reasoning_is() -> None:
    thinking = {**words("4"), "reasoning": "2 + 2"}
    call = call_of([asking("hi")], [1], [(thinking, [2, END])])
    for told in (words("4"), thinking, {**words("4"), "reasoning_content": "2 + 2"}):
        assert fits(call, conversation([asking("hi"), told]), 2)
    assert not fits(call, conversation([asking("hi"), {**words("4"), "reasoning": "2 + 3"}]), 2)


def test_reasoning_of_an_older_answer_stays_known_while_the_agent_leaves_it_out() -> None:
    asked = [asking("hi"), words("4"), asking("more")]
    first = call_of(asked[:1], [1], [({**words("4"), "reasoning": "2 + 2"}, [2, END])])
    match = Match(ending=endings(first)[0], num_messages=2)
    second = call_of(asked, [1, 2], [(words("5"), [3, END])], thoughts=tuple(match.known.items()))
    later = [{**words("4"), "reasoning": "2 + 2"}, {**words("4"), "reasoning": "no"}]
    good, bad = (conversation([asked[0], one, asked[2], words("5")]) for one in later)
    assert fits(second, good, 4)
    assert not fits(second, bad, 4)


def test_only_whole_answers_with_sound_ids_are_gone_on_from() -> None:
    call = call_of([asking("hi")], [1], [(words("4"), [2, END]), (words("5"), [3, END])])
    assert [ending.choice for ending in endings(call)] == [0, 1]
    changed = [
        {"state": CallState.ABORTED},
        {"reason": Reason.IMAGES},
        {"prompting": None},
        {"choices": tuple(msgspec.structs.replace(one, reason=Reason.NO_IDS) for one in call.choices)},
        {"choices": tuple(msgspec.structs.replace(one, message=b'"a text"') for one in call.choices)},
    ]
    assert [endings(msgspec.structs.replace(call, **fields)) for fields in changed] == [[]] * len(changed)


def test_messages_nested_beyond_reading_are_refused() -> None:
    deep = b'[{"role": "user", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]"
    with pytest.raises(BadRequest, match="nested"):
        read_conversation({"messages": msgspec.Raw(deep)}, "p", "e")
