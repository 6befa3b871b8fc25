"""The Messages dialect: how a request becomes chat completions, what is refused, how errors are told."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answers import form_of
from gateway.dialects.base import Asked, Limits, Target
from gateway.dialects.messages.blocks import whole_blocks
from gateway.dialects.messages.dialect import Messages
from gateway.dialects.messages.thinking import sign
from gateway.tokens import body_to_count
from gateway.upstream import EngineRefused
from tracker.errors import BadRequest, Gone, HoneError, NotFound, Unauthorized, Unavailable, UpstreamFailed
from tracker.types import Sampling

Json = dict[str, Any]
HI: Json = {"role": "user", "content": "hi"}
LOOK: Json = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
USE: Json = {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}
PIXEL: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def parse(*messages: Json, **fields: Any) -> Asked:
    body = {"model": "solver", "max_tokens": 9, "messages": messages or (HI,), **fields}
    return Messages().parse(json.dumps(body).encode(), Limits())


def sent(*messages: Json, overrides: bool = False, captures: bool = True, **fields: Any) -> Json:
    asked = parse(*messages, **fields)
    target = Target(model="solver@1", sampling=asked.sampling, overrides=overrides, captures=captures)
    return json.loads(Messages().engine_body(asked, target))


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


# the conversation


def test_a_system_prompt_is_the_first_message() -> None:
    system = {"role": "system", "content": "be brief"}
    assert sent(system="be brief")["messages"] == [system, HI]
    assert sent(system=[text("be brief", cache_control={"type": "ephemeral"})])["messages"] == [system, HI]
    parts = sent(system=[text("be brief"), text("be kind")])["messages"][0]["content"]
    assert parts == [text("be brief"), text("be kind")]


def test_the_header_of_each_request_is_no_word_to_the_model() -> None:
    header = text("x-anthropic-billing-header: cc_version=2; cch=1f3a;")
    assert sent(system=[header, text("be brief")])["messages"][0] == {"role": "system", "content": "be brief"}
    assert sent(system=[header])["messages"] == [HI]


def test_text_blocks_keep_every_part() -> None:
    assert sent({"role": "user", "content": [text("one "), text("two")]})["messages"][0]["content"] == [
        text("one "),
        text("two"),
    ]


def test_turns_of_one_role_are_one_turn() -> None:
    said = sent(HI, {"role": "user", "content": "there"}, {"role": "assistant", "content": "a"}, HI)["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert said[0]["content"] == [text("hi"), text("there")]


def test_results_come_first_and_images_in_them_behind() -> None:
    second = {**RESULT, "tool_use_id": "c2", "content": [text("x"), PIXEL, text("y")]}
    turn = {"role": "user", "content": [text("so"), RESULT, text("then"), second]}
    answer = {"role": "assistant", "content": [text("let me "), text("see"), USE, {**USE, "id": "c2"}]}
    said = sent(HI, answer, turn)["messages"]
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert said[1]["content"] == "let me see"
    assert [call["id"] for call in said[1]["tool_calls"]] == ["c1", "c2"]
    assert said[2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "tool", "tool_call_id": "c2", "content": [text("x"), text("y")]},
        {"role": "user", "content": [url, text("so"), text("then")]},
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("<tool_use_error>no</tool_use_error>", "<tool_use_error>no</tool_use_error>"),
        ([], "Error"),
        (None, "Error"),
    ],
)
def test_a_result_that_is_an_error_says_so(content: object, told: str) -> None:
    said = sent(
        HI,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{**RESULT, "content": content, "is_error": True}]},
    )
    assert said["messages"][2]["content"] == told


def test_images_are_sent_as_data_and_marked() -> None:
    asked = parse({"role": "user", "content": [PIXEL, text("what?")]})
    assert asked.has_media
    assert parse(HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}).has_media is False


def test_an_answer_that_was_begun_is_continued() -> None:
    said = sent(HI, {"role": "assistant", "content": "The best is ("})
    assert (said["add_generation_prompt"], said["continue_final_message"]) == (False, True)
    assert "add_generation_prompt" not in sent()


def test_a_role_system_in_the_middle_stays_there() -> None:
    said = sent(HI, {"role": "assistant", "content": "a"}, {"role": "system", "content": "note"}, HI)
    assert [message["role"] for message in said["messages"]] == ["user", "assistant", "system", "user"]


BLOCKS = (
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
    {"type": "search_result", "source": "x", "title": "y", "content": [text("z")]},
    {"type": "image", "source": {"type": "file", "file_id": "f"}},
    {"type": "container_upload", "file_id": "f"},
    {"type": "tool_use", "id": "a", "name": "b", "input": {}},
)


@pytest.mark.parametrize("block", BLOCKS, ids=[str(block["type"]) for block in BLOCKS])
def test_blocks_that_cannot_be_honoured_are_refused(block: Json) -> None:
    with pytest.raises(BadRequest) as raised:
        parse({"role": "user", "content": [text("a"), block]})
    assert "messages[0].content[1]" in raised.value.message
    with pytest.raises(BadRequest):
        parse(
            HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [{**RESULT, "content": [block]}]}
        )


@pytest.mark.parametrize(
    "messages",
    [
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/x"}}]},),
        (HI, {"role": "assistant", "content": [USE]}),
        (HI, {"role": "assistant", "content": [{**USE, "input": [1]}]}, HI),
        (HI, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, HI),
        (HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "EqQB"}]}, HI),
        ({"role": "tool", "content": "x"},),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]},),
        ({"role": "user", "content": 5},),
        ({"role": "user", "content": []},),
        ({"role": "user"},),
    ],
)
def test_messages_that_mean_nothing_here_are_refused(messages: tuple[Json, ...]) -> None:
    with pytest.raises(BadRequest):
        parse(*messages)


# fields


def test_what_real_clients_always_send_is_taken() -> None:
    said = sent(
        metadata={"user_id": "u", "api_base": "the agent's own word"},
        service_tier="auto",
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        cache_control={"type": "ephemeral"},
        diagnostics={"previous_message_id": None},
        container=None,
        mcp_servers=[],
        betas=["x"],
        n=5,
    )
    assert said["reasoning_effort"] == "medium"
    assert not {"metadata", "service_tier", "thinking", "context_management", "cache_control", "betas", "n"} & set(said)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"container": "c"},
        {"mcp_servers": [{"type": "url", "url": "http://x", "name": "n"}]},
        {"thread": {"type": "create"}},
        {"compaction": {"type": "summarize"}},
        {"service_tier": "priority"},
        {"speed": "fast"},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"output_config": {"effort": "huge"}},
        {"output_config": {"task_budget": {"type": "tokens", "total": 5}}},
        {"output_config": {"format": {"type": "xml"}}},
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"thinking": {"type": "sometimes"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "computer_20250124", "name": "computer", "display_width_px": 1}]},
        {"tools": [{"name": "x"}]},
        {"tools": [{**LOOK, "defer_loading": True}]},
        {"tool_choice": {"type": "any"}},
        {"tools": [LOOK], "tool_choice": {"type": "tool"}},
        {"tools": [LOOK], "tool_choice": "auto"},
        {"stop_sequences": "x"},
        {"system": 5},
        {"metadata": []},
        {"api_base": "http://127.0.0.1:9/x"},
        {"output_config": {"base_url": "x"}},
        {"prompt_embeds": "x"},
        {"cache_salt": "x"},
        {"kv_transfer_params": {}},
    ],
    ids=str,
)
def test_fields_that_cannot_be_honoured_are_refused(fields: Json) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**fields)
    assert raised.value.param


def test_names_that_are_the_agents_own_are_not_refused() -> None:
    schema = {"type": "object", "properties": {"api_base": {"type": "string"}}}
    example = {"api_base": "x"}
    tool = {**LOOK, "input_schema": schema, "input_examples": [example]}
    answer = {"role": "assistant", "content": [{**USE, "input": example}]}
    said = sent(HI, answer, {"role": "user", "content": [RESULT]}, tools=[tool])
    assert said["tools"][0]["function"]["parameters"] == {**schema, "examples": [example]}
    assert json.loads(said["messages"][1]["tool_calls"][0]["function"]["arguments"]) == example


@pytest.mark.parametrize(
    ("choice", "chat"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tools_and_their_choice_are_said_as_chat_does(choice: Json, chat: object) -> None:
    said = sent(tools=[LOOK], tool_choice={**choice, "disable_parallel_tool_use": True})
    function = {"name": "look", "description": "Look.", "parameters": LOOK["input_schema"]}
    assert said["tools"] == [{"type": "function", "function": function}]
    assert (said["tool_choice"], said["parallel_tool_calls"]) == (chat, False)
    assert parse(tools=[LOOK], tool_choice=choice).sampling.constrained is (choice["type"] in ("any", "tool"))


@pytest.mark.parametrize("where", ["output_format", "output_config"])
def test_a_format_shapes_the_answer(where: str) -> None:
    shape = {"type": "json_schema", "schema": {"type": "object", "properties": {"proxy": {"type": "string"}}}}
    fields = {where: shape if where == "output_format" else {"format": shape}}
    assert sent(**fields)["response_format"]["json_schema"]["schema"] == shape["schema"]
    assert parse(**fields).sampling.constrained


def test_the_policys_sampling_replaces_the_agents() -> None:
    said = sent(overrides=True, temperature=0, top_p=0.5, top_k=3, stop_sequences=["END"], stream=True)
    assert "top_k" in said
    asked = parse(temperature=0, top_p=0.5, top_k=3)
    assert asked.sampling == Sampling(temperature=0, top_p=0.5, top_k=3, max_tokens=9)
    assert {"temperature", "top_p", "top_k"} <= asked.given
    assert said["stop"] == ["END"]
    assert (said["max_tokens"], said["max_completion_tokens"]) == (9, 9)
    assert said["stream_options"] == {"include_usage": True}
    assert (said["logprobs"], said["return_token_ids"], said["model"]) == (True, True, "solver@1")


def test_a_server_that_is_no_engine_gets_plain_chat_completions() -> None:
    said = sent(captures=False, top_k=3, thinking={"type": "disabled"})
    assert set(said) == {"model", "messages", "max_completion_tokens"}


# thinking


@pytest.mark.parametrize(
    ("thinking", "shows", "switch"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, False),
        ({"type": "enabled", "budget_tokens": 1024}, True, True),
        ({"type": "adaptive"}, True, None),
    ],
)
def test_thinking_is_shown_where_it_is_asked_for(thinking: Json | None, shows: bool, switch: bool | None) -> None:
    asked = parse(thinking=thinking)
    assert asked.shows_reasoning is shows
    said = sent(thinking=thinking)
    assert said.get("chat_template_kwargs") == (
        None if switch is None else {"enable_thinking": switch, "thinking": switch}
    )
    assert said.get("include_reasoning") is (None if shows else True)


def test_thinking_goes_back_as_reasoning() -> None:
    shown = {"type": "thinking", "thinking": "hm", "signature": sign("hm", omits=False)}
    edited = {**shown, "thinking": "hm!"}
    omitted = {"type": "thinking", "thinking": "", "signature": sign("so be it", omits=True)}
    foreign = {"type": "thinking", "thinking": "well", "signature": "EqQBCgIYAg=="}
    for block, reasoning in ((shown, "hm"), (edited, "hm!"), (omitted, "so be it"), (foreign, "well")):
        answer = sent(HI, {"role": "assistant", "content": [block, text("yes")]}, HI)["messages"][1]
        assert (answer["reasoning"], answer["content"]) == (reasoning, "yes")


@pytest.mark.parametrize(("keep", "left"), [("all", [True, True]), (None, [False, True]), (1, [False, True])])
def test_thinking_is_cleared_where_the_agent_says_so(keep: object, left: list[bool]) -> None:
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, text("a")]}
    kept = {"type": "thinking_turns", "value": keep} if isinstance(keep, int) else keep
    edit = {"type": "clear_thinking_20251015", "keep": kept}
    said = sent(HI, answer, HI, answer, HI, context_management={"edits": [edit]})["messages"]
    assert ["reasoning" in message for message in said if message["role"] == "assistant"] == left


# an answer comes back

WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | WORDS
ARGUMENTS = st.dictionaries(WORDS, VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(WORDS, VALUES, max_size=2))


@st.composite
def answers(draw: st.DrawFn) -> Json:
    """An assistant's message as engines give it."""
    count = draw(st.integers(0, 3))
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": f"tool{number}", "arguments": json.dumps(draw(ARGUMENTS), ensure_ascii=False)},
        }
        for number in range(count)
    ]
    content = draw(WORDS)
    message: Json = {"role": "assistant", "content": (content or None) if calls else content}
    if reasoning := draw(WORDS):
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return {**message, "tool_calls": calls} if calls else message


