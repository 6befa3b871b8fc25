"""Which episode a call joins: the one it names, by path, header or session key.

The names are compared in `identity.py`; whether the episode takes calls, and under which settings, is asked of
`admission.py`.
"""

from __future__ import annotations

from gateway.admission import Admission, Admitted
from gateway.auth import Caller
from gateway.dialects.base import Asked
from gateway.identity import Claims, episode_of
from gateway.paths import AgentPath
from gateway.requests import RequestHeaders
from tracker.types import Record


class Arrival(Record, frozen=True):
    """What is known of a call before its episode is."""

    caller: Caller
    path: AgentPath
    asked: Asked
    body_digest: str
    """SHA-256 (hex) of the body as it came."""
    retry: int = 0
    """The SDK's retry count."""


class Joining:
    """Finds the episode of each call."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def join(self, arrival: Arrival, headers: RequestHeaders) -> Admitted:
        """The episode of a call and its run; raises `BadRequest`, `NotFound` or `Gone`."""
        caller = arrival.caller
        claims = Claims(path=arrival.path.episode_id, header=headers.one("x-hone-episode"), key=caller.episode_id)
        return await self._admission.admit(caller.tenant, episode_of(claims))
