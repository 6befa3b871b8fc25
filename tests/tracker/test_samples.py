"""Rows and samples: each sampled token trained once, under its context, and nothing invented.

The cases are those of the field's list: C15, C16, C24.
"""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import RUN, call, choice, episodes
from tracker.receipts import call_digest
from tracker.samples import Sample, counts, rows_of, samples_of
from tracker.types import Call, Choice, Reason, RunSettings, Sampling

END = 99


def tokens_of(sample: Sample) -> tuple[list[int], list[int]]:
    return list(sample.input_ids), list(sample.loss_mask)


def samples(calls: list[Call]) -> list[tuple[list[int], list[int]]]:
    return [tokens_of(sample) for sample in samples_of(calls, RUN, {})[0]]


def trained_choices(calls: list[Call]) -> dict[tuple[str, int], tuple[Call, Choice]]:
    left_out = {(one.call_id, one.choice) for one in samples_of(calls, RUN, {})[1]}
    every = {(made.call_id, one.index): (made, one) for made in calls for one in made.choices}
    return {key: value for key, value in every.items() if key not in left_out}


A1, B1 = call("a1", 0, [1, 2], [3, END]), call("b1", 1, [7, 8], [4, END])
A2, B2 = call("a2", 2, [1, 2, 3, END, 98, 5], [6, END]), call("b2", 3, [7, 8, 4, END, 98, 9], [3, END])


@pytest.mark.parametrize("finished", [[A1, B1, A2, B2], [B2, A2, B1, A1], [B1, A1, B2, A2]])
def test_c15_two_agents_in_one_episode_give_one_row_each_whatever_finishes_first(finished: list[Call]):
    assert samples(finished) == [
        ([1, 2, 3, 99, 98, 5, 6, 99], [0, 0, 1, 1, 0, 0, 1, 1]),
        ([7, 8, 4, 99, 98, 9, 3, 99], [0, 0, 1, 1, 0, 0, 1, 1]),
    ]
    assert sum(len(row.sampled_ids) for row in rows_of(finished, RUN, "p")) == 8


@pytest.mark.parametrize("begun", [[1, 0, 3, 2], [1, 0, 2, 3]])
def test_c15_the_same_rows_come_out_when_the_other_agent_begins_first(begun: list[int]):
    calls = [msgspec.structs.replace(made, index=index) for made, index in zip([A1, B1, A2, B2], begun, strict=True)]
    assert sorted(samples(calls)) == sorted(samples([A1, B1, A2, B2]))


def test_c16_a_history_that_tokenises_otherwise_starts_a_row_and_trains_only_sampled_ids():
    first = call("t1", 0, [10, 11], choices=(choice([20, 21, END], [-0.1, -0.2, -0.3]),))
    second = call("t2", 1, [10, 11, 22, END, 98, 30], [40, END])
    assert samples([first, second]) == [
        ([10, 11, 20, 21, 99], [0, 0, 1, 1, 1]),
        ([10, 11, 22, 99, 98, 30, 40, 99], [0, 0, 0, 0, 0, 0, 1, 1]),
    ]
    assert samples_of([first, second], RUN, {})[0][0].logprobs == (None, None, -0.1, -0.2, -0.3)


def test_c24_an_end_token_that_was_not_sampled_is_context():
    first = call("t1", 0, [1], choices=(choice([5, 6], finish_reason="length", truncated=True),))
    second = call("t2", 1, [1, 5, 6, END, 98, 3], [7, END])
    assert samples([first, second]) == [([1, 5, 6, 99, 98, 3, 7, 99], [0, 1, 1, 0, 0, 0, 1, 1])]
    assert samples_of([first, second], RUN, {})[0][0].logprobs[3] is None


def test_c24_a_single_turn_cut_by_its_limit_gets_no_end_token():
    only = call("t1", 0, [1], choices=(choice([5, 6], finish_reason="length", truncated=True),))
    assert samples([only]) == [([1, 5, 6], [0, 1, 1])]
    assert rows_of([only], RUN, "p")[0].sampled_ids == (5, 6)
    assert counts([only], RUN).num_truncated == 1


