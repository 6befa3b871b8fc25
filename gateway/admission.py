"""Whether a call may join the episode it names, and under which settings.

Heads and runs never change, so SQL is asked for them once; whether the episode still takes calls is decided by
`begin_call`, which no cache stands before. So a call waits for the episode store only there, and a store that hangs is
noticed once. A foreign episode reads like an unknown one; one that has ended is told apart from one that never was,
also long after its keys have left the episode store.
"""

from __future__ import annotations

from typing import Final

from gateway.dependencies import Services
from tracker.errors import Gone, HoneError, NotFound, Unavailable
from tracker.types import EpisodeHead, EpisodeRow, EpisodeState, Record, RunSettings

MAX_KEPT: Final = 10_000
BEST_EFFORT: Final = "best_effort"


class Admitted(Record, frozen=True):
    """An episode, and the run it belongs to."""

    head: EpisodeHead
    run: RunSettings


class Admission:
    """Finds the episode of a call."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: dict[str, Admitted] = {}

    async def admit(self, tenant: str, episode_id: str) -> Admitted:
        """The episode of this tenant; raises `NotFound` or `Gone`."""
        admitted = self._kept.get(episode_id)
        if admitted is None:
            admitted = await self._find(tenant, episode_id)
            self.keep(admitted)
        if admitted.head.tenant != tenant:
            raise unknown(episode_id)
        return admitted

    def keep(self, admitted: Admitted) -> None:
        """Remember an episode, so that SQL is not asked for it again."""
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[admitted.head.episode_id] = admitted

    async def check_open(self, tenant: str, episode_id: str) -> None:
        """Raise `Gone` for an episode that has ended, for requests that no `begin_call` stands before."""
        if _has_ended(await self._services.ledger.get_episode(tenant, episode_id)):
            raise ended(episode_id)

    async def why_not(self, tenant: str, episode_id: str) -> HoneError:
        """What to say of an episode that the episode store does not hold; raises `NotFound` if SQL does not either."""
        self._kept.pop(episode_id, None)
        row = await self._services.ledger.get_episode(tenant, episode_id)
        return (
            ended(episode_id) if _has_ended(row) else Unavailable(f"The episode {episode_id} is not ready for calls.")
        )

    async def _find(self, tenant: str, episode_id: str) -> Admitted:
        row = await self._services.ledger.get_episode(tenant, episode_id)
        if _has_ended(row):
            raise ended(episode_id)
        return Admitted(head=row.head, run=await self._services.runs.get(tenant, row.head.run))


def _has_ended(row: EpisodeRow) -> bool:
    return row.status is not None or row.state is not EpisodeState.OPEN


def ended(episode_id: str) -> Gone:
    """The refusal of a call that comes too late."""
    return Gone(f"The episode {episode_id} has ended: POST /v1/episodes opens another.")


def unknown(episode_id: str) -> NotFound:
    return NotFound(f"There is no episode {episode_id}: POST /v1/episodes opens one.", param="episode_id")
