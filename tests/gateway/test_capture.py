"""`gateway/capture.py` and `gateway/messages.py`: what is recorded of an answer, and what the agent sees of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.capture import Capture, EndTokens
from gateway.dialects.base import Asked
from gateway.message_fold import decode_json_value, encode_json
from tests.fakes.scripted_answers import Answer, Received, Script, stream_events, whole_answer
from tracker.errors import UpstreamFailed
from tracker.types import Choice, Reason

ENGINE_ASKS = {"return_token_ids": True, "logprobs": True, "stream_options": {"include_usage": True}}
WORDS = st.text(alphabet='ab \u2028"\\{é😀', max_size=4)
TOOL_PIECES = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "function": st.fixed_dictionaries({"arguments": WORDS})}
)
DELTAS = st.one_of(
    st.fixed_dictionaries({"content": WORDS}),
    st.fixed_dictionaries({"reasoning_content": WORDS}),
    st.fixed_dictionaries({"tool_calls": st.lists(TOOL_PIECES, min_size=1, max_size=2)}),
    st.just({}),
)
IDS = st.lists(st.integers(0, 2**20), min_size=1, max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    ids = draw(IDS)
    return Answer(
        ids=ids,
        logprobs=draw(st.lists(st.floats(-50, 0), min_size=len(ids), max_size=len(ids))),
        deltas=draw(st.lists(DELTAS, min_size=1, max_size=len(ids))),
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
    )


SCRIPTS = st.builds(Script, prompt_ids=IDS, choices=st.lists(answers(), min_size=1, max_size=3))


def received(path: str = "/v1/chat/completions") -> Received:
    return Received(method="POST", path=path, headers={}, raw=b"", body={**ENGINE_ASKS, "model": "m"}, arrived_s=0)


def objects(script: Script) -> list[Any]:
    """The stream's events without the end mark."""
    return [decode_json_value(event.removeprefix(b"data: ")) for event in stream_events(received(), script)[:-1]]


def fold(events: Sequence[Any], asked: Asked) -> tuple[Capture, list[Any]]:
    """The capture after all events, and what of them the agent saw."""
    capture = Capture(asked)
    return capture, [event for event in events if capture.feed(event)]


def choices_of(script: Script, limit: int | None = None, ends: EndTokens | None = None) -> tuple[Choice, ...]:
    capture, _ = fold(objects(script), Asked(model="m", streams=True, num_choices=len(script.choices)))
    return capture.choices(limit, ends or EndTokens())


def one(limit: int | None = None, ends: EndTokens | None = None, **fields: Any) -> Choice:
    named = {name: fields.pop(name) for name in ("prompt_ids", "completion_tokens") if name in fields}
    return choices_of(Script(choices=(Answer(**fields),), **named), limit, ends)[0]


@given(SCRIPTS, st.booleans())
def test_what_the_agent_received_joined_equals_what_was_recorded(script: Script, shows_reasoning: bool) -> None:
    asked = Asked(
        model="m", streams=True, num_choices=len(script.choices), shows_usage=False, shows_reasoning=shows_reasoning
    )
    capture, seen = fold(objects(script), asked)
    for choice in capture.choices(None, EndTokens()):
        message = json.loads(choice.message)
        deltas = [c["delta"] for event in seen for c in event["choices"] if c["index"] == choice.index]
        for name in ("content", "reasoning_content"):
            assert "".join(d.get(name) or "" for d in deltas) == (message.get(name) or "")
        pieces = [piece for d in deltas for piece in d.get("tool_calls", ())]
        for place, index in enumerate(sorted({piece["index"] for piece in pieces})):
            joined = "".join(p["function"]["arguments"] for p in pieces if p["index"] == index)
            assert message["tool_calls"][place]["function"]["arguments"] == joined


@given(SCRIPTS)
def test_ids_and_log_probabilities_are_recorded_exactly(script: Script) -> None:
    capture, _ = fold(objects(script), Asked(model="m", streams=True, num_choices=len(script.choices)))
    assert capture.is_finished
    assert capture.prompt_ids == tuple(script.prompt_ids or ())
    for choice, answer in zip(capture.choices(None, EndTokens()), script.choices, strict=True):
        assert choice.sampled_ids == tuple(answer.ids or ())
        assert choice.logprobs == tuple(answer.logprobs or ())
        assert choice.reason is None


