from hypothesis import given
from hypothesis import strategies as st

from gateway.demo.intervals import gain_interval, mean_interval, moving_average, pooled_mean

scores = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), min_size=2
)


@given(scores)
def test_an_interval_holds_its_mean_and_stays_between_the_extremes(given_scores: dict[str, list[float]]):
    interval = mean_interval(given_scores)
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1.0


@given(scores)
def test_the_gain_of_a_round_over_itself_is_zero(given_scores: dict[str, list[float]]):
    gain = gain_interval(given_scores, given_scores)
    assert (gain.mean, gain.low, gain.high) == (0.0, 0.0, 0.0)


def test_a_gain_in_every_item_has_a_lower_bound_above_zero():
    before = {item: [0.0, 0.0] for item in "abcdefgh"}
    after = {item: [0.0, 1.0] for item in "abcdefgh"}
    gain = gain_interval(before, after)
    assert gain.low == gain.mean == gain.high == 0.5


def test_one_lucky_item_of_many_gives_no_certain_gain():
    before = {item: [0.0] for item in "abcdefgh"}
    assert gain_interval(before, before | {"a": [1.0]}).low == 0.0


def test_items_that_were_played_once_only_are_left_out_of_the_gain():
    assert gain_interval({"a": [0.0], "b": [1.0]}, {"a": [1.0], "c": [0.0]}).mean == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 5))
def test_a_moving_average_never_looks_ahead(values: list[float], width: int):
    for end in range(1, len(values) + 1):
        assert moving_average(values, width)[:end] == moving_average(values[:end], width)
    assert pooled_mean([values[:1]]) == moving_average(values, width)[0]
