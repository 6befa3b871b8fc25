"""The table of states: what it allows, what it refuses, and that it only goes forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.errors import Conflict, Gone, HoneError
from tracker.lifecycle import TRANSITIONS, EpisodeEvent, advance
from tracker.types import EpisodeState

STATES = list(EpisodeState)


def test_an_episode_goes_from_open_to_archived():
    state = EpisodeState.OPEN
    for event in (EpisodeEvent.BEGIN_CALL, EpisodeEvent.FINISH, EpisodeEvent.END_CALL, EpisodeEvent.SEAL):
        state = advance(state, event)
    assert advance(state, EpisodeEvent.ARCHIVE) is EpisodeState.ARCHIVED


@pytest.mark.parametrize("state", [EpisodeState.FINISHING, EpisodeState.SEALED, EpisodeState.ARCHIVED])
def test_no_call_begins_once_an_episode_is_finishing(state: EpisodeState):
    with pytest.raises(Gone):
        advance(state, EpisodeEvent.BEGIN_CALL)


def test_an_open_episode_is_neither_sealed_nor_archived():
    for event in (EpisodeEvent.SEAL, EpisodeEvent.ARCHIVE):
        with pytest.raises(Conflict):
            advance(EpisodeState.OPEN, event)


def test_an_episode_with_calls_in_flight_is_not_archived():
    with pytest.raises(Conflict):
        advance(EpisodeState.FINISHING, EpisodeEvent.ARCHIVE)


@given(st.lists(st.sampled_from(EpisodeEvent), max_size=20))
def test_no_order_of_events_leads_backwards_or_out_of_archived(events: list[EpisodeEvent]):
    state = EpisodeState.OPEN
    for event in events:
        try:
            after = advance(state, event)
        except HoneError:
            continue
        assert STATES.index(after) - STATES.index(state) in (0, 1)
        assert state is not EpisodeState.ARCHIVED or after is EpisodeState.ARCHIVED
        state = after


@pytest.mark.parametrize("event", [EpisodeEvent.FINISH, EpisodeEvent.SEAL, EpisodeEvent.ARCHIVE])
def test_an_event_that_was_applied_changes_nothing_when_it_is_repeated(event: EpisodeEvent):
    for (state, known), after in TRANSITIONS.items():
        if known is event and after is not state:
            assert advance(after, event) is after