def test_a_masked_answer_is_context_in_the_sample_that_goes_on_from_it():
    run = RunSettings(run="r", truncated="mask")
    first = call("t1", 0, [1], choices=(choice([5, 6], finish_reason="length", truncated=True),))
    second = call("t2", 1, [1, 5, 6, END, 98, 3], [7, END])
    (sample,), excluded = samples_of([first, second], run, {})
    assert tokens_of(sample) == ([1, 5, 6, 99, 98, 3, 7, 99], [0, 0, 0, 0, 0, 0, 1, 1])
    assert [(item.call_id, item.reason, item.num_tokens) for item in excluded] == [("t1", Reason.TRUNCATED, 2)]
    assert [row.call_id for row in rows_of([first, second], run, "p")] == ["t2"]
    assert (counts([first, second], run).num_excluded, counts([first, second], run).num_truncated) == (1, 1)


def test_nothing_of_a_dropped_episode_becomes_a_row():
    run = RunSettings(run="r", truncated="drop")
    calls = [call("t1", 0, [1], choices=(choice([5], truncated=True),)), call("t2", 1, [2], [7])]
    assert rows_of(calls, run, "p") == ()
    assert counts(calls, run).num_excluded == 2


def test_a_shared_beginning_is_trained_in_the_first_branch_and_context_in_the_other():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4]), call("c", 2, [1, 2, 5], [6])]
    assert samples(calls) == [([1, 2, 3, 4], [0, 1, 0, 1]), ([1, 2, 5, 6], [0, 0, 0, 1])]


def test_spans_tell_call_choice_version_and_the_call_s_own_reward():
    made = call("a", 0, [1, 2], [3, 4], [5], version=7)
    (first, second), excluded = samples_of([made], RUN, {"a": 0.5})
    assert [(s.start, s.end, s.call_id, s.choice, s.version, s.reward) for s in first.spans] == [(2, 4, "a", 0, 7, 0.5)]
    assert [(s.start, s.end, s.choice, s.reward) for s in second.spans] == [(2, 3, 1, 0.5)]
    assert samples_of([made], RUN, {})[0][0].spans[0].reward is None
    assert excluded == ()


def test_an_excluded_choice_tells_how_many_sampled_tokens_it_costs():
    made = call("a", 0, [1, 2], [3, 4, 5], reason=Reason.IMAGES)
    assert [(e.call_id, e.choice, e.reason, e.num_tokens) for e in samples_of([made], RUN, {})[1]] == [
        ("a", 0, Reason.IMAGES, 3)
    ]


def test_the_merge_ratio_is_what_rows_cost_over_what_samples_cost():
    numbers = counts([A1, B1, A2, B2], RUN)
    assert (numbers.num_raw_tokens, numbers.num_sample_tokens, numbers.merge_ratio) == (24, 16, 1.5)
    assert counts([], RUN).merge_ratio == 1.0


@given(episodes())
def test_every_sampled_token_is_trained_exactly_once(calls: list[Call]):
    trained: Counter[tuple[str, int]] = Counter()
    for sample in samples_of(calls, RUN, {})[0]:
        assert sum(sample.loss_mask) == sum(span.end - span.start for span in sample.spans)
        assert all(before.end <= after.start for before, after in pairwise(sample.spans))
        trained.update((span.call_id, span.choice) for span in sample.spans)
    assert trained == Counter(trained_choices(calls).keys())


@given(episodes())
def test_every_sampled_token_is_trained_under_the_context_the_engine_used(calls: list[Call]):
    known = trained_choices(calls)
    for sample in samples_of(calls, RUN, {})[0]:
        for span in sample.spans:
            made, one = known[span.call_id, span.choice]
            assert made.policy == sample.policy
            assert sample.input_ids[: span.start] == made.prompt_ids
            assert sample.input_ids[span.start : span.end] == one.sampled_ids
            assert sample.logprobs[span.start : span.end] == one.logprobs
            assert set(sample.loss_mask[span.start : span.end]) == {1}


@given(episodes())
def test_no_token_and_no_log_probability_is_invented(calls: list[Call]):
    whole = {made.prompt_ids + one.sampled_ids for made, one in trained_choices(calls).values()}
    for sample in samples_of(calls, RUN, {})[0]:
        assert sample.input_ids in whole
        assert len(sample.input_ids) == len(sample.loss_mask) == len(sample.logprobs)
        assert [value is not None for value in sample.logprobs] == [mask == 1 for mask in sample.loss_mask]


@given(episodes())
def test_calls_are_the_calls_in_rows_and_the_calls_excluded_with_a_reason(calls: list[Call]):
    in_rows = {row.call_id for policy in ("p", "q") for row in rows_of(calls, RUN, policy)}
    left_out = {one.call_id for one in samples_of(calls, RUN, {})[1]}
    numbers = counts(calls, RUN)
    assert in_rows | left_out == {made.call_id for made in calls}
    assert len(in_rows) + numbers.num_excluded == numbers.num_calls == len(calls)


