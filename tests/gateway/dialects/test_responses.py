"""The Responses dialect: what is honoured, what is refused, and what the engine is asked in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Asked, Limits, Target
from gateway.dialects.responses.dialect import Responses, answer_items, with_items
from tracker.errors import BadRequest

Json = dict[str, Any]
FUNCTION: Json = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
CHAT_FUNCTION: Json = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
CHAT_CALL: Json = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALL_ID = f"resp_{'0' * 32}-{'f' * 32}"
IMAGE = "data:image/png;base64,AAAA"


def parse(limits: Limits = Limits(), **fields: Any) -> Asked:  # noqa: B008 (frozen)
    return Responses().parse(json.dumps({"model": "solver", "input": "hi", **fields}).encode(), limits)


def engine(asked: Asked) -> Json:
    return json.loads(Responses().engine_body(asked, Target(model="m", sampling=asked.sampling)))


def sent(limits: Limits = Limits(), **fields: Any) -> Json:  # noqa: B008 (frozen)
    """The engine's body for a request with these fields."""
    return engine(parse(limits, **fields))


def told(*items: Json, **fields: Any) -> list[Json]:
    """The conversation that the engine is asked with for these items."""
    return sent(input=list(items), **fields)["messages"]


def test_a_text_is_what_the_user_says() -> None:
    asked = parse(input="hi", instructions="be brief")
    assert engine(asked)["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert [json.loads(m) for m in asked.messages] == [{"type": "message", "role": "user", "content": "hi"}]
    assert json.loads(asked.request) == {"model": "solver", "instructions": "be brief"}


def test_items_are_recorded_as_the_agent_has_them() -> None:
    body = b'{"model":"m","input":[{"role":"user", "content":"x", "odd":1.10}]}'
    assert Responses().parse(body, Limits()).messages == (b'{"role":"user", "content":"x", "odd":1.10}',)


def test_every_role_and_part_reaches_the_engine_in_place() -> None:
    assert told(
        {"role": "user", "content": "a"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "e", "annotations": []}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "f"},
                {"type": "input_text", "text": "g"},
                {"type": "input_image", "image_url": IMAGE, "detail": "low"},
            ],
        },
    ) == [
        {"role": "user", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": "e"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "f"},
                {"type": "text", "text": "g"},
                {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
            ],
        },
    ]


def test_images_are_noted() -> None:
    part = {"type": "input_image", "image_url": IMAGE}
    assert parse(input=[{"role": "user", "content": [part]}]).has_media
    assert parse(input=[{**CALL}, {"type": "function_call_output", "call_id": "c1", "output": [part]}]).has_media
    assert not parse(input="data:image/png").has_media


def test_calls_and_their_outputs_become_one_message_and_tool_messages() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    parts = {**output, "call_id": "c2", "output": [{"type": "input_text", "text": "too"}]}
    assert told(
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "let me look"}]},
        CALL,
        {**CALL, "call_id": "c2"},
        output,
        parts,
    ) == [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "let me look",
            "reasoning": "hm",
            "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "too"}]},
    ]


def test_reasoning_of_somebody_else_is_left_out() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAAA"}
    assert told({"role": "user", "content": "a"}, item, {"role": "assistant", "content": "b"}) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


def test_a_refusal_goes_back_as_one() -> None:
    item = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert told(item) == [{"role": "assistant", "content": None, "refusal": "no"}]


@pytest.mark.parametrize(
    ("item", "word"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "previous_response_id"),
        ({"id": "msg_1"}, "previous_response_id"),
        ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, "web_search_call"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "arguments"),
        ({"type": "function_call_output", "call_id": "c", "output": 5}, "output"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input_text"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "data:"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/x"}]}, "data:"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": IMAGE, "detail": {}}]}, "detail"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": 5}}]}, "data"),
        ({"role": "user", "content": ["x"]}, "part"),
        ({"role": "assistant", "content": [{"type": "input_image"}]}, "part"),
        ({"role": "assistant", "content": [None]}, "part"),
    ],
)
def test_items_that_no_model_here_can_be_told_of_are_refused(item: Json, word: str) -> None:
    with pytest.raises(BadRequest, match=word) as refused:
        parse(input=[{"role": "user", "content": "x"}, item])
    assert (refused.value.param or "").startswith("input[1]")


def test_functions_reach_the_engine_in_its_form() -> None:
    body = sent(tools=[{**FUNCTION, "strict": True}, {**FUNCTION, "name": "go", "description": None}])
    assert body["tools"] == [
        {"type": "function", "function": {**CHAT_FUNCTION["function"], "strict": True}},
        {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}},
    ]


