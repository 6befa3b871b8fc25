"""The chat dialect: what is honoured, what is refused, and what the engine is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import FORBIDDEN_ANYWHERE, Asked, Limits, Target
from gateway.dialects.chat import Chat
from gateway.routing import NEUTRAL, PolicyRoute, find_route, sampling_of, uses_policy_sampling
from tracker.errors import BadRequest, NotFound
from tracker.types import RunSettings, Sampling

USER = {"role": "user", "content": "hi"}
TRAIN = RunSettings(run="default")
EVAL = RunSettings(run="eval", mode="eval")
NAMES = st.text(max_size=5).filter(lambda name: name not in FORBIDDEN_ANYWHERE)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def parse(limits: Limits = Limits(), **fields: Any) -> Asked:  # noqa: B008 (frozen)
    return Chat().parse(json.dumps({"model": "solver", "messages": [USER], **fields}).encode(), limits)


def sent(run: RunSettings = TRAIN, policy: Sampling = Sampling(), **fields: Any) -> dict[str, Any]:  # noqa: B008
    """The engine's body for a request with these fields."""
    asked = parse(**fields)
    sampling = sampling_of(run, policy, asked.sampling, asked.given)
    return json.loads(
        Chat().engine_body(asked, Target(model="solver@1", sampling=sampling, overrides=uses_policy_sampling(run)))
    )


def test_the_engine_is_asked_for_ids_and_log_probabilities_and_usage() -> None:
    body = sent(stream=True)
    assert body["return_token_ids"] is True
    assert body["logprobs"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["model"] == "solver@1"


def test_the_policys_sampling_replaces_the_agents_on_trained_calls() -> None:
    body = sent(
        policy=Sampling(temperature=0.7),
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        presence_penalty=1,
        repetition_penalty=1.2,
        logit_bias={"5": 3},
        min_tokens=4,
        bad_words=["x"],
        seed=7,
        stop=["\n"],
    )
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (0.7, 1.0, -1, 0.0)
    assert {name: body[name] for name in NEUTRAL} == NEUTRAL
    assert not {"logit_bias", "min_tokens", "bad_words"} & set(body)
    assert (body["seed"], body["stop"]) == (7, ["\n"])


def test_an_overridden_bias_leaves_the_call_trainable() -> None:
    asked = parse(logit_bias={"5": 3}, temperature=0)
    assert sampling_of(TRAIN, Sampling(), asked.sampling, asked.given).is_policy_distribution()


def test_eval_runs_honour_the_agents_sampling_and_fill_the_rest_from_the_policy() -> None:
    body = sent(run=EVAL, policy=Sampling(temperature=0.7, top_k=20), temperature=0, presence_penalty=1, min_tokens=2)
    assert (body["temperature"], body["top_k"], body["presence_penalty"], body["min_tokens"]) == (0, 20, 1, 2)


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"frequency_penalty": 0.5}, {"min_tokens": 3}],
)
def test_an_agents_own_distribution_is_told_from_the_policys(fields: dict[str, Any]) -> None:
    run = RunSettings(run="free", sampling="agent")
    asked = parse(**fields)
    assert not sampling_of(run, Sampling(), asked.sampling, asked.given).is_policy_distribution()


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"base_url": {}}}}},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": []},
        {"guided_regex": "a+"},
        {"structured_outputs": {"json": {}}},
    ],
)
def test_structured_output_is_honoured_and_marked(fields: dict[str, Any]) -> None:
    assert parse(**fields).sampling.constrained
    assert set(fields) <= set(sent(**fields))


@pytest.mark.parametrize("fields", [{"response_format": {"type": "text"}}, {"tool_choice": "auto", "tools": []}, {}])
def test_an_answer_that_nothing_shapes_is_not_marked(fields: dict[str, Any]) -> None:
    assert not parse(**fields).sampling.constrained


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": None}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 9}, 7),
        ({"max_tokens": 500}, 100),
        ({}, 100),
    ],
)
def test_the_output_limit_is_the_agents_under_the_cap(fields: dict[str, Any], limit: int) -> None:
    asked = parse(limits=Limits(max_output_tokens=100), **fields)
    body = json.loads(Chat().engine_body(asked, Target(model="m", sampling=asked.sampling, overrides=True)))
    assert body["max_tokens"] == body["max_completion_tokens"] == limit


