"""What one process knows of episodes without asking Redis: all of it, or nothing."""

from tracker.deltas import PLACE, SPAN
from tracker.local_index import LocalIndex

DIGEST = b"d" * 16
ENTRY = DIGEST + SPAN.pack(0, 64, 64)


def test_a_first_call_finds_an_episode_that_holds_nothing() -> None:
    known = LocalIndex().known("e", 0)
    assert known is not None
    assert not known.places


def test_a_call_that_was_stored_here_is_found_where_it_lies() -> None:
    index = LocalIndex()
    index.note("e", 0, [], [b"body"])
    index.note("e", 1, [ENTRY], [])
    known = index.known("e", 2)
    assert known is not None
    assert known.places == {DIGEST: PLACE.pack(1, 0, 64, 64)}
    assert known.bodies == {b"body"}


def test_an_episode_that_others_store_too_has_to_be_asked_for() -> None:
    index = LocalIndex()
    index.note("e", 0, [ENTRY], [])
    assert index.known("e", 2) is None, "a call that began before is not stored yet, or elsewhere"
    index.note("e", 2, [ENTRY], [])
    assert index.known("e", 3) is None, "the record before was stored by somebody else"
    assert index.known("other", 1) is None


def test_the_oldest_episodes_are_forgotten_first() -> None:
    index = LocalIndex(max_entries=3)
    for number in range(4):
        index.note(f"e{number}", 0, [ENTRY], [])
    assert [index.known(f"e{number}", 1) is not None for number in range(4)] == [False, True, True, True]
