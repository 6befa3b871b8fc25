"""The laws of `gateway/conversation.py`: what is the same conversation, and what is another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Conversation, items_of, task_of, text_of, thread_of, traces_of

Json = dict[str, Any]
TEXT = st.text(max_size=8)
ARGUMENTS = st.dictionaries(TEXT, st.integers() | TEXT | st.none() | st.lists(st.integers(), max_size=2), max_size=3)


@st.composite
def tool_calls(draw: st.DrawFn) -> Json:
    return {
        "id": draw(st.uuids()).hex,
        "type": "function",
        "function": {"name": draw(TEXT), "arguments": json.dumps(draw(ARGUMENTS))},
    }


@st.composite
def answers(draw: st.DrawFn) -> Json:
    called = draw(st.lists(tool_calls(), max_size=2))
    text = draw(st.text(min_size=0 if called else 1, max_size=8).filter(lambda said: called or said.strip()))
    return {"role": "assistant", "content": text or None, **({"tool_calls": called} if called else {})}


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    messages: list[Json] = []
    for _ in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from(["user", "user", "system", "tool"]))
        messages.append({"role": role, "content": draw(TEXT), "tool_call_id": draw(TEXT)})
        if draw(st.booleans()):
            messages.append(draw(answers()))
    return messages


def thread(messages: list[Json]) -> Any:
    return thread_of(Conversation(messages=tuple(messages)))


@st.composite
def rewritten(draw: st.DrawFn, message: Json) -> Json:
    """The same message as another agent's library might write it down."""
    made = dict(message)
    text = made.get("content")
    if isinstance(text, str):
        cut = draw(st.integers(0, len(text)))
        pieces = [{"type": "text", "text": part, "cache_control": {}} for part in (text[:cut], text[cut:])]
        made["content"] = draw(st.sampled_from([text, f" {text}\n", pieces]))
    if "tool_calls" in made:
        made["tool_calls"] = [draw(recalled(call)) for call in made["tool_calls"]]
        made["content"] = made["content"] or draw(st.sampled_from([None, "", []]))
    if made["role"] == "assistant":
        made |= draw(st.sampled_from([{}, {"reasoning": "hm"}, {"refusal": None}, {"name": "x"}]))
    return made


@st.composite
def recalled(draw: st.DrawFn, call: Json) -> Json:
    arguments = json.loads(call["function"]["arguments"])
    turned = dict(reversed(arguments.items()))
    written = draw(st.sampled_from([json.dumps(turned, indent=1), json.dumps(turned, separators=(",", ":")), turned]))
    return {**call, "function": {**call["function"], "arguments": written}}


@given(st.data(), conversations())
def test_a_conversation_is_the_same_however_it_is_written_down(data: st.DataObject, messages: list[Json]) -> None:
    again = [data.draw(rewritten(message)) for message in messages]
    assert thread(again) == thread(messages)


@given(conversations(), TEXT)
def test_system_messages_do_not_count_for_identity(messages: list[Json], text: str) -> None:
    notice: Json = {"role": "system", "content": text}
    assert thread([notice, *messages, notice]) == thread(messages)


@given(conversations(), answers(), conversations())
def test_an_answer_that_was_given_is_found_in_what_follows(before: list[Json], answer: Json, after: list[Json]) -> None:
    given_as = traces_of(thread(before).end, answer)
    users = [message for message in after if message["role"] != "assistant"]
    assert thread([*before, answer, *users]).traces[0] == given_as[0]
    assert given_as[0] in thread([*before, answer, *after]).traces


@given(conversations(), answers())
def test_every_tool_call_leads_to_its_answer_also_alone(before: list[Json], answer: Json) -> None:
    called = answer.get("tool_calls", [])
    traces = traces_of(thread(before).end, answer)
    assert len(set(traces)) == 1 + len(called)
    for call in called:
        alone = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert set(thread([{"role": "user", "content": "rewritten"}, alone]).traces) & set(traces)


@given(conversations(), answers())
def test_cutting_a_message_in_two_changes_nothing(before: list[Json], answer: Json) -> None:
    called = answer.get("tool_calls", [])
    text = {"role": "assistant", "content": answer["content"]}
    parts = [text, *({"role": "assistant", "content": None, "tool_calls": [call]} for call in called)]
    assert thread([*before, *parts]).end == thread([*before, answer]).end


@given(conversations(), st.data())
def test_another_word_makes_another_conversation(messages: list[Json], data: st.DataObject) -> None:
    said = [n for n, message in enumerate(messages) if message["role"] == "user"]
    if not said:
        return
    number = data.draw(st.sampled_from(said))
    changed = [*messages]
    changed[number] = {**messages[number], "content": messages[number]["content"] + "x"}
    assert thread(changed).end != thread(messages).end


@pytest.mark.parametrize("text", ["<think>so</think>yes", "so\n</think>\n\nyes", "yes"])
def test_reasoning_in_the_text_does_not_count(text: str) -> None:
    assert list(items_of({"role": "assistant", "content": text})) == [("assistant", "yes")]


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    calls = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": written}}]}
        for written in ("{broken", " {broken ", "{other", None)
    ]
    first, spaced, other, none = (list(items_of(call)) for call in calls)
    assert first == spaced
    assert len({str(one) for one in (first, other, none)}) == 3


def test_a_picture_counts_by_what_it_is() -> None:
    one, same, other = (
        text_of([{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": url}}])
        for url in ("data:a", "data:a", "data:b")
    )
    assert one == same != other
    assert one.startswith("see ")


def test_what_is_malformed_is_read_as_nothing() -> None:
    message: Json = {"role": "assistant", "content": [1, None, {"type": "thinking"}], "tool_calls": ["x", {"id": 1}]}
    assert list(items_of(message)) == [("call", "1", "", "null")]
    assert text_of(7) == ""


def test_a_task_is_what_a_conversation_begins_with() -> None:
    opening = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "find it"}]
    task = task_of(Conversation(messages=tuple(opening)))
    later = [*opening, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
    assert task_of(Conversation(messages=tuple(later))) == task
    assert task_of(Conversation(messages=tuple(opening[1:]))) != task
    assert task_of(Conversation(prompt=b'"a"')) != task_of(Conversation(prompt=b'"b"'))
    assert task.startswith("auto:")


def test_a_tool_call_that_an_agent_turned_into_text_leads_to_its_answer() -> None:
    function = {"name": "look", "arguments": '{"at": "it"}'}
    answer = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_01a2", "function": function}]}
    before = [{"role": "user", "content": "find it"}]
    text = f"Calling tools:\n[{ {'id': 'call_01a2', 'type': 'function', 'function': function} }]"
    after = thread([*before, {"role": "assistant", "content": text}, {"role": "user", "content": "Observation: x"}])
    assert traces_of(thread(before).end, answer)[1] in after.traces