@given(st.data(), episodes())
def test_rows_and_samples_do_not_depend_on_the_order_calls_are_read_in(data: st.DataObject, calls: list[Call]):
    shuffled = data.draw(st.permutations(calls))
    assert samples_of(shuffled, RUN, {}) == samples_of(calls, RUN, {})
    assert rows_of(shuffled, RUN, "p") == rows_of(calls, RUN, "p")
    assert counts(shuffled, RUN) == counts(calls, RUN)


@given(episodes(), st.integers(2, 4))
def test_equal_calls_are_each_trained_once(calls: list[Call], copies: int):
    again = [
        msgspec.structs.replace(
            made, call_id=f"{made.call_id}x{copy}", index=made.index * copies + copy, body_digest=""
        )
        for made in calls
        for copy in range(copies)
    ]
    once = Counter(
        (row.prompt_ids, row.sampled_ids) for row in rows_of([c for c in again if c.call_id.endswith("x0")], RUN, "p")
    )
    many = Counter((row.prompt_ids, row.sampled_ids) for row in rows_of(again, RUN, "p"))
    assert many == Counter({key: count * copies for key, count in once.items()})


@given(episodes())
def test_rows_hold_what_the_engine_saw_and_the_receipt_of_their_call(calls: list[Call]):
    known = trained_choices(calls)
    rows = [row for policy in ("p", "q") for row in rows_of(calls, RUN, policy)]
    assert sorted((row.call_id, row.choice) for row in rows) == sorted(known)
    for row in rows:
        made, one = known[row.call_id, row.choice]
        assert (row.prompt_ids, row.sampled_ids, row.logprobs) == (made.prompt_ids, one.sampled_ids, one.logprobs)
        assert row.sampled_ids
        assert (row.episode_id, row.version, row.role) == (made.episode_id, made.version, made.role)
        assert row.receipt == call_digest(made)


def test_a_row_tells_the_temperature_and_adapter_it_was_sampled_with():
    made = call("a", 0, [1], [2], sampling=Sampling(temperature=0.5), version=3, adapter_digest="ab")
    (row,) = rows_of([made], RUN, "p")
    assert (row.temperature, row.version, row.adapter_digest) == (0.5, 3, "ab")


@given(episodes())
def test_counts_are_those_of_the_samples(calls: list[Call]):
    made = samples_of(calls, RUN, {})[0]
    numbers = counts(calls, RUN)
    assert numbers.num_samples == len(made)
    assert numbers.num_sample_tokens == sum(len(sample.input_ids) for sample in made)
    assert numbers.num_raw_tokens >= numbers.num_sample_tokens >= numbers.num_distinct_tokens


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("train", [([1, 2, 3, 4], [0, 1, 0, 1])]),
        ("context", [([1, 2, 3, 4], [0, 1, 0, 0])]),
        ("drop", [([1, 2], [0, 1])]),
    ],
)
def test_a_context_role_stays_in_its_sample_masked_and_a_dropped_one_does_not(
    rule: str, expected: list[tuple[list[int], list[int]]]
):
    run = RunSettings(run="r", roles={"judge": rule})
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4], role="judge")]
    made, excluded = samples_of(calls, run, {})
    assert [tokens_of(sample) for sample in made] == expected
    assert [one.reason for one in excluded] == ([] if rule == "train" else [Reason.ROLE])
    assert len(rows_of(calls, run, "p")) == (2 if rule == "train" else 1)
    assert counts(calls, run).merge_ratio >= 1


@given(episodes(), st.sampled_from(["context", "drop"]))
def test_each_trained_token_is_trained_once_whatever_becomes_of_other_roles(calls: list[Call], rule: str):
    run = RunSettings(run="r", roles={"judge": rule, "main": "train"})
    made, excluded = samples_of(calls, run, {})
    rows = [row for policy in ("p", "q") for row in rows_of(calls, run, policy)]
    assert sum(sum(sample.loss_mask) for sample in made) == sum(len(row.sampled_ids) for row in rows)
    spans = Counter((span.call_id, span.choice) for sample in made for span in sample.spans)
    assert spans == Counter((row.call_id, row.choice) for row in rows)
    assert not spans.keys() & {(one.call_id, one.choice) for one in excluded}
    numbers = counts(calls, run)
    assert numbers.num_samples == len(made)
    assert numbers.num_raw_tokens == sum(len(row.prompt_ids) + len(row.sampled_ids) for row in rows)
