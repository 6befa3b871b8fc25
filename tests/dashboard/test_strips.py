"""Each token of a branch once: whose it is, how likely it was, and where the branch leaves another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.lanes import MAX_LANES, lanes_of, num_lanes
from gateway.dashboard.strips import CONTEXT, SAMPLED, TRAINED, WINDOW, Strip, level_of, pieces_of, strip_of
from tests.tracker.building import RUN, call, chain_of, episodes
from tracker.outline import outline, sketched
from tracker.samples import samples_of
from tracker.types import Call, RunSettings

CONTEXT_RUN = RunSettings(run="r", roles={"judge": "context"})


def tokens_of(strip: Strip) -> list[tuple[int, int, str]]:
    return [(token.offset, token.id, token.kind) for section in strip.sections for token in section.tokens]


@given(episodes(), st.sampled_from([RUN, CONTEXT_RUN]))
def test_a_strip_says_of_each_token_what_the_sample_says(calls: list[Call], run: RunSettings) -> None:
    told = outline(sketched(calls), run)
    samples, _ = samples_of(calls, run, {})
    assert len(samples) == len(told.timeline.branches)
    for branch, sample in enumerate(samples):
        strip = strip_of(told, branch, 0, {})
        seen = tokens_of(strip)
        assert [place for place, _, _ in seen] == list(range(len(sample.input_ids)))
        assert tuple(token for _, token, _ in seen) == sample.input_ids
        assert tuple(int(kind == TRAINED) for _, _, kind in seen) == sample.loss_mask
        assert strip.num_trained == sum(sample.loss_mask)


@given(st.floats(max_value=0, allow_nan=False), st.floats(max_value=0, allow_nan=False))
def test_what_is_less_likely_is_in_no_lower_class(one: float, other: float) -> None:
    assert 0 <= level_of(one) <= 9
    assert (level_of(one) >= level_of(other)) or one > other


def test_a_shared_call_is_trained_in_the_first_branch_and_shown_as_sampled_in_the_next() -> None:
    first = call("a", 0, [1], [2, 3])
    told = outline(sketched([first, call("b", 1, [1, 2, 3, 4], [5]), call("c", 2, [1, 2, 3, 6], [7])]), RUN)
    assert [[piece.kind for piece in pieces_of(told, branch)] for branch in (0, 1)] == [
        [TRAINED, TRAINED],
        [SAMPLED, TRAINED],
    ]
    strip = strip_of(told, 1, 0, {6: " six"})
    assert [kind for _, _, kind in tokens_of(strip)] == [CONTEXT, SAMPLED, SAMPLED, CONTEXT, TRAINED]
    (split,) = [token for section in strip.sections for token in section.tokens if token.is_split]
    assert (split.offset, split.id, split.text) == (3, 6, " six")
    assert "not trained: trained in an earlier branch" in strip.sections[1].tokens[0].title


def test_a_long_branch_is_told_part_by_part() -> None:
    made = call("a", 0, range(WINDOW + 10), range(WINDOW))
    told = outline(sketched([made]), RUN)
    parts = [strip_of(told, 0, start, {}) for start in (0, WINDOW, 2 * WINDOW)]
    assert [(part.start, part.end) for part in parts] == [
        (0, WINDOW),
        (WINDOW, 2 * WINDOW),
        (2 * WINDOW, 2 * WINDOW + 10),
    ]
    whole = [token for part in parts for token in tokens_of(part)]
    assert [place for place, _, _ in whole] == list(range(2 * WINDOW + 10))
    beyond = strip_of(told, 0, 10**9, {})
    assert (beyond.start, beyond.end) == (2 * WINDOW + 9, 2 * WINDOW + 10)


@given(episodes(max_calls=14))
def test_every_call_has_its_lane_and_every_part_is_drawn_alike(calls: list[Call]) -> None:
    told = outline(sketched(calls), RUN)
    whole = lanes_of(told.calls, told.timeline, 0, 100)
    assert len(whole) == len(calls)
    for start in range(0, len(calls), 5):
        assert lanes_of(told.calls, told.timeline, start, start + 5) == whole[start : start + 5]
    assert 1 <= num_lanes(told.timeline) <= MAX_LANES


def test_a_call_that_goes_on_is_joined_to_the_one_before() -> None:
    calls = chain_of(3)
    first, middle, last = lanes_of(calls, outline(sketched(calls), RUN).timeline, 0, 3)
    assert "M7 16V32" in first
    assert "M7 0V16" in middle
    assert "M7 16V32" in middle
    assert "V32" not in last