def test_null_means_absent() -> None:
    body = sent(max_tokens=None, tool_choice=None, temperature=None, stream_options=None, priority=None, n=None)
    assert not {"max_tokens", "tool_choice", "n", "priority"} & set(body)


@given(st.dictionaries(st.text(min_size=1, max_size=8).map(lambda name: "x_" + name), JSON_VALUES, max_size=4))
def test_fields_nobody_defines_go_on_as_they_were_written(unknown: dict[str, Any]) -> None:
    body = sent(**unknown)
    for name, value in unknown.items():
        assert (name in body) == (value is not None)
        assert value is None or body[name] == value


def test_numbers_go_on_as_they_were_written() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"big":123456789012345678901234567890,"f":1.10}'
    asked = Chat().parse(body, Limits())
    out = Chat().engine_body(asked, Target(model="m", sampling=asked.sampling, overrides=True))
    assert b'"big":123456789012345678901234567890' in out
    assert b'"f":1.10' in out


@pytest.mark.parametrize(
    "name",
    ["api_base", "base_url", "extra_headers", "prompt_embeds", "chat_template", "kv_transfer_params", "vllm_xargs",
     "cache_salt", "priority", "request_id", "truncate_prompt_tokens", "api_key", "logits_processors"],
)  # fmt: skip
def test_dangerous_fields_are_refused(name: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**{name: "x"})
    assert refused.value.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
        {"x": [{"deep": [{"api_base": "http://127.0.0.1:9"}]}]},
        {"tools": [{"type": "function", "base_url": "x", "function": {"name": "f"}}]},
    ],
)
def test_dangerous_fields_are_refused_at_any_depth(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse(**fields)


def test_an_escaped_name_is_refused_too() -> None:
    with pytest.raises(BadRequest):
        Chat().parse(
            b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":{"api\\u005fbase":"http://h"}}', Limits()
        )


def test_the_agents_own_words_may_hold_any_name() -> None:
    schema = {"type": "object", "properties": {"base_url": {"type": "string"}, "api_key": {"type": "string"}}}
    body = sent(
        metadata={"base_url": "x"},
        tools=[{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}],
        messages=[{"role": "user", "content": '{"api_base": 1}', "api_base": "mine"}],
    )
    assert body["tools"][0]["function"]["parameters"] == schema
    assert body["messages"][0]["api_base"] == "mine"


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "f"}]},
        {"function_call": "auto"},
        {"audio": {"voice": "x"}},
        {"modalities": ["text", "audio"]},
        {"web_search_options": {}},
        {"service_tier": "priority"},
        {"stream_options": {"include_usage": True}},
        {"top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 99},
        {"n": 0},
        {"n": 9},
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"max_tokens": 2**64},
        {"max_completion_tokens": 2**64},
        {"seed": 2**64},
        {"seed": -(2**64)},
        {"top_k": 10**30},
        {"temperature": "hot"},
        {"stream": "yes"},
        {"messages": []},
        {"messages": ["hi"]},
        {"messages": [{"content": "x"}]},
        {"messages": {"role": "user"}},
        {"model": ""},
        {"model": 5},
    ],
)
def test_what_cannot_be_honoured_or_read_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert refused.value.message


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"a":NaN}', b"\xff", b'"x"', b"[" * 5000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        Chat().parse(body, Limits())
    assert refused.value.code == "invalid_json"


SEED = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "developer", "content": [{"type": "text", "text": "a\ud83d"}, {"image_url": "data:x"}]}],
        "chat_template_kwargs": {"a": [{"api_base": None}]},
        "stream_options": {"include_usage": True},
        "stream": True,
        "temperature": 0.5,
    }
).encode()


@given(st.integers(0, len(SEED)), st.integers(0, 9), st.binary(max_size=6))
def test_no_body_does_anything_but_parse_or_be_refused(at: int, num_cut: int, put: bytes) -> None:
    body = SEED[:at] + put + SEED[at + num_cut :]
    try:
        asked = Chat().parse(body, Limits())
    except BadRequest:
        return
    json.loads(Chat().engine_body(asked, Target(model="m", sampling=asked.sampling, overrides=True)))


