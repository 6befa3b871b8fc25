"""Why a choice is not trained: each reason once, and the rule for retries."""

import math

import msgspec
import pytest
from hypothesis import given

from tests.tracker.building import RUN, call, choice, episodes
from tracker.exclusion import is_dropped
from tracker.timeline import exclusions
from tracker.types import Call, CallState, Reason, RunSettings, Sampling

GOOD = call("a", 0, [1], [5, 6])


def changed(made: Call, **fields: object) -> Call:
    return msgspec.structs.replace(made, **fields)


def attempt(name: str, index: int, retry: int = 0, **fields: object) -> Call:
    return call(name, index, [1], [5], key_id="k", body_digest="d", retry=retry, **fields)


def reasons_of(calls: list[Call], run: RunSettings = RUN) -> dict[str, Reason]:
    return {call_id: reason for (call_id, _), reason in exclusions(calls, run).items()}


def test_a_whole_call_is_not_excluded():
    assert exclusions([GOOD], RUN) == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt_ids": ()}, Reason.NO_PROMPT_IDS),
        ({"choices": ()}, Reason.NO_IDS),
        ({"choices": (choice([]),)}, Reason.NO_IDS),
        ({"usage_completion_tokens": 5}, Reason.IDS_USAGE_MISMATCH),
        ({"choices": (choice([5, 6], [-0.5]),)}, Reason.IDS_LOGPROBS_MISMATCH),
        ({"choices": (choice([5, 6], [-0.5, math.nan]),)}, Reason.BAD_LOGPROB),
        ({"choices": (choice([5, 6], [-0.5, -math.inf]),)}, Reason.BAD_LOGPROB),
        ({"choices": (choice([5, 6], [-0.5, -9999.0]),)}, Reason.BAD_LOGPROB),
        ({"choices": (choice([5, 6], reason=Reason.IMAGES),)}, Reason.IMAGES),
        ({"reason": Reason.CONTEXT_LIMIT, "state": CallState.FAILED}, Reason.CONTEXT_LIMIT),
        ({"state": CallState.FAILED}, Reason.UPSTREAM_FAILED),
        ({"state": CallState.ABORTED}, Reason.CLIENT_GONE),
        ({"state": CallState.LOST, "choices": ()}, Reason.LOST),
        ({"policy": None}, Reason.NOT_POLICY_DISTRIBUTION),
        ({"sampling": Sampling(temperature=0.0)}, Reason.NOT_POLICY_DISTRIBUTION),
        ({"sampling": Sampling(top_k=50)}, Reason.NOT_POLICY_DISTRIBUTION),
        ({"sampling": Sampling(constrained=True)}, Reason.NOT_POLICY_DISTRIBUTION),
    ],
)
def test_a_call_with_something_amiss_is_excluded_with_its_reason(fields: dict[str, object], reason: Reason):
    assert exclusions([changed(GOOD, **fields)], RUN) == {("a", 0): reason}


def test_usage_that_agrees_over_all_choices_excludes_nothing():
    assert exclusions([call("a", 0, [1], [5, 6], [7], usage_completion_tokens=3)], RUN) == {}


def test_one_bad_choice_leaves_the_other_trained():
    made = changed(GOOD, choices=(choice([5], [math.inf]), choice([6], index=1)))
    assert exclusions([made], RUN) == {("a", 0): Reason.BAD_LOGPROB}


def test_a_run_may_train_constrained_answers_but_never_truncated_distributions():
    run = RunSettings(run="r", constrained="train")
    assert exclusions([changed(GOOD, sampling=Sampling(constrained=True))], run) == {}
    assert exclusions([changed(GOOD, sampling=Sampling(constrained=True, top_p=0.9))], run)


def test_an_evaluation_honours_any_sampling():
    assert exclusions([changed(GOOD, sampling=Sampling(temperature=0.0))], RunSettings(run="r", mode="eval")) == {}


@pytest.mark.parametrize("rule", ["context", "drop"])
def test_a_role_that_the_run_does_not_train_is_excluded(rule: str):
    run = RunSettings(run="r", roles={"judge": rule, "main": "train"})
    judge = call("b", 1, [2], [5], role="judge")
    assert exclusions([GOOD, judge], run) == {("b", 0): Reason.ROLE}


def test_calls_of_a_version_that_the_episode_was_moved_away_from_are_stale():
    moved = call("b", 1, [2], [5], version=3)
    assert reasons_of([GOOD, moved]) == {"a": Reason.STALE}
    assert reasons_of([GOOD, moved], RunSettings(run="r", pin="call")) == {}
    assert reasons_of([GOOD, moved], RunSettings(run="r", on_stale="train")) == {}


def test_a_call_that_got_no_answer_does_not_tell_which_version_the_episode_is_at():
    lost = call("b", 1, [2], state=CallState.LOST, version=3)
    assert reasons_of([GOOD, lost]) == {"b": Reason.LOST}


