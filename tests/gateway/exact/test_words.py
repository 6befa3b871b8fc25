"""From a generation's events to chat completions: cut where engines cut, the same however events were joined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.exact.words import ChoiceWords, Json, Wanted, cut, opening, pieces_of, wanted_of, whole
from tracker.errors import UpstreamFailed

PLAIN = Wanted(stops=(), num_top=0, is_forced=False)


def event(*ids: int, finish: str | None = None, stop: object = None, index: int = 0) -> Json:
    entries = [{"token": str(one), "logprob": -1.0, "top_logprobs": [{"token": "t"}]} for one in ids]
    choice = {"index": index, "token_ids": list(ids), "finish_reason": finish, "stop_reason": stop}
    return {"choices": [{**choice, "logprobs": {"content": entries}}]}


@given(st.text(alphabet="abE", max_size=12), st.lists(st.integers(0, 12)), st.sampled_from([("ab",), ("E", "bb")]))
def test_text_before_a_stop_string_comes_out_whole_however_it_was_cut(
    text: str, cuts: list[int], stops: tuple[str, ...]
) -> None:
    ends = [(text.index(one) + len(one), one) for one in stops if one in text]
    upto, stop = min(ends, default=(len(text), None))
    said = text[:upto]
    words = ChoiceWords(Wanted(stops=stops, num_top=0, is_forced=False))
    borders = sorted({0, *(one for one in cuts if one < len(said)), len(said)})
    deltas = [said[a:b] for a, b in zip(borders, [*borders[1:], None], strict=True)]
    told = ""
    for number, delta in enumerate(deltas):
        is_last = number == len(deltas) - 1
        (piece,) = pieces_of([event(number, finish="stop" if is_last else None, stop=stop if is_last else None)], PLAIN)
        told += words.part(piece, {"role": "assistant", "content": delta})["delta"].get("content", "")
    assert told == cut(said, stop)


def test_events_that_came_together_are_one_piece_a_choice() -> None:
    events = [event(1), event(5, index=1), event(2, 3), event(9, finish="stop"), {"choices": [], "usage": {}}]
    first, second = pieces_of(events, PLAIN)
    assert (first.index, first.token_ids, first.finish_reason) == (0, (1, 2, 3, 9), "stop")
    assert (second.index, second.token_ids, second.finish_reason) == (1, (5,), None)
    assert [entry["token"] for entry in first.entries] == ["1", "2", "3", "9"]


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [(None, None, [1, 9]), ("stop", None, [1]), ("stop", 9, [1]), ("stop", "END", [1, 9]), ("length", None, [1, 9])],
)
def test_the_token_that_ended_an_answer_makes_no_words(finish: str | None, stop: object, expected: list[int]) -> None:
    (piece,) = pieces_of([event(1, 9, finish=finish, stop=stop)], PLAIN)
    assert piece.words_ids == expected


@pytest.mark.parametrize(("is_forced", "finish"), [(False, "tool_calls"), (True, "stop")])
def test_an_answer_that_ended_with_calls_says_so(is_forced: bool, finish: str) -> None:
    wanted = Wanted(stops=(), num_top=0, is_forced=is_forced)
    calls = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]
    words = ChoiceWords(wanted)
    (piece,) = pieces_of([event(1)], wanted)
    assert words.part(piece, {"tool_calls": calls})["finish_reason"] is None
    (last,) = pieces_of([event(9, finish="stop")], wanted)
    part = words.part(last, {"role": None, "content": None, "tool_calls": []})
    assert (part["finish_reason"], part["delta"]) == (finish, {})
    generated = event(1, 9, finish="stop")
    message = {"content": None, "tool_calls": calls, "reasoning": None}
    answer = whole({}, generated, pieces_of([generated], wanted), {0: message}, wanted)
    assert answer["choices"][0]["finish_reason"] == finish
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": None, "tool_calls": calls}


def test_an_answer_without_words_is_empty_and_alternatives_are_those_asked_for() -> None:
    generated: dict[str, Any] = {**event(9, finish="stop"), "usage": {"prompt_tokens": 2}, "prompt_token_ids": [1, 2]}
    answer = whole({"id": "x"}, generated, pieces_of([generated], PLAIN), {}, PLAIN)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": ""}
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []
    assert choice["token_ids"] == [9]
    assert answer["prompt_token_ids"] == [1, 2]


def test_a_stream_opens_with_who_speaks_and_the_prompt() -> None:
    first, second = opening({"id": "x"}, 2, [1, 2])
    assert first["prompt_token_ids"] == [1, 2]
    assert "prompt_token_ids" not in second
    assert [one["choices"][0]["delta"]["role"] for one in (first, second)] == ["assistant", "assistant"]


def test_what_is_no_choice_is_refused() -> None:
    for choice in ("x", {}, {"index": 0, "token_ids": "ids"}):
        with pytest.raises(UpstreamFailed, match="not understood"):
            pieces_of([{"choices": [choice]}], PLAIN)


def test_stop_strings_are_cut_unless_the_agent_wants_them() -> None:
    assert wanted_of({"stop": "a"}).stops == ("a",)
    assert wanted_of({"stop": ["a", "b"], "top_logprobs": 2}) == Wanted(stops=("a", "b"), num_top=2, is_forced=False)
    assert wanted_of({"stop": "a", "include_stop_str_in_output": True}).stops == ()
    assert wanted_of({"tool_choice": {"type": "function"}}).is_forced