@pytest.mark.parametrize("depth", [50, 300, 600, 900, 1200, 100_000])
def test_deep_bodies_parse_or_are_refused(depth: int) -> None:
    deep = b'{"api_bas":' * depth + b"1" + b"}" * depth
    for body in (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"api_base_":' + deep + b"}",
        b'{"model":"m","messages":[{"role":"developer","content":[{"image":' + deep + b"}]}]}",
    ):
        try:
            Chat().parse(body, Limits())
        except BadRequest:
            continue


@pytest.mark.parametrize("text", [b"\\ud800", b"\xff", b"\\x"])
def test_text_that_is_no_unicode_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest):
        Chat().parse(b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}', Limits())


def test_developer_reaches_the_engine_as_system_in_place() -> None:
    messages = [
        USER,
        {"role": "developer", "content": "be brief", "name": "d"},
        {"role": "user", "content": "developer"},
    ]
    asked = parse(messages=messages)
    body = json.loads(Chat().engine_body(asked, Target(model="m", sampling=asked.sampling, overrides=True)))
    assert [m["role"] for m in body["messages"]] == ["user", "system", "user"]
    assert body["messages"][1] == {"role": "system", "content": "be brief", "name": "d"}
    assert [json.loads(m) for m in asked.messages] == messages


@given(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=9)}),
        min_size=1,
    )
)
def test_messages_go_on_untouched(messages: list[dict[str, str]]) -> None:
    raw = json.dumps(messages).encode()
    asked = Chat().parse(b'{"model":"m","messages":' + raw + b"}", Limits())
    assert (
        json.loads(Chat().engine_body(asked, Target(model="m", sampling=asked.sampling, overrides=True)))["messages"]
        == messages
    )
    assert [json.loads(m) for m in asked.messages] == messages
    assert json.loads(asked.request) == {"model": "m"}


def test_text_parts_go_on_as_parts() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "see http://x"}]
    assert sent(messages=[{"role": "user", "content": parts}])["messages"][0]["content"] == parts
    assert not parse(messages=[{"role": "user", "content": parts}]).has_media


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/x"}},
        {"type": "image_url", "image_url": "https://h/x.png"},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
        {"type": "text", "text": "x", "image_url": {"url": " HTTP://h/x"}},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "image_url", "image_url": {"url": [["http://h/x"]]}},
    ],
)
def test_media_that_would_be_fetched_or_unpickled_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse(messages=[{"role": "user", "content": [part]}])


def test_media_inside_the_request_goes_on_and_is_noted() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert parse(messages=[{"role": "user", "content": [part]}]).has_media


def test_hidden_reasoning_is_asked_for_and_hidden_here() -> None:
    assert sent(include_reasoning=False)["include_reasoning"] is True
    assert not parse(include_reasoning=False).shows_reasoning


def test_names_and_aliases_mean_their_policy_and_the_only_policy_answers_to_all() -> None:
    two = [PolicyRoute(name="solver", aliases=("gpt-4o",)), PolicyRoute(name="checker")]
    assert find_route("gpt-4o", two).name == "solver"
    assert find_route("anything", two[:1]).name == "solver"
    with pytest.raises(NotFound, match="checker, gpt-4o, solver") as refused:
        find_route("other", two)
    assert refused.value.code == "model_not_found"


def test_a_server_that_is_no_engine_is_sent_the_agents_own_fields_and_nothing_of_ours() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0.3,
        "logit_bias": {"5": 3},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "made_up": {"a": 1},
    }
    asked = parse(**fields, return_token_ids=True)
    target = Target(model="gpt-4o-mini", sampling=asked.sampling, captures=False)
    assert json.loads(Chat().engine_body(asked, target)) == {**fields, "model": "gpt-4o-mini", "messages": [USER]}
    capped = parse(Limits(max_output_tokens=7), max_completion_tokens=9)
    target = Target(model="m", sampling=capped.sampling, captures=False)
    assert json.loads(Chat().engine_body(capped, target))["max_completion_tokens"] == 7