def test_two_policies_at_different_versions_are_not_stale():
    assert reasons_of([GOOD, call("b", 1, [2], [5], version=3, policy="q")]) == {}


def test_a_retry_supersedes_the_one_earlier_attempt():
    assert reasons_of([attempt("a", 0), attempt("b", 1, retry=1)]) == {"a": Reason.SUPERSEDED}


def test_an_aborted_attempt_that_was_retried_reads_as_superseded():
    assert reasons_of([attempt("a", 0, state=CallState.ABORTED), attempt("b", 1, retry=1)]) == {"a": Reason.SUPERSEDED}


def test_a_failed_attempt_keeps_telling_that_the_engine_failed():
    calls = [attempt("a", 0, state=CallState.FAILED), attempt("b", 1, retry=1)]
    assert reasons_of(calls) == {"a": Reason.UPSTREAM_FAILED}


def test_each_retry_supersedes_the_attempt_before_it():
    calls = [attempt("a", 0), attempt("b", 1, retry=1), attempt("c", 2, retry=2)]
    assert reasons_of(calls) == {"a": Reason.SUPERSEDED, "b": Reason.SUPERSEDED}


def test_a_retry_replaces_only_attempts_with_a_lower_count():
    assert reasons_of([attempt("a", 0), attempt("b", 1, retry=1), attempt("c", 2, retry=1)]) == {"a": Reason.SUPERSEDED}


def test_of_several_matching_attempts_only_the_undelivered_are_excluded():
    calls = [attempt("a", 0), attempt("b", 1, state=CallState.ABORTED), attempt("c", 2, retry=1)]
    assert reasons_of(calls) == {"b": Reason.AMBIGUOUS_RETRY}


def test_equal_calls_without_a_retry_count_are_all_real():
    assert reasons_of([attempt("a", 0), attempt("b", 1)]) == {}


def test_a_retry_under_another_key_or_body_supersedes_nothing():
    other_key = changed(attempt("b", 1, retry=1), key_id="other")
    other_body = changed(attempt("c", 2, retry=1), body_digest="other")
    assert reasons_of([attempt("a", 0), other_key, other_body]) == {}


def test_an_unknown_body_matches_no_retry():
    calls = [changed(attempt("a", 0), body_digest=""), changed(attempt("b", 1, retry=1), body_digest="")]
    assert reasons_of(calls) == {}


@given(episodes())
def test_every_excluded_choice_has_one_reason_and_only_known_choices_are_named(calls: list[Call]):
    known = {(made.call_id, item.index) for made in calls for item in made.choices}
    empty = {(made.call_id, 0) for made in calls if not made.choices}
    excluded = exclusions(calls, RUN)
    assert empty <= excluded.keys() <= known | empty


CUT = call("a", 0, [1], choices=(choice([5, 6], truncated=True),))
NEXT = call("b", 1, [1, 5, 6, 9], [7])


@pytest.mark.parametrize(
    ("rule", "reasons"),
    [
        ("train", {}),
        ("mask", {"a": Reason.TRUNCATED}),
        ("drop", {"a": Reason.TRUNCATED, "b": Reason.TRUNCATED}),
    ],
)
def test_what_becomes_of_an_answer_that_was_cut_is_said_by_the_run(rule: str, reasons: dict[str, Reason]):
    run = RunSettings(run="r", truncated=rule)
    assert reasons_of([CUT, NEXT], run) == reasons
    assert is_dropped([CUT, NEXT], run) == (rule == "drop")
    assert reasons_of([GOOD, NEXT], run) == {}
    assert not is_dropped([GOOD, NEXT], run)


@pytest.mark.parametrize("rule", ["mask", "drop"])
def test_an_evaluation_leaves_nothing_out_for_its_length(rule: str):
    assert reasons_of([CUT, NEXT], RunSettings(run="r", mode="eval", truncated=rule)) == {}


@pytest.mark.parametrize("amiss", [{"role": "title"}, {"reason": Reason.IMAGES}, {"state": CallState.ABORTED}])
def test_an_answer_that_is_not_trained_anyway_drops_no_episode(amiss: dict[str, object]):
    run = RunSettings(run="r", truncated="drop")
    calls = [changed(CUT, **amiss), call("b", 1, [2], [7])]
    assert reasons_of(calls, run).keys() == {"a"}
    assert reasons_of(calls, run)["a"] is not Reason.TRUNCATED
    assert not is_dropped(calls, run)


def test_of_several_choices_only_the_cut_one_is_masked():
    made = changed(GOOD, choices=(choice([5], truncated=True), choice([6], index=1)))
    assert exclusions([made], RunSettings(run="r", truncated="mask")) == {("a", 0): Reason.TRUNCATED}


@given(episodes())
def test_an_episode_in_which_nothing_was_cut_is_the_same_under_every_rule(calls: list[Call]):
    for rule in ("mask", "drop"):
        assert exclusions(calls, RunSettings(run="r", truncated=rule)) == exclusions(calls, RUN)