@given(SCRIPTS)
def test_a_whole_answer_is_recorded_like_its_stream(script: Script) -> None:
    whole, streamed = whole_answer(received(), script), choices_of(script)
    capture, _ = fold([whole], Asked(model="m", num_choices=len(script.choices)))
    for a, b in zip(capture.choices(None, EndTokens()), streamed, strict=True):
        assert (a.sampled_ids, a.logprobs, a.finish_reason) == (b.sampled_ids, b.logprobs, b.finish_reason)


@given(SCRIPTS, st.booleans(), st.booleans(), st.booleans())
def test_events_are_the_engines_minus_what_was_not_asked_for(
    script: Script, usage: bool, logprobs: bool, token_ids: bool
) -> None:
    asked = Asked(
        model="m",
        streams=True,
        num_choices=len(script.choices),
        shows_usage=usage,
        shows_logprobs=logprobs,
        shows_token_ids=token_ids,
    )
    events = objects(script)
    expected = [without(event, usage, logprobs, token_ids) for event in events]
    _, seen = fold(events, asked)
    assert seen == [event for event in expected if event["choices"] or usage]


def without(event: Any, usage: bool, logprobs: bool, token_ids: bool) -> Any:
    hidden = {*(() if usage else ("usage",)), *(() if logprobs else ("logprobs",))}
    hidden |= set() if token_ids else {"token_ids", "prompt_token_ids"}
    choices = [{k: v for k, v in choice.items() if k not in hidden} for choice in event["choices"]]
    return {**{k: v for k, v in event.items() if k not in hidden}, "choices": choices}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ids": None}, Reason.NO_IDS),
        ({"ids": []}, Reason.NO_IDS),
        ({"ids": [5, -1]}, Reason.NO_IDS),
        ({"ids": ["5", 6], "logprobs": [-1.0, -1.0]}, Reason.NO_IDS),
        ({"prompt_ids": None}, Reason.NO_PROMPT_IDS),
        ({"prompt_ids": []}, Reason.NO_PROMPT_IDS),
        ({"ids": [5, 6], "completion_tokens": 5}, Reason.IDS_USAGE_MISMATCH),
        ({"ids": [5, 6, 7, 99], "logprobs": [-1.0, -1.0, -1.0]}, Reason.IDS_LOGPROBS_MISMATCH),
        ({"ids": [5, 6], "logprobs": []}, Reason.IDS_LOGPROBS_MISMATCH),
        ({"ids": [5, 6], "logprobs": [-1.0, None]}, Reason.BAD_LOGPROB),
        ({"ids": [5, 6], "logprobs": [-1.0, math.nan]}, Reason.BAD_LOGPROB),
        ({"ids": [5, 6], "logprobs": [-math.inf, -1.0]}, Reason.BAD_LOGPROB),
        ({"ids": [5, 6], "logprobs": [-9999.0, -1.0]}, Reason.BAD_LOGPROB),
        ({"ids": [5, 6], "logprobs": [0, -9998.5]}, None),
    ],
)
def test_a_choice_with_something_amiss_is_kept_with_its_reason(fields: dict[str, Any], reason: Reason | None) -> None:
    assert one(**fields).reason == reason


def test_a_missing_log_probability_is_never_made_up() -> None:
    assert one(ids=[5, 6], logprobs=[-1.0, None]).logprobs == ()
    assert one(ids=[5, 6], logprobs=[-1.0, -9999.0]).logprobs == (-1.0, -9999.0)


def test_the_detail_tells_people_the_counts() -> None:
    capture, _ = fold(
        objects(Script(choices=(Answer(ids=[5, 6]),), completion_tokens=5)), Asked(model="m", streams=True)
    )
    assert capture.detail() == "usage says 2 + 5 tokens, the ids are 2 + 2"


def test_usage_counts_all_choices_together() -> None:
    script = Script(choices=(Answer(ids=[5]), Answer(ids=[6, 7])))
    assert [choice.reason for choice in choices_of(script)] == [None, None]


