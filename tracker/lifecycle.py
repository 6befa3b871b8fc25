"""The life of an episode as one table: states, events, and what follows from what.

`open -> finishing -> sealed -> archived`, never backwards, and nothing leaves `archived`. An event that was already
applied changes nothing, so every write that drives this table is safe to repeat. Whether a repeated `finish` carries
the same status is for the stores to check: the table knows states only.
"""

from __future__ import annotations

import enum
from typing import Final

from tracker.errors import Conflict, Gone
from tracker.types import EpisodeState


class EpisodeEvent(enum.StrEnum):
    """What can happen to an episode."""

    BEGIN_CALL = "begin_call"
    """An intent is written, before the request leaves for the engine."""
    END_CALL = "end_call"
    """A call in flight is recorded, or given up as lost."""
    FINISH = "finish"
    """A final reward, `finish`, or the idle time: no new call may join."""
    SEAL = "seal"
    """No call is in flight any more, so the calls will not change."""
    ARCHIVE = "archive"
    """The timeline is committed to SQL."""


_OPEN, _FINISHING, _SEALED, _ARCHIVED = EpisodeState

TRANSITIONS: Final[dict[tuple[EpisodeState, EpisodeEvent], EpisodeState]] = {
    (_OPEN, EpisodeEvent.BEGIN_CALL): _OPEN,
    (_OPEN, EpisodeEvent.END_CALL): _OPEN,
    (_OPEN, EpisodeEvent.FINISH): _FINISHING,
    (_FINISHING, EpisodeEvent.END_CALL): _FINISHING,
    (_FINISHING, EpisodeEvent.FINISH): _FINISHING,
    (_FINISHING, EpisodeEvent.SEAL): _SEALED,
    (_SEALED, EpisodeEvent.FINISH): _SEALED,
    (_SEALED, EpisodeEvent.SEAL): _SEALED,
    (_SEALED, EpisodeEvent.ARCHIVE): _ARCHIVED,
    (_ARCHIVED, EpisodeEvent.FINISH): _ARCHIVED,
    (_ARCHIVED, EpisodeEvent.SEAL): _ARCHIVED,
    (_ARCHIVED, EpisodeEvent.ARCHIVE): _ARCHIVED,
}
"""A pair that is not here is refused."""


def advance(state: EpisodeState, event: EpisodeEvent) -> EpisodeState:
    """The state after the event.

    Raises `Gone` for a call that comes after the end, `Conflict` for an event that comes too early.

    >>> advance(EpisodeState.OPEN, EpisodeEvent.FINISH)
    <EpisodeState.FINISHING: 'finishing'>
    """
    after = TRANSITIONS.get((state, event))
    if after is not None:
        return after
    if event in (EpisodeEvent.BEGIN_CALL, EpisodeEvent.END_CALL):
        raise Gone(f"the episode is {state}: it takes no further calls; create a new episode")
    raise Conflict(f"an episode that is {state} cannot {event} yet")
