"""Each distinct prefix is packed once, and every token sees its own path and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.models import row
from tracker.errors import CorruptRecord
from tracker.samples import Row
from trainer.trie import (
    SHARINGS,
    Pack,
    Sharing,
    check_paths,
    cut,
    input_ids,
    pack,
    plan_packs,
    shared_prefixes,
    sorted_numbers,
    trained_places,
)

ids = st.lists(st.integers(0, 2), min_size=1, max_size=6)
some_rows = st.lists(st.tuples(ids, ids), min_size=1, max_size=10).map(lambda pairs: [row(*pair) for pair in pairs])
budgets = st.integers(1, 60)
sharings = st.sampled_from(SHARINGS)


def seen_by_segments(one: Pack) -> list[set[int]]:
    """Of each packed token, which ones it sees by the rule of the segments."""
    seen: list[set[int]] = [set() for _ in one.ids]
    for segment in one.segments:
        for place in range(segment.start, segment.end):
            seen[place] |= set(range(segment.start, place + 1))
        for place in range(segment.end, segment.stop):
            seen[place] |= set(range(segment.start, segment.end))
    return seen


def flat(path: Sequence[range]) -> list[int]:
    return [place for stretch in path for place in stretch]


@given(some_rows, budgets, sharings)
def test_a_token_sees_exactly_the_tokens_above_it_in_its_row(rows: list[Row], budget: int, sharing: Sharing) -> None:
    for one in plan_packs(rows, budget, sharing):
        expected: list[set[int]] = [set() for _ in one.ids]
        for path in one.paths:
            places = flat(path)
            for number, place in enumerate(places):
                assert not expected[place] or expected[place] == set(places[: number + 1])
                expected[place] = set(places[: number + 1])
        assert seen_by_segments(one) == expected


@given(some_rows, budgets, sharings)
def test_every_row_is_packed_once_with_its_own_ids_at_their_own_depths(
    rows: list[Row], budget: int, sharing: Sharing
) -> None:
    packs = plan_packs(rows, budget, sharing)
    assert sorted(number for one in packs for number in one.rows) == list(range(len(rows)))
    for one in packs:
        for number, path in zip(one.rows, one.paths, strict=True):
            places = flat(path)
            assert tuple(one.ids[place] for place in places) == input_ids(rows[number])
            assert [one.depths[place] for place in places] == list(range(len(places)))


@given(some_rows)
def test_the_trie_holds_each_distinct_prefix_once(rows: list[Row]) -> None:
    (one,) = plan_packs(rows, 10_000, "trie")
    prefixes = {input_ids(item)[:end] for item in rows for end in range(1, len(input_ids(item)) + 1)}
    assert one.num_tokens == len(prefixes)


@given(some_rows)
def test_one_row_a_call_shares_nothing_and_merged_rows_share_whole_prefixes_only(rows: list[Row]) -> None:
    (calls,) = plan_packs(rows, 10_000, "calls")
    assert calls.num_tokens == sum(len(input_ids(item)) for item in rows)
    (merged,) = plan_packs(rows, 10_000, "merged")
    leaves = {
        input_ids(item)
        for item in rows
        if not any(
            other != input_ids(item) and other[: len(input_ids(item))] == input_ids(item)
            for other in map(input_ids, rows)
        )
    }
    assert merged.num_tokens == sum(map(len, leaves))


@given(some_rows)
def test_segments_end_only_where_tokens_fork(rows: list[Row]) -> None:
    (one,) = plan_packs(rows, 10_000, "trie")
    sequences = {input_ids(item) for item in rows}
    prefixes = {sequence[:end] for sequence in sequences for end in range(len(sequence) + 1)}
    children = {prefix: {longer[-1] for longer in prefixes if longer and longer[:-1] == prefix} for prefix in prefixes}
    forks = sum(len(after) for prefix, after in children.items() if len(after) > 1 or not prefix)
    assert len(one.segments) == forks


@given(some_rows, budgets)
def test_micro_batches_keep_to_the_budget_and_run_as_few_tokens_as_any_cutting_can(
    rows: list[Row], budget: int
) -> None:
    sequences = [input_ids(item) for item in rows[:7]]
    ordered = [sequences[number] for number in sorted_numbers(sequences)]
    shared = shared_prefixes(ordered, "trie")

    def cost(start: int, end: int) -> int:
        return len(ordered[start]) + sum(len(ordered[at]) - shared[at] for at in range(start + 1, end))

    def least(start: int) -> int:
        if start == len(ordered):
            return 0
        fitting = [end for end in range(start + 1, len(ordered) + 1) if end == start + 1 or cost(start, end) <= budget]
        return min(cost(start, end) + least(end) for end in fitting)

    pieces = cut(ordered, shared, budget)
    assert [number for piece in pieces for number in piece] == list(range(len(ordered)))
    for piece in pieces:
        assert cost(piece.start, piece.stop) <= budget or len(piece) == 1
    assert sum(cost(piece.start, piece.stop) for piece in pieces) == least(0)


@given(some_rows, budgets, sharings)
def test_trained_tokens_are_predicted_from_the_token_before_each(
    rows: list[Row], budget: int, sharing: Sharing
) -> None:
    for one in plan_packs(rows, budget, sharing):
        for number, path in zip(one.rows, one.paths, strict=True):
            places = trained_places(path, rows[number])
            first = len(rows[number].prompt_ids) - 1
            assert places == flat(path)[first:]
            assert len(places) == len(rows[number].sampled_ids)


def test_equal_answers_stay_two_rows_on_one_path() -> None:
    (one,) = plan_packs([row([1, 2], [3, 4]), row([1, 2], [3, 4])], 100, "trie")
    assert (one.ids, one.rows) == ((1, 2, 3), (0, 1))
    assert one.paths[0] == one.paths[1]


def test_a_row_under_another_context_or_at_another_depth_is_refused() -> None:
    rows = [row([1, 2], [3, 4]), row([1, 5], [6])]
    (one,) = plan_packs(rows, 100, "trie")
    check_paths(rows, [one])
    flipped = pack([[1, 2, 3], [1, 9]], [0, 1], [0, 1])
    moved = Pack(one.ids, tuple(depth + 1 for depth in one.depths), one.segments, one.rows, one.paths)
    for wrong, line in ((flipped, "choice 0, offset 1: .* another context"), (moved, "at other positions")):
        with pytest.raises(CorruptRecord, match=line):
            check_paths(rows, [wrong])
    for packs in ([], [one, one]):
        with pytest.raises(CorruptRecord, match="lost or doubled"):
            check_paths(rows, packs)
    with pytest.raises(CorruptRecord, match="another context"):
        check_paths([msgspec.structs.replace(rows[0], prompt_ids=(2, 1)), rows[1]], [one])
