"""Where calls stop extending each other: told by ids, at the first one that differs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.doctor.drift import StepKind, steps_of
from tests.tracker.building import call
from tracker.types import Call


def asked(made: Call, *answers: str, **fields: Any) -> Call:
    """The call with a conversation that holds these answers."""
    pieces = [{"role": "user", "content": "q"}, *({"role": "assistant", "content": text} for text in answers)]
    return msgspec.structs.replace(made, messages=tuple(json.dumps(piece).encode() for piece in pieces), **fields)


FIRST = asked(call("a", 0, [1, 2], [3, 99]))


def kinds(*calls: Call) -> list[StepKind]:
    return [step.kind for step in steps_of(calls)]


def test_a_call_that_begins_with_all_of_an_earlier_one_extends_it() -> None:
    assert kinds(FIRST, asked(call("b", 1, [1, 2, 3, 99, 7], [8]), "x")) == [StepKind.STARTS, StepKind.EXTENDS]


def test_a_rewritten_answer_drifts_at_its_first_other_token() -> None:
    _, step = steps_of([FIRST, asked(call("b", 1, [1, 2, 4, 99, 7], [8]), "x")])
    assert step.kind is StepKind.DRIFTS
    assert step.place is not None
    assert (step.place.call_id, step.place.position, step.place.num_stored) == ("a", 2, 4)
    assert step.place.in_answer
    assert (step.place.before, step.place.stored, step.place.new) == ((1, 2), (3, 99), (4, 99, 7))


def test_a_rewritten_prompt_drifts_in_the_prompt() -> None:
    _, step = steps_of([FIRST, asked(call("b", 1, [1, 9, 3, 99, 7], [8]), "x")])
    assert step.kind is StepKind.DRIFTS
    assert step.place is not None
    assert (step.place.position, step.place.in_answer) == (1, False)


def test_drift_is_told_against_the_call_that_shares_most_though_an_older_one_is_extended_whole() -> None:
    second = asked(call("b", 1, [1, 2, 3, 99, 7], [8, 99]), "x")
    *_, step = steps_of([FIRST, second, asked(call("c", 2, [1, 2, 3, 99, 7, 6, 99, 5], [1]), "x", "rewritten")])
    assert step.kind is StepKind.DRIFTS
    assert step.place is not None
    assert (step.place.call_id, step.place.position) == ("b", 5)


@pytest.mark.parametrize("prompt", [[1, 2], [1]])
def test_the_same_prompt_or_the_beginning_of_it_forks(prompt: list[int]) -> None:
    assert kinds(FIRST, asked(call("b", 1, prompt, [5]))) == [StepKind.STARTS, StepKind.FORKS]


def test_two_ways_on_from_one_answer_fork() -> None:
    ways = [asked(call(name, n, [1, 2, 3, 99, n], [5]), "x") for n, name in enumerate("bc", start=1)]
    assert kinds(FIRST, *ways) == [StepKind.STARTS, StepKind.EXTENDS, StepKind.FORKS]


def test_another_conversation_starts_whatever_examples_both_are_given() -> None:
    one, other = asked(call("a", 0, [1, 2], [3]), "example"), asked(call("b", 1, [1, 4], [3]), "example")
    assert kinds(one, other) == [StepKind.STARTS, StepKind.STARTS]


def test_policies_and_calls_without_ids_are_kept_apart() -> None:
    silent = msgspec.structs.replace(call("b", 1, [1, 2], [3]), policy=None)
    other = msgspec.structs.replace(call("c", 2, [1, 2, 3, 99, 4], [3]), policy="checker")
    empty = msgspec.structs.replace(call("d", 3, [], []), choices=())
    assert [(step.call_id, step.kind) for step in steps_of([FIRST, silent, other, empty])] == [
        ("c", StepKind.STARTS),
        ("a", StepKind.STARTS),
    ]


def test_answers_of_other_dialects_are_answers_too() -> None:
    pieces = [{"type": "function_call", "name": "f", "arguments": "{}"}, {"type": "message", "role": "user"}]
    drifted = msgspec.structs.replace(call("b", 1, [1, 9], [8]), messages=tuple(json.dumps(p).encode() for p in pieces))
    assert kinds(FIRST, drifted) == [StepKind.STARTS, StepKind.DRIFTS]
