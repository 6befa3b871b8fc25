"""Which episode a call joins: the one it names, by path, header or session key; else an implicit one.

The names are compared in `identity.py`; whether the episode takes calls, and under which settings, is asked of
`admission.py`; what becomes of a call that names none is in `implicit.py`.
"""

from __future__ import annotations

from gateway.admission import Admission
from gateway.arrivals import Arrival, Joined
from gateway.dependencies import Services
from gateway.identity import Claims, episode_of
from gateway.implicit import ImplicitEpisodes
from gateway.requests import RequestHeaders


class Joining:
    """Finds the episode of each call."""

    def __init__(self, services: Services, admission: Admission) -> None:
        self._admission = admission
        self._implicit = ImplicitEpisodes(services, admission)

    async def join(self, arrival: Arrival, headers: RequestHeaders, avoided: str = "") -> Joined:
        """The episode of a call and its run; raises `BadRequest`, `NotFound`, `Gone`, or
        `TooManyRequests` where it would open one that is too stale by the time it is trained.

        `avoided` is the implicit episode that it was given before, and that has ended.
        """
        caller = arrival.caller
        claims = Claims(path=arrival.path.episode_id, header=headers.one("x-hone-episode"), key=caller.episode_id)
        named = episode_of(claims)
        if named is None:
            return await self._implicit.join(arrival, headers, avoided)
        return Joined(admitted=await self._admission.admit(caller.tenant, named))
