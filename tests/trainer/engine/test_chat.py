"""Conversations into tokens, and what the template is given."""

import json
from typing import Any

import pytest

from tests.trainer.engine.conftest import byte_tokenizer
from tracker.errors import BadRequest
from trainer.engine.chat import render
from trainer.engine.protocol import ChatBody, parse

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
PLAIN_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


def text(template: str | None = None, **fields: Any) -> str:
    tokenizer = byte_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    body = parse(json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode(), ChatBody)
    return str(tokenizer.decode(render(tokenizer, body)))


def test_a_template_that_knows_tools_is_given_them() -> None:
    assert '"name": "look"' in text(tools=TOOLS)
    assert "look" not in text(tools=TOOLS, tool_choice="none")


def test_a_template_that_knows_no_tools_reads_them_in_the_system_message() -> None:
    shown = text(PLAIN_TEMPLATE, tools=TOOLS)
    assert shown.startswith("[system]")
    assert '"name": "look"' in shown
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    joined = text(PLAIN_TEMPLATE, tools=TOOLS, messages=messages)
    assert joined.startswith("[system]Be brief.\n\n")
    assert joined.count("[system]") == 1


def test_arguments_of_earlier_calls_reach_the_template_as_objects() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"item": "desk"}'}}
    shown = text(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert '{"item": "desk"}' in shown


@pytest.mark.parametrize("calls", [5, "x", [{}], [{"function": {"name": "f", "arguments": "{"}}], [[]]])
def test_calls_that_are_none_are_refused(calls: object) -> None:
    with pytest.raises(BadRequest, match="tool_calls"):
        text(messages=[{"role": "assistant", "tool_calls": calls}])


def test_what_the_template_refuses_is_the_callers_mistake() -> None:
    with pytest.raises(BadRequest, match="alternate"):
        text("{{ raise_exception('roles must alternate') }}")


def test_template_settings_are_passed_on() -> None:
    assert text("{{ mood }}", chat_template_kwargs={"mood": "calm"}) == "calm"


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(BadRequest, match="no chat template"):
        text("")