def test_functions_in_a_namespace_are_named_after_it_at_the_engine_alone() -> None:
    space = {"type": "namespace", "name": "agents", "description": "Others.", "tools": [FUNCTION]}
    asked = parse(
        tools=[space, FUNCTION],
        tool_choice={"type": "function", "name": "look", "namespace": "agents"},
        input=[{**CALL, "namespace": "agents"}, {**CALL, "call_id": "c2"}],
    )
    body = engine(asked)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["agents__look", "look"]
    assert body["tools"][0]["function"]["description"] == "Others.\n\nLooks."
    assert body["tool_choice"]["function"]["name"] == "agents__look"
    said = body["messages"][0]
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["agents__look", "look"]
    whole = Responses().writer(asked, CALL_ID).whole({"choices": [{"message": said, "finish_reason": "tool_calls"}]})
    items = json.loads(whole)["output"]
    assert [(item.get("namespace"), item["name"]) for item in items] == [("agents", "look"), (None, "look")]


@pytest.mark.parametrize(
    ("choice", "to_engine", "forced"),
    [
        ("auto", "auto", False),
        ("none", "none", False),
        ("required", "required", True),
        (None, None, False),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}, "auto", False),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]}, "required", True),
    ],
)
def test_the_choice_among_tools(choice: Any, to_engine: Any, forced: bool) -> None:
    asked = parse(tools=[FUNCTION, {**FUNCTION, "name": "go"}], tool_choice=choice, parallel_tool_calls=False)
    body = engine(asked)
    assert body.get("tool_choice") == to_engine
    assert asked.sampling.constrained is forced
    only_look = isinstance(choice, dict) and choice["type"] == "allowed_tools"
    assert [tool["function"]["name"] for tool in body["tools"]] == (["look"] if only_look else ["look", "go"])
    assert body["parallel_tool_calls"] is False


def test_without_tools_the_engine_hears_nothing_of_them() -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(
        sent(tools=[], tool_choice="auto", parallel_tool_calls=True)
    )


