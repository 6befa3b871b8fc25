"""The scripted engine of the package: answers that let agents go on, in tokens that a kept history extends."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.encoding import load_encoding
from gateway.scoring import Scoring, judge
from gateway.scripted.answers import WORDS, answer_to
from gateway.scripted.engine import create_scripted_engine
from gateway.scripted.tokens import END, Tokens
from gateway.scripted.values import value_for

USER = {"role": "user", "content": "What is in the Zürich office 🗼?"}
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["fast", "slow"]},
        "n": {"type": "integer", "minimum": 3},
        "when": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/When"}]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 2},
        "unused": {"type": "string"},
    },
    "required": ["path", "mode", "n", "when", "tags"],
    "$defs": {"When": {"type": "object", "properties": {"day": {"format": "date"}}, "required": ["day"]}},
}


def tool(name: str, parameters: Any = SCHEMA) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="module")
def encoding() -> tiktoken.Encoding:
    return load_encoding()


@pytest.fixture
def client(encoding: tiktoken.Encoding) -> httpx.AsyncClient:
    app = create_scripted_engine(["base"], encoding)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://engine")


def test_arguments_fit_the_schema_of_their_tool() -> None:
    said = answer_to({"messages": [USER], "tools": [tool("look_up")]})
    assert said.tool == "look_up"
    assert json.loads(said.arguments) == {
        "path": "example",
        "mode": "fast",
        "n": 3,
        "when": {"day": "2026-01-01"},
        "tags": ["ex", "ex"],
    }


def test_a_schema_that_names_itself_comes_to_an_end() -> None:
    inner = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}
    assert value_for({"allOf": [{"$ref": "#"}], **inner})
    assert value_for({"$ref": "#/nowhere"}) == "example"


@settings(max_examples=20)
@given(st.recursive(st.none() | st.booleans() | st.text(max_size=3), lambda x: st.dictionaries(st.text(max_size=4), x)))
def test_no_schema_makes_it_fail(schema: Any) -> None:
    json.dumps(value_for(schema))


def test_it_reads_first_and_then_ends_its_turn() -> None:
    tools = [tool("write_file"), tool("final_answer"), tool("read_file")]
    answered = [USER, {"role": "assistant", "content": ""}, {"role": "tool", "content": "x"}]
    assert answer_to({"messages": [USER], "tools": tools}).tool == "read_file"
    assert answer_to({"messages": answered, "tools": tools}).tool == "final_answer"
    assert answer_to({"messages": answered, "tools": tools[::2]}).text == WORDS
    assert answer_to({"messages": [USER], "tools": tools, "tool_choice": "none"}).text == WORDS
    named = {"type": "function", "function": {"name": "write_file"}}
    assert answer_to({"messages": [USER], "tools": tools, "tool_choice": named}).tool == "write_file"


def test_structured_output_fits_its_schema() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    assert json.loads(answer_to({"messages": [USER], "response_format": shape}).text)["mode"] == "fast"
    assert json.loads(answer_to({"messages": [USER], "response_format": {"type": "json_object"}}).text)


async def ask(client: httpx.AsyncClient, messages: list[Any], **fields: Any) -> Any:
    body = {"model": "base", "messages": messages, "return_token_ids": True, "logprobs": True, **fields}
    answered = await client.post("/v1/chat/completions", json=body)
    assert answered.status_code == 200
    if not fields.get("stream"):
        return answered.json()
    return [json.loads(e.removeprefix("data: ")) for e in answered.text.split("\n\n") if e.startswith("data: {")]


@pytest.mark.parametrize("tools", [None, [tool("look_up")]])
async def test_a_history_that_is_kept_extends_its_own_prefix(client: httpx.AsyncClient, tools: Any) -> None:
    fields = {"tools": tools} if tools else {}
    first = await ask(client, [USER], **fields)
    (choice,) = first["choices"]
    assert choice["finish_reason"] == ("tool_calls" if tools else "stop")
    assert choice["token_ids"][-1] == END
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == first["usage"]["completion_tokens"]
    whole = first["prompt_token_ids"] + choice["token_ids"]
    kept = await ask(client, [USER, choice["message"], USER], **fields)
    assert kept["prompt_token_ids"][: len(whole)] == whole
    rewritten = {**choice["message"], "content": "Something else."}
    changed = await ask(client, [USER, rewritten, USER], **fields)
    assert changed["prompt_token_ids"][: len(whole)] != whole


@pytest.mark.parametrize("fields", [{}, {"tools": [tool("look_up")]}, {"n": 2}, {"max_tokens": 2}])
async def test_a_stream_says_what_the_whole_answer_says(client: httpx.AsyncClient, fields: Any) -> None:
    whole = await ask(client, [USER], **fields)
    events = await ask(client, [USER], stream=True, **fields)
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert [i for c in mine for i in c.get("token_ids", ())] == choice["token_ids"]
        assert "".join(c["delta"].get("content", "") for c in mine) == (choice["message"]["content"] or "")
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_text_comes_back_from_its_ids(encoding: tiktoken.Encoding) -> None:
    tokens = Tokens(encoding)
    ids = tokens.prompt({"messages": [USER]})
    assert tokens.text(ids) == f"<|start|>user\n{USER['content']}<|end|>\n<|start|>assistant\n"


async def test_its_scores_are_those_of_the_distribution_it_samples_from(client: httpx.AsyncClient) -> None:
    async def score(temperature: float) -> dict[str, float]:
        body = {"model": "base", "prompt": "a", "max_tokens": 1, "logprobs": 20, "temperature": temperature}
        return (await client.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]["top_logprobs"][0]

    assert judge(await score(1.0), await score(2.0)) is Scoring.PROCESSED


async def test_it_answers_to_its_own_names_only(client: httpx.AsyncClient) -> None:
    assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["base"]
    assert (await client.post("/v1/chat/completions", json={"model": "x", "messages": []})).status_code == 404
