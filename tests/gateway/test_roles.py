"""`gateway/roles.py`: what a call is for, from its words and its place in the episode."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.conversation import conversation_of
from gateway.dialects.base import Limits
from gateway.dialects.chat import Chat
from gateway.roles import Shape, settled_role, shape_of

Json = dict[str, Any]
AGENT = "You are a careful agent. The conversation may be compacted. Give every file a title."


def shape(*messages: Json, tools: tuple[str, ...] = (), **fields: Any) -> Shape:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    body = {"model": "m", "messages": list(messages), **({"tools": offered} if tools else {}), **fields}
    asked = Chat().parse(json.dumps(body).encode(), Limits())
    return shape_of(asked, conversation_of(asked))


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


PAST = (user("fix the bug"), assistant("I looked at it."))


@pytest.mark.parametrize(
    "messages",
    [
        (system("You are a title generator. You output ONLY a thread title."), user("fix the bug")),
        (
            system("Analyze if this message indicates a new topic. Write JSON with two fields: isNewTopic and title."),
            user("hi"),
        ),
        (user("Generate a short title for this conversation:\nuser: fix the bug"),),
        (user("### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history."),),
        (*PAST, user("Provide a concise, 5-word-or-less title for the conversation, using title case.")),
        (system("Summarize the session in a headline of at most 6 words."), user("fix the bug")),
    ],
)
def test_a_title_is_known_by_what_is_asked(messages: tuple[Json, ...]) -> None:
    assert shape(*messages).role == "title"


@pytest.mark.parametrize(
    "messages",
    [
        (user("Write a title for my essay about bees."),),
        (user("What is the title of this book? Give it in one line."),),
        (user("fix the bug"),),
        (system(AGENT), user("rename the file")),
        (system("You write poems on any topic the user gives."), user("bees")),
        (user("Summarize this article about the history of chess."),),
    ],
)
def test_ordinary_work_is_no_title_and_no_summary(messages: tuple[Json, ...]) -> None:
    assert shape(*messages).role == "main"


def test_a_call_with_tools_is_no_title() -> None:
    assert shape(user("Generate a title for this conversation."), tools=("look",)).role == "main"
    named = shape(user("Generate a title for this conversation."), tools=("look",), tool_choice="none")
    assert named.role == "title"


@pytest.mark.parametrize(
    "messages",
    [
        (*PAST, user("Your task is to create a detailed summary of the conversation so far.")),
        (*PAST, user("Please summarize our chat. Then stop.")),
        (*PAST, user("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM.")),
        (*PAST, user("Provide a detailed prompt for continuing our conversation above.")),
        (*PAST, user("Summarize the takeaway from the conversation. Do not add any introductory phrases.")),
        (system("You are a helpful AI assistant tasked with summarizing conversations."), user("user: x")),
        (user("Condense the following transcript into key points.\n" + "user: x\nassistant: y\n" * 200),),
    ],
)
def test_a_summary_is_known_by_what_is_asked_at_the_end(messages: tuple[Json, ...]) -> None:
    assert shape(*messages).role == "summary"


def test_a_summary_may_be_asked_for_while_tools_are_offered() -> None:
    asked = shape(system(AGENT), *PAST, user("Summarize the conversation above."), tools=("look",))
    assert asked.role == "summary"


def test_a_call_that_has_the_prompt_and_the_tools_of_the_first_is_main() -> None:
    first = shape(system(AGENT), user("a"), tools=("look", "write"))
    again = shape(system(AGENT), user("b"), tools=("write", "look"))
    assert settled_role(again, None, first.mark) == "main"
    assert settled_role(first, None, first.mark) == "main"


def test_numbers_and_a_changing_end_make_no_other_agent() -> None:
    head = "You are an agent with many rules. " * 5
    first = shape(system(f"{head}Today is 2026-11-30."), user("a"), tools=("look",))
    later = shape(system(f"{head}Today is 2026-12-01, and you are in plan mode."), user("a"), tools=("look",))
    assert settled_role(later, None, first.mark) == "main"
    assert settled_role(shape(system(f"{head}You are the critic."), user("a")), None, first.mark) == "subagent"


@pytest.mark.parametrize(
    "other",
    [
        shape(system("You check the work."), user("a"), tools=("look", "write")),
        shape(system(AGENT), user("a"), tools=("look",)),
        shape(system(AGENT), user("a")),
        shape(user("a"), tools=("look", "write")),
    ],
)
def test_another_prompt_or_other_tools_are_another_agent(other: Shape) -> None:
    first = shape(system(AGENT), user("a"), tools=("look", "write"))
    assert settled_role(other, None, first.mark) == "subagent"


def test_tools_may_be_left_out_at_the_end() -> None:
    first = shape(system(AGENT), *PAST, tools=("look",))
    assert settled_role(shape(system(AGENT), *PAST, user("end now")), None, first.mark) == "main"


def test_what_goes_on_from_an_answer_has_the_role_of_who_gave_it() -> None:
    first = shape(system(AGENT), user("a"))
    other = shape(system("You check."), *PAST, user("b"))
    assert settled_role(other, "main", first.mark) == "main"
    assert settled_role(first, "subagent", first.mark) == "subagent"
    assert settled_role(first, "judge", first.mark) == "judge"
    assert settled_role(other, "title", first.mark) == "subagent"


def test_a_role_that_was_named_or_seen_is_not_settled_again() -> None:
    assert settled_role(Shape(role="judge"), "main", b"x") == "judge"
    assert settled_role(shape(user("Generate a title for this conversation.")), "main", b"x") == "title"


def test_a_line_that_differs_in_every_call_does_not_count() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1; cch={};\n"
    first = shape(system(line.format("abc") + AGENT), user("a"))
    assert settled_role(shape(system(line.format("def") + AGENT), user("b")), None, first.mark) == "main"
