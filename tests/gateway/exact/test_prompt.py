"""Laws of prompts with stored ids, over a template that strips thinking and writes arguments in its own order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.exact.history import Match, endings
from gateway.exact.prompt import after_answer, num_common, probes, prompting_of
from tests.gateway.exact.world import (
    END,
    LINE,
    ROLES,
    START,
    WORDS,
    Json,
    asking,
    call_of,
    calling,
    conversation,
    render,
    turns,
    words,
)

Turns = list[tuple[Json, list[int], list[Json]]]


def gone_on(messages: list[Json], prompt: list[int], ids: list[int], rest: list[Json]) -> list[int] | None:
    """The prompt of a call that sends `messages`, the last of them an answer, with something after it."""
    call = call_of(messages[:-1], prompt, [(messages[-1], ids)])
    whole = [*messages, *rest]
    match = Match(ending=endings(call)[0], num_messages=len(messages))
    one, other = (render(changed) for changed in probes(whole, len(messages)))
    tail = after_answer(render(whole), one, other, match, conversation(whole))
    return None if tail is None else [*prompt, *ids, *tail]


@given(turns())
def test_unchanged_answers_make_one_branch_whose_every_id_was_sampled_or_rendered(told: Turns) -> None:
    messages: list[Json] = [asking("go")]
    prompt = render(messages)
    for message, ids, after in told:
        full = render([*messages, message, *after])
        found = gone_on([*messages, message], prompt, ids, after)
        assert found is not None
        stored = [*prompt, *ids]
        assert found[: len(stored)] == stored
        tail = found[len(stored) :]
        assert full[-len(tail) :] == tail
        assert tail[:2] == ([LINE, START] if ids[-1] == END else [END, LINE])
        assert tail.count(START) == len(after) + 1
        messages += [message, *after]
        prompt = found


@given(turns(), WORDS)
def test_what_is_told_of_a_prompt_adds_up(told: Turns, text: str) -> None:
    message, ids, after = told[0]
    messages = [asking(text)]
    prompt = render(messages)
    found = gone_on([*messages, message], prompt, ids, after)
    whole = conversation([*messages, message, *after])
    assert found is not None
    full = render(whole.messages)
    match = Match(ending=endings(call_of(messages, prompt, [(message, ids)]))[0], num_messages=2)
    said = prompting_of(whole, full, found, match, None)
    assert len(found) - said.num_changed == len(full) - said.num_replaced
    assert (said.num_changed, said.num_replaced) == (0, 0) or found != full
    assert said.num_stored == len(prompt) + len(ids)
    assert said.history == whole.digests[-1]


def test_a_message_whose_end_the_template_does_not_write_is_not_gone_on_from() -> None:
    messages = [asking("go"), calling("call_1")]
    rest = [{"role": "tool", "tool_call_id": "call_1", "content": "42"}]
    assert gone_on(messages, render(messages[:1]), [ord("x"), END + 7], rest) is None


def test_a_cut_tool_call_is_not_gone_on_from() -> None:
    messages = [asking("go"), calling("call_1")]
    rest = [{"role": "tool", "tool_call_id": "call_1", "content": "42"}]
    assert gone_on(messages, render(messages[:1]), [ord(">")], rest) is None


def test_a_template_that_drops_the_next_message_shows_no_boundary() -> None:
    messages = [asking("go"), calling("call_1"), {"role": "tool", "tool_call_id": "call_1", "content": "42"}]
    match = Match(ending=endings(call_of(messages[:1], [1], [(messages[1], [END])]))[0], num_messages=2)
    full, renamed = [START, 3, 7, END, START], [START, 3, 8, END, START]
    assert after_answer(full, renamed, full, match, conversation(messages)) is None
    assert after_answer(full, full, [*full, 1], match, conversation(messages)) is None


def test_a_conversation_that_ends_with_the_answer_goes_on_behind_it() -> None:
    for message in (words("hey"), calling("call_1")):
        messages = [asking("go"), message]
        prompt = render(messages[:1])
        assert gone_on(messages, prompt, [5, END], []) == [*prompt, 5, END, LINE, START, ROLES["assistant"]]


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_what_two_sequences_begin_with_is_counted(left: list[int], right: list[int]) -> None:
    count = num_common(left, right)
    assert left[:count] == right[:count]
    assert left[count : count + 1] != right[count : count + 1] or count == min(len(left), len(right))