def test_an_answer_is_finished_when_every_choice_is() -> None:
    events = objects(Script(choices=(Answer(ids=[5]), Answer(ids=[6]))))
    capture = Capture(Asked(model="m", streams=True, num_choices=2))
    finished = []
    for event in events:
        capture.feed(event)
        finished.append(capture.is_finished)
    assert finished == [False, False, True, True]


@pytest.mark.parametrize(
    ("ids", "finish", "limit", "seen", "truncated"),
    [
        ([5, 6], "length", 2, [], True),
        ([5, 6], "length", None, [], True),
        ([5, 99], "stop", 2, [], False),
        ([5, 99], "stop", None, [], False),
        ([5, 6], "tool_calls", 2, [], True),
        ([5, 6], "tool_calls", 2, [99], True),
        ([5, 99], "tool_calls", 2, [99], False),
        ([5, 6], "stop", 2, [99], True),
        ([5, 6], "tool_calls", 3, [99], False),
    ],
)
def test_truncated_is_decided_by_limit_and_last_id(
    ids: list[int], finish: str, limit: int | None, seen: list[int], truncated: bool
) -> None:
    ends = EndTokens()
    for token in seen:
        ends.learn((1, token), None, by_itself=True)
    assert one(ids=ids, finish_reason=finish, limit=limit, ends=ends).truncated is truncated


def test_end_tokens_are_learned_only_from_answers_that_ended_by_themselves() -> None:
    ends = EndTokens()
    one(ids=[5, 9], finish_reason="stop", limit=3, ends=ends)
    one(ids=[5, 7], finish_reason="length", limit=3, ends=ends)
    one(ids=[5, 8], finish_reason="stop", limit=2, ends=ends)
    one(ids=[5, 6], finish_reason="stop", completion_tokens=5, ends=ends)
    assert not ends.is_truncated((5, 9), 2, "tool_calls")
    assert all(ends.is_truncated((5, last), 2, "tool_calls") for last in (6, 7, 8))


def test_the_recorded_message_reads_like_the_whole_form() -> None:
    deltas = [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]
    message = json.loads(one(ids=[5, 6, 7], deltas=deltas, finish_reason="tool_calls").message)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert message == {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("event", [{}, {"choices": None}, {"choices": [5]}, {"choices": [{"index": "x"}]}])
def test_an_event_that_is_none_fails_the_call(event: dict[str, Any]) -> None:
    with pytest.raises(UpstreamFailed):
        Capture(Asked(model="m")).feed(event)


def test_json_that_strict_parsers_refuse_is_read_and_written() -> None:
    assert math.isnan(decode_json_value(b'{"a": NaN}')["a"])
    assert json.loads(encode_json({"a": "\ud83d"})) == {"a": "\ud83d"}
    assert msgspec.json.decode(encode_json({"a": math.nan})) == {"a": None}


@pytest.mark.parametrize("start", [b"", b"[NaN,", b'{"a":'])
@pytest.mark.parametrize("end", [b"", b"]" * 100_000])
def test_json_nested_too_deeply_is_a_malformed_answer_like_any_other(start: bytes, end: bytes) -> None:
    with pytest.raises(ValueError):
        decode_json_value(start + b"[" * 100_000 + end)


@given(SCRIPTS)
def test_of_a_model_that_is_no_policy_words_are_kept_and_no_token(script: Script) -> None:
    events = objects(script)
    asked = Asked(model="m", streams=True, num_choices=len(script.choices), shows_usage=False)
    capture = Capture(asked, takes_tokens=False)
    seen = [event for event in (json.loads(json.dumps(event)) for event in events) if capture.feed(event)]
    assert seen == [event for event in events if event["choices"]]
    assert capture.is_finished
    assert capture.prompt_ids == ()
    for choice in capture.choices(None, EndTokens()):
        assert (choice.sampled_ids, choice.logprobs, choice.reason) == ((), (), None)
    assert capture.detail() == ""
    assert capture.usage_prompt_tokens == len(script.prompt_ids or ())


def test_an_event_that_only_says_more_than_usage_goes_on() -> None:
    capture = Capture(Asked(model="m", streams=True, shows_usage=False), takes_tokens=False)
    first = {"choices": [], "usage": None, "prompt_filter_results": [{"index": 0}]}
    assert capture.feed(first)
    assert first == {"choices": [], "prompt_filter_results": [{"index": 0}]}
    assert not capture.feed({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
