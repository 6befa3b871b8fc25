"""What answers are like, in numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from tests.tracker.building import call, choice, episodes
from tracker.measures import MIXED, measure
from tracker.types import Call, CallState


def answer(message: object, **fields: object) -> Call:
    made = choice([1, 2], message=msgspec.json.encode(message), truncated=bool(fields.pop("truncated", False)))
    return call("c", 0, [5], **({"choices": (made,)} | fields))


def said(content: str, **fields: object) -> Call:
    return answer({"role": "assistant", "content": content}, **fields)


def used(arguments: object) -> Call:
    return answer({"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": arguments}}]})


def only(made: Call) -> dict[str, float]:
    ((_, found),) = measure([made]).values()
    return msgspec.structs.asdict(found)


def test_sums_are_over_answered_calls_of_policies():
    calls = [
        call("a", 0, [1], [2, 3], started_ms=5, ended_ms=25),
        call("b", 1, [1], [4], state=CallState.FAILED),
        call("c", 2, [1], [4], policy=None),
    ]
    ((policy, (version, found)),) = measure(calls).items()
    assert (policy, version) == ("p", 0)
    assert (found.num_calls, found.num_choices, found.num_tokens, found.call_ms) == (1, 1, 2, 20)
    assert found.nats == pytest.approx(1 / 8 + 2 / 8)


def test_an_episode_of_two_versions_is_of_none():
    assert measure([call("a", 0, [1], [2], version=1), call("b", 1, [1], [2], version=2)])["p"][0] == MIXED


@pytest.mark.parametrize(
    ("made", "number"),
    [
        (used('{"a": 1}'), 0),
        (used(""), 0),
        (used('{"a": '), 1),
        (used("[1]"), 1),
        (said('<tool_call>{"name": "x"'), 1),
        (said("plain words"), 0),
        (said("{nothing", request=b'{"response_format":{"type":"json_schema"}}'), 1),
        (said('{"a":1}', request=b'{"response_format":{"type":"json_schema"}}'), 0),
        (said('<tool_call>{"name": "x"', truncated=True), 0),
    ],
)
def test_a_tool_call_or_json_that_nobody_can_parse_is_counted(made: Call, number: int):
    assert only(made)["num_unparsed"] == number


def test_refusals_and_circles_are_told_by_the_words():
    assert only(said("I'm sorry, but I can't help with that."))["num_refusals"] == 1
    assert only(said("It cannot be that I am wrong. " + "word " * 9))["num_refusals"] == 0
    assert only(said("the same again and again " * 20))["num_repeated"] == 1
    assert only(said(" ".join(str(number) for number in range(99))))["num_repeated"] == 0


@given(episodes())
def test_any_episode_can_be_measured(calls: list[Call]):
    for _, found in measure(calls).values():
        assert 0 <= found.num_truncated <= found.num_choices
        assert found.nats >= 0
