"""Tokens and text are taken out each by itself; what proves and explains a call stays."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.tracker.building import RUN, chain_of, episodes
from tracker.codec import decode_calls, encode_calls
from tracker.errors import BadRequest
from tracker.exclusion import exclusions
from tracker.removal import DAY_MS, Kept, due, without, words
from tracker.returns import call_returns
from tracker.settings import parse_run
from tracker.types import Call, Reason, Retention


@given(episodes())
def test_without_tokens_nothing_is_trained_and_each_choice_keeps_the_reason_it_had(calls: list[Call]) -> None:
    before = exclusions(calls, RUN)
    left = decode_calls(encode_calls(without(calls, Kept.TOKENS)))
    after = exclusions(left, RUN)
    keys = {(call.call_id, choice.index) for call in calls for choice in call.choices}
    assert keys <= after.keys()
    for key in keys - before.keys():
        assert after[key] is Reason.REMOVED
    assert not any(call.prompt_ids or choice.sampled_ids or choice.logprobs for call in left for choice in call.choices)
    assert [(call.call_id, call.messages) for call in left] == [(call.call_id, call.messages) for call in calls]


@given(episodes(amiss=False))
def test_without_text_the_tokens_are_as_they_were_and_the_other_way_round(calls: list[Call]) -> None:
    left = without(calls, Kept.TEXT)
    assert [call.prompt_ids for call in left] == [call.prompt_ids for call in calls]
    assert exclusions(left, RUN) == exclusions(calls, RUN)
    assert without(without(calls, Kept.TOKENS), Kept.TEXT) == without(calls, Kept.TOKENS | Kept.TEXT)


def test_a_call_without_tokens_is_in_no_tree() -> None:
    assert call_returns(without(chain_of(2), Kept.TOKENS), RUN, {}, 1.0) == ()


def test_each_part_is_due_by_its_own_days_and_once() -> None:
    kept = Retention(tokens_days=1, text_days=2.5)
    late = [due(kept, 0, Kept.ALL, int(days * DAY_MS)) for days in (0.9, 1, 2.5)]
    assert late == [Kept(0), Kept.TOKENS, Kept.TOKENS | Kept.TEXT]
    assert due(kept, 0, Kept.METADATA | Kept.TEXT, DAY_MS) == Kept(0)
    assert due(Retention(), 0, Kept.ALL, 10**15) == Kept(0)
    assert words(Kept.METADATA) == ("tokens", "text")


@pytest.mark.parametrize("retention", [{"tokens": 1}, {"tokens_days": -1}, {"text_days": "soon"}, {"text_days": 1e9}])
def test_a_retention_that_cannot_be_meant_is_refused(retention: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        parse_run({"run": "a", "retention": retention})


def test_a_run_keeps_everything_unless_it_says_otherwise() -> None:
    assert parse_run({"run": "a", "retention": {"tokens_days": None}}).retention == Retention()
    assert parse_run({"run": "a", "retention": {"tokens_days": 0}}).retention.tokens_days == 0
