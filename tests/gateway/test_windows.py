"""Counting by name within windows of time: what is allowed, for how long it is not, and what is remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.windows import Windows

MOST, WINDOW_MS = 3, 100
moments = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-150, 60)), max_size=80)


@given(moments)
def test_one_more_is_within_the_bound_just_where_nobody_has_to_wait(steps: list[tuple[str, int]]) -> None:
    windows, now_ms = Windows(MOST, WINDOW_MS, max_names=10), 1_000
    for name, later_ms in steps:  # also by a clock that is set back
        now_ms += later_ms
        wait_ms = windows.wait_ms(name, now_ms)
        assert 0 <= wait_ms <= WINDOW_MS
        assert windows.wait_ms(name, now_ms + wait_ms) == 0
        assert windows.add(name, now_ms) is (wait_ms == 0)


@given(moments)
def test_no_stretch_as_long_as_a_window_has_more_than_two_of_them(steps: list[tuple[str, int]]) -> None:
    windows, now_ms = Windows(MOST, WINDOW_MS, max_names=10), 0
    allowed: dict[str, list[int]] = {}
    for name, later_ms in steps:
        now_ms += abs(later_ms)
        if windows.add(name, now_ms):
            allowed.setdefault(name, []).append(now_ms)
    for times in allowed.values():
        assert all(sum(at <= other < at + WINDOW_MS for other in times) <= 2 * MOST for at in times)


def test_the_name_that_was_counted_longest_ago_is_forgotten() -> None:
    windows = Windows(most=1, window_ms=WINDOW_MS, max_names=2)
    for name in "abac":
        windows.add(name, 0)
    assert len(windows) == 2
    assert [windows.wait_ms(name, 0) for name in "abc"] == [WINDOW_MS, 0, WINDOW_MS]
