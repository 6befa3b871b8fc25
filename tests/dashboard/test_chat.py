"""Messages of every dialect as people read them, and of a call only what is new."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.chat import MAX_CHARS, Message, Said, before_of, message_of, turn_of
from tests.tracker.building import call
from tracker.types import Call, Choice


def told(value: Any) -> list[tuple[str, str, str]]:
    """(kind, title, text) of what a message says."""
    return [(said.kind, said.title, said.text) for said in message_of(json.dumps(value).encode()).said]


TOOL = {"name": "f", "arguments": '{"a":1}'}
SHOWN_TOOL = ("tool", "f", '{\n  "a": 1\n}')
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
THINKING = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "42"}]}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
HM_SO = [("thought", "", "hm"), ("text", "", "so")]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hi"}, [("text", "", "hi")]),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, [("text", "", "hi")]),
        ({"role": "user", "content": [IMAGE]}, [("media", "", "image_url, not shown here")]),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": TOOL}]}, [SHOWN_TOOL]),
        ({"role": "tool", "tool_call_id": "1", "content": "42"}, [("result", "1", "42")]),
        ({"role": "assistant", "content": THINKING}, HM_SO),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"a": 1}}]}, [SHOWN_TOOL]),
        ({"role": "user", "content": [RESULT]}, [("result", "1", "42")]),
        ({"type": "function_call", "name": "f", "arguments": "not JSON"}, [("tool", "f", "not JSON")]),
        ({"type": "function_call_output", "call_id": "1", "output": "42"}, [("result", "1", "42")]),
        (REASONING, [("thought", "", "hm")]),
        ({"role": "assistant", "content": "so", "reasoning_content": "hm"}, HM_SO),
        ("the prompt of a completion", [("text", "", "the prompt of a completion")]),
        ([1], [("json", "", "[\n  1\n]")]),
    ],
)
def test_a_message_is_told_whatever_dialect_it_is_of(message: Any, expected: list[tuple[str, str, str]]) -> None:
    assert told(message) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "type", "content", "text", "tool_calls", "function", "name", "x"]), inner
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_no_message_is_too_strange_to_be_shown(value: object) -> None:
    assert isinstance(message_of(msgspec.json.encode(value)), Message)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_json_are_shown_as_they_are(raw: bytes) -> None:
    assert isinstance(message_of(raw), Message)


def test_a_very_long_text_is_cut_and_says_so() -> None:
    (said,) = message_of(msgspec.json.encode("x" * (MAX_CHARS + 1))).said
    assert (len(said.text), said.is_cut) == (MAX_CHARS, True)


def user(text: str) -> bytes:
    return msgspec.json.encode({"role": "user", "content": text})


def assistant(text: str, **more: str) -> bytes:
    return msgspec.json.encode({"role": "assistant", "content": text, **more})


def turn(name: str, index: int, messages: list[bytes], answer: bytes) -> Call:
    choice = Choice(index=0, sampled_ids=(1,), logprobs=(-0.1,), message=answer)
    return Call(call_id=name, episode_id="e", index=index, policy="p", messages=tuple(messages), choices=(choice,))


def test_of_a_call_only_what_its_parent_had_not_is_new() -> None:
    first = turn("a", 0, [user("1")], assistant("one", reasoning_content="hidden"))
    second = turn("b", 1, [user("1"), assistant("one"), user("2")], assistant("two"))
    seen = turn_of(second, first)
    assert (seen.num_before, seen.after, seen.repeats_answer, seen.is_changed) == (1, "a", True, False)
    assert [message.said for message in seen.new] == [(Said(kind="text", text="2"),)]
    assert seen.answers[0][1].said[0].text == "two"


def test_an_answer_that_came_back_changed_is_shown() -> None:
    first = turn("a", 0, [user("1")], assistant("one"))
    second = turn("b", 1, [user("1"), assistant("won"), user("2")], assistant("two"))
    seen = turn_of(second, first)
    assert (seen.repeats_answer, seen.is_changed) == (False, True)
    assert [message.said[0].text for message in seen.new] == ["won", "2"]


def test_a_call_without_a_parent_goes_on_from_whom_it_repeats_the_most() -> None:
    one, other = turn("a", 0, [user("1")], assistant("x")), turn("b", 1, [user("1"), user("2")], assistant("y"))
    third = turn("c", 2, [user("1"), user("2"), user("3")], assistant("z"))
    assert before_of(third, [one, other, third], {"c": None}) == other
    assert before_of(third, [one, other, third], {"c": "a"}) == one
    assert before_of(one, [one, other, third], {"a": None}) is None
    assert turn_of(call("d", 3, [1], [2]), None).num_before == 0
