"""Unknown keys: what is looked up for them is bounded, and nobody with a good key is locked out by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.guesses import (
    MAX_A_SECOND,
    MAX_AT_ONCE,
    MAX_KEPT,
    MAX_OF_ADDRESS,
    UNKNOWN_MS,
    WINDOW_MS,
    Guesses,
    network_of,
)
from tests.gateway.test_auth import HandClock
from tracker.errors import TooManyRequests


def wrong(guesses: Guesses, name: str, address: str | None = "192.0.2.1") -> None:
    with guesses.looking(name, address) as guess:
        guess.is_known = False


def test_an_address_that_tries_many_keys_is_slowed_until_its_minute_is_over() -> None:
    clock = HandClock()
    guesses = Guesses(clock)
    for number in range(MAX_OF_ADDRESS):
        wrong(guesses, f"k{number}")
    clock.ms += 15_500
    with pytest.raises(TooManyRequests, match="from this address: try again in 45 s") as refused:
        wrong(guesses, "one more")
    assert refused.value.retry_after_s == 45
    wrong(guesses, "one more", "192.0.2.2")
    clock.ms += 45_000
    wrong(guesses, "one more still")


def test_addresses_of_one_ipv6_network_are_one() -> None:
    guesses = Guesses(HandClock())
    for number in range(MAX_OF_ADDRESS):
        wrong(guesses, f"k{number}", f"2001:db8::{number:x}")
    with pytest.raises(TooManyRequests):
        wrong(guesses, "one more", "2001:db8::ffff")
    wrong(guesses, "one more", "2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("testclient") == "testclient"


def test_many_addresses_together_are_slowed_by_the_second() -> None:
    clock = HandClock()
    guesses = Guesses(clock)
    for number in range(MAX_A_SECOND):
        wrong(guesses, f"k{number}", f"10.0.{number // 256}.{number % 256}")
    with pytest.raises(TooManyRequests, match="in all: try again in 1 s"):
        wrong(guesses, "one more", "192.0.2.1")
    clock.ms += 1_000
    wrong(guesses, "one more", "192.0.2.1")


def test_no_more_look_ups_run_at_a_time_than_the_bound() -> None:
    guesses = Guesses(HandClock())
    running = [guesses.looking(f"k{number}", None) for number in range(MAX_AT_ONCE)]
    for one in running:
        one.__enter__()
    with pytest.raises(TooManyRequests), guesses.looking("one more", None):
        pass
    for one in running:
        one.__exit__(None, None, None)
    wrong(guesses, "one more")


def test_what_was_not_there_is_believed_for_a_while_and_not_by_a_clock_that_was_set_back() -> None:
    clock = HandClock()
    guesses = Guesses(clock)
    wrong(guesses, "k")
    assert guesses.is_unknown("k")
    clock.ms += UNKNOWN_MS - 1
    assert guesses.is_unknown("k")
    clock.ms += 1
    assert not guesses.is_unknown("k")
    clock.ms -= 3_600_000
    assert not guesses.is_unknown("k")


def test_a_look_up_that_failed_says_nothing_of_the_key_or_the_address() -> None:
    guesses = Guesses(HandClock())
    for number in range(2 * MAX_OF_ADDRESS):
        with pytest.raises(TimeoutError), guesses.looking(f"k{number}", "192.0.2.1"):
            raise TimeoutError
        assert not guesses.is_unknown(f"k{number}")
        assert not guesses.is_known(f"k{number}")
    wrong(guesses, "k")


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, WINDOW_MS)), max_size=120))
def test_no_address_has_more_unknown_keys_looked_up_in_its_window_than_the_bound(
    asked: list[tuple[int, bool, int]],
) -> None:
    clock = HandClock()
    guesses, seen = Guesses(clock), dict[int, list[int]]()
    for number, (address, is_known, wait_ms) in enumerate(asked):
        clock.ms += wait_ms // 80
        try:
            with guesses.looking(f"k{number}", f"10.0.0.{address}") as guess:
                guess.is_known = is_known
        except TooManyRequests:
            assert len(seen[address]) >= MAX_OF_ADDRESS
            continue
        assert guesses.is_known(f"k{number}") is is_known
        if not is_known:
            seen.setdefault(address, []).append(clock.ms)
    for times in seen.values():  # a window may begin anywhere: two of them touch
        assert all(sum(at <= other < at + WINDOW_MS for other in times) <= 2 * MAX_OF_ADDRESS for at in times)


def test_memory_is_bounded_and_a_key_that_was_found_last_is_still_known() -> None:
    clock = HandClock()
    guesses = Guesses(clock)
    for number in range(MAX_KEPT + 100):
        with guesses.looking(f"good{number}", None) as guess:
            guess.is_known = True
        clock.ms += 1_000
        wrong(guesses, f"bad{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert max(len(guesses._known), len(guesses._unknown), len(guesses._of_address)) == MAX_KEPT
    assert guesses.is_known(f"good{MAX_KEPT + 99}")
    assert not guesses.is_known("good0")