@pytest.mark.parametrize(
    "tool",
    [
        *({"type": kind} for kind in ("web_search", "file_search", "code_interpreter", "mcp", "custom", "local_shell")),
        *({"type": kind} for kind in ("computer_use_preview", "image_generation", "shell", "apply_patch")),
        *(CHAT_FUNCTION, {"type": "function"}, {}, {"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}),
    ],
)
def test_tools_that_nobody_here_runs_are_refused(tool: Json) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(tools=[FUNCTION, tool])
    assert (refused.value.param or "").startswith("tools[1]")
    assert "function" in refused.value.message or "name" in refused.value.message


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        {"type": "function"},
        {"type": "function", "name": "other"},
        {"type": "web_search"},
        {"type": "mcp", "server_label": "x"},
        {"type": "allowed_tools", "tools": []},
        {"type": "allowed_tools", "tools": [{"name": "other"}]},
        {"type": "allowed_tools", "mode": "none", "tools": [{"name": "look"}]},
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(choice: Any) -> None:
    with pytest.raises(BadRequest, match="tool_choice"):
        parse(tools=[FUNCTION], tool_choice=choice)


def test_a_forced_choice_needs_tools() -> None:
    with pytest.raises(BadRequest, match="tools"):
        parse(tool_choice="required")


def test_the_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"base_url": {"type": "string"}}}
    form = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
    asked = parse(text={"format": form, "verbosity": "low"})
    assert asked.sampling.constrained
    body = engine(asked)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": schema, "strict": True},
    }
    assert body["verbosity"] == "low"
    assert sent(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    plain = parse(text={"format": {"type": "text"}})
    assert "response_format" not in engine(plain)
    assert not plain.sampling.constrained


@pytest.mark.parametrize(
    "form",
    [{"type": "grammar"}, {"type": "json_schema", "name": "x"}, {"type": "json_schema", "schema": 1}, "text", {}],
)
def test_a_form_that_is_unknown_is_refused(form: Any) -> None:
    with pytest.raises(BadRequest, match=r"text\.format"):
        parse(text={"format": form})


@pytest.mark.parametrize(("given_limit", "cap", "limit"), [(7, None, 7), (500, 100, 100), (None, 100, 100)])
def test_the_output_limit_is_the_agents_under_the_cap(given_limit: Any, cap: Any, limit: int) -> None:
    body = sent(Limits(max_output_tokens=cap), max_output_tokens=given_limit)
    assert body["max_tokens"] == limit
    assert body["max_completion_tokens"] == limit


def test_reasoning_effort_is_the_engines_to_honour() -> None:
    assert sent(reasoning={"effort": "low", "summary": "auto"})["reasoning_effort"] == "low"
    assert "reasoning_effort" not in sent(reasoning={"summary": "auto"})


def test_log_probabilities_are_shown_where_they_are_asked_for() -> None:
    assert not parse(include=["reasoning.encrypted_content"]).shows_logprobs
    asked = parse(include=["message.output_text.logprobs"], top_logprobs=3)
    assert asked.shows_logprobs
    assert engine(asked)["top_logprobs"] == 3
    assert parse(top_logprobs=3).shows_logprobs


def test_labels_and_words_of_the_agent_do_not_reach_the_engine() -> None:
    body = sent(
        stream=True,
        store=False,
        metadata={"base_url": "x"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        service_tier="auto",
        truncation="disabled",
        background=False,
        max_tool_calls=3,
        include=["reasoning.encrypted_content", "file_search_call.results"],
        stream_options={"include_obfuscation": False},
        client_metadata={"a": "b"},
        conversation=None,
        prompt=None,
    )
    assert set(body) <= {
        *("model", "messages", "stream", "stream_options", "logprobs", "top_logprobs", "return_token_ids"),
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
    assert body["stream_options"] == {"include_usage": True}


def test_fields_of_engines_go_on_and_those_of_chat_that_would_contradict_do_not() -> None:
    body = sent(top_k=5, chat_template_kwargs={"enable_thinking": False}, stop=["\n"], n=3, messages=[], logprobs=5)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["stop"] == ["\n"]
    assert "n" not in body
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["logprobs"] is True


def test_null_means_absent() -> None:
    names = ("instructions", "tools", "tool_choice", "text", "reasoning", "include", "previous_response_id", "prompt")
    assert sent(**dict.fromkeys(names)) == sent()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"include": ["everything"]}, "include"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"instructions": ["x"]}, "instructions"),
        ({"model": ""}, "model"),
        ({"base_url": "http://127.0.0.1:9"}, "base_url"),
        ({"tools": [{**FUNCTION, "base_url": "x"}]}, "tools: base_url"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"image": {"context_compression": "enabled"}}, "image.context_compression"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ],
)
def test_what_cannot_be_honoured_or_read_is_refused(fields: Json, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert refused.value.message


def test_an_earlier_answer_stands_before_the_input_without_its_instructions() -> None:
    first = parse(instructions="only now", input="one")
    answer = answer_items({"content": "yes", "tool_calls": []}, CALL_ID)
    second = parse(previous_response_id="resp_1", input="two", instructions="be kind")
    assert second.previous == "resp_1"
    joined = with_items(second, (*first.messages, *answer, *second.messages))
    assert engine(joined)["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "two"},
    ]
    assert len(joined.messages) == 3


def test_an_answer_can_be_continued_with_nothing_new() -> None:
    assert parse(input=None, previous_response_id="resp_1").messages == ()


ROLES = st.sampled_from(["user", "assistant", "system"])
RICH: Json = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": IMAGE}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "hone1.aG0="},
        {
            "type": "message",
            "id": f"msg_{'f' * 34}",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "b"}],
        },
        {**CALL, "namespace": "n"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "c"}]},
    ],
    "tools": [FUNCTION, {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "stream_options": {"include_obfuscation": True},
    "stream": True,
    "metadata": {"a": "b"},
}
SEED = json.dumps(RICH).encode()
ODD = st.sampled_from([None, True, 5, -1.5, "", "x", [], ["x"], [[]], {}, {"type": "x"}, {"x": [None]}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value inside stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


@given(st.sampled_from(places(RICH)[1:]), ODD)
def test_an_odd_value_anywhere_is_taken_or_refused(place: tuple[Any, ...], odd: Any) -> None:
    body = json.loads(SEED)
    at = body
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = odd
    try:
        asked = Responses().parse(json.dumps(body).encode(), Limits())
    except BadRequest:
        return
    engine(asked)
    writer = Responses().writer(asked, CALL_ID)
    writer.event({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    writer.done(b"")


@given(st.lists(st.tuples(ROLES, st.text(max_size=9)), min_size=1))
def test_what_is_said_reaches_the_engine_word_for_word(said: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in said]
    assert told(*messages) == messages


@given(st.integers(0, len(SEED)), st.integers(0, 9), st.binary(max_size=6))
def test_no_body_does_anything_but_parse_or_be_refused(at: int, num_cut: int, put: bytes) -> None:
    try:
        asked = Responses().parse(SEED[:at] + put + SEED[at + num_cut :], Limits())
    except BadRequest:
        return
    engine(asked)
    Responses().writer(asked, "resp_1")
