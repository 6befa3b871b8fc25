"""A call before and after its episode is known, and what it leaves behind for the calls that come after it.

Calls of implicit episodes leave a trail: the answers they were given, and how this attempt ended. It is written with
the record of the call, before the answer is released, so that an agent's next call always finds it.
"""

from __future__ import annotations

from gateway.admission import Admitted
from gateway.auth import Caller
from gateway.conversation import Conversation, answer_of, traces_of
from gateway.dialects.base import Asked
from gateway.meters import Meter
from gateway.paths import AgentPath
from tracker.claims import Note
from tracker.types import Call, CallState, Record


class Arrival(Record, frozen=True):
    """What is known of a call before its episode is."""

    caller: Caller
    path: AgentPath
    asked: Asked
    conversation: Conversation
    body_digest: str
    """SHA-256 (hex) of the body as it came."""
    meter: Meter
    """What it takes of its key."""
    retry: int = 0
    """The SDK's retry count."""


class Trail(Record, frozen=True):
    """Where a call of an implicit episode leaves what later ones look for."""

    scope: bytes
    attempt: str
    end: bytes
    """Digest of the conversation that it answers."""


class Joined(Record, frozen=True):
    """A call's episode."""

    admitted: Admitted
    lineage: str | None = None
    """The role of the call whose answer it goes on from, where that is known."""
    trail: Trail | None = None
    """`None` where the call named its episode."""


def note_of(trail: Trail | None, call: Call) -> Note | None:
    """What the call leaves: only answers that were completed are ever seen by the agent."""
    if trail is None:
        return None
    messages = [answer_of(choice.message) for choice in call.choices] if call.state is CallState.COMPLETED else []
    answers = [trace for message in messages if message is not None for trace in traces_of(trail.end, message)]
    return Note(scope=trail.scope, attempt=trail.attempt, answers=tuple(answers), role=call.role)