@given(answers(), st.booleans())
def test_an_answer_that_comes_back_is_the_message_the_engine_gave(answer: Json, omits: bool) -> None:
    blocks = json.loads(json.dumps(whole_blocks(answer, "msg_1", omits_thinking=omits)))
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "r"}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    said = sent(HI, {"role": "assistant", "content": blocks}, {"role": "user", "content": [*results, text("go on")]})
    assert said["messages"][1] == answer


JUNK: tuple[object, ...] = (
    *(None, True, 5, 0.5, "", "x" * 50, [], {}, [[]], [None], [5], [{}], [{"type": None}], [{"type": 5}]),
    *([{"type": kind}] for kind in ("text", "image", "tool_use", "tool_result", "thinking", "document", "new")),
)


@pytest.mark.parametrize("content", JUNK, ids=str)
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_no_content_breaks_the_parser(role: str, content: object) -> None:
    with contextlib.suppress(BadRequest):
        assert json.loads(bytes(parse(HI, {"role": role, "content": content}, HI).fields["messages"]))


# errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Unauthorized("x"), "authentication_error"),
        (NotFound("x"), "not_found_error"),
        (Gone("x"), "invalid_request_error"),
        (Unavailable("x"), "overloaded_error"),
        (UpstreamFailed("x"), "api_error"),
        (HoneError("x"), "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: HoneError, kind: str) -> None:
    said = Messages().error_body(error)
    assert (said["type"], said["error"]["type"], said["error"]["message"]) == ("error", kind, "x")
    assert said["error"]["details"]["error_code"] == error.code
    name, data = Messages().error_event(error).removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == said


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 512 "
            "tokens and your request has 30 input tokens (2000 > 512 - 30).",
            "input length and `max_tokens` exceed context limit: 30 + 2000 > 512",
        ),
        (
            "This model's maximum context length is 512 tokens. Your prompt contains at least 600 input tokens.",
            "prompt is too long: 600 tokens > 512 maximum",
        ),
        (
            "max_completion_tokens=32000 cannot be greater than max_model_len=max_total_tokens=2048.",
            "max_tokens: 32000 > 2048",
        ),
        ("the context length is what it is", "prompt is too long"),
    ],
)
def test_a_context_that_does_not_fit_is_told_in_the_words_agents_know(engine: str, words: str) -> None:
    error = EngineRefused(engine, status=400, kind="BadRequestError", headers={})
    message = Messages().error_body(error)["error"]["message"]
    assert message.startswith(words)
    assert engine in message


# counting


def test_what_is_counted_is_what_becomes_the_prompt() -> None:
    body = json.dumps(
        {
            "model": "m",
            "system": "s",
            "messages": [HI],
            "tools": [LOOK],
            "thinking": {"type": "disabled"},
            "output_config": {"effort": "low"},
        }
    )
    asked = Messages().parse_to_count(body.encode(), Limits())
    counted = body_to_count(asked, "base")
    assert (counted["model"], [m["role"] for m in counted["messages"]]) == ("base", ["system", "user"])
    assert counted["tools"][0]["function"]["name"] == "look"
    switches = {"reasoning_effort": "low", "enable_thinking": False, "thinking": False}
    assert counted["chat_template_kwargs"] == switches


@pytest.mark.parametrize(("path", "is_anthropics"), [("/e/ep-1/v1/messages", True), ("/v1/chat/completions", False)])
def test_a_failure_of_the_gateway_is_told_in_the_form_of_the_path(path: str, is_anthropics: bool) -> None:
    said = form_of(path).error_body(HoneError("The gateway failed."))
    assert said["error"]["type"] == ("api_error" if is_anthropics else "server_error")
