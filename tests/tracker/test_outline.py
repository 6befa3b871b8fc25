"""The outline of an episode says what the fold of its calls says, however long they are."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import RUN, call, chain_of, episodes
from tracker.codec import decode_calls, decode_sketches, encode_calls
from tracker.deltas import Copy
from tracker.outline import Outline, outline, sketched
from tracker.records import Sketch
from tracker.timeline import fold
from tracker.types import Call, Reason, RunSettings


def spelled(told: Outline, made: Call, choice: int) -> tuple[int, ...]:
    return told.ids((made.call_id, choice), 0, 10**6)


@given(
    episodes(),
    st.sampled_from([RUN, RunSettings(run="r", roles={"judge": "context"}), RunSettings(run="r", mode="eval")]),
)
def test_it_is_the_fold_of_the_calls(calls: list[Call], run: RunSettings) -> None:
    kept = decode_calls(encode_calls(calls))
    told = outline(decode_sketches(encode_calls(calls)), run)
    assert told.timeline == fold(kept, run)
    assert told == msgspec.structs.replace(outline(sketched(calls), run), trie=told.trie, ends=told.ends)


@given(episodes())
def test_every_sequence_can_be_spelled_out(calls: list[Call]) -> None:
    told = outline(decode_sketches(encode_calls(calls)), RUN)
    for made in calls:
        assert told.num_prompt[made.call_id] == len(made.prompt_ids)
        for one in made.choices:
            whole = made.prompt_ids + one.sampled_ids
            assert spelled(told, made, one.index) == whole
            assert told.ids((made.call_id, one.index), 1, 3) == whole[1:3]


@given(episodes(amiss=False))
def test_a_branch_leaves_the_one_it_shares_the_most_with(calls: list[Call]) -> None:
    told = outline(sketched(calls), RUN)
    leaves = [told.ids(branch[-1], 0, 10**6) for branch in told.timeline.branches]
    for number, split in enumerate(told.splits):
        shared = [num_common(leaves[number], leaf) for leaf in leaves[:number]]
        if not max(shared, default=0):
            assert split is None
            continue
        assert split is not None
        assert (split.depth, split.branch) == (max(shared), shared.index(max(shared)))
        assert split.ours == dict(enumerate(leaves[number])).get(split.depth)
        assert split.theirs == dict(enumerate(leaves[split.branch])).get(split.depth)


def num_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(map(len, (one, other))),
    )


def test_an_answer_that_comes_back_in_other_ids_splits_inside_it() -> None:
    first = call("a", 0, [1, 2], [3, 4, 5])
    again = call("b", 1, [1, 2, 3, 9, 5, 6], [7])
    (_, split) = outline(sketched([first, again]), RUN).splits
    assert split is not None
    assert (split.branch, split.depth, split.theirs, split.ours) == (0, 3, 4, 9)


def test_a_prompt_that_copies_what_is_not_there_is_told_as_unrecorded() -> None:
    lost = Sketch(call=call("b", 1, [], [7]), prompt=(Copy(0, 0, 0, 99),))
    told = outline([*sketched(chain_of(1)), lost], RUN)
    assert told.timeline.excluded["b", 0] is Reason.UNRECORDED
    assert told.num_prompt["b"] == 0
