"""What a ledger promises of releases; implemented by `releases.py` and `alarm_rows.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tracker.drift import Alarm, History
from tracker.trials import ReleaseEvent, Seen, Shadow, Tally, Trial
from tracker.types import Policy


class ReleaseLedger(Protocol):
    """The part of the ledger that says which version gets what, and why."""

    async def open_trials(self) -> list[Trial]:
        """Those that run or are paused, of all policies."""
        ...

    async def list_trials(self, policy: str) -> list[Trial]:
        """Newest version first."""
        ...

    async def find_trial(self, policy: str, version: int) -> Trial | None: ...

    async def queue_trial(self, policy: str, version: int, epoch: int, share: float, event: ReleaseEvent) -> Trial:
        """Have a version wait for its turn; one that has a trial keeps it."""
        ...

    async def start_trial(self, policy: str, version: int, epoch: int, share: float, event: ReleaseEvent) -> Trial:
        """The version, which engines serve, is on trial. It waits if another is; older ones that wait are done with.

        `Conflict` unless `epoch` is the policy's and the version is newer than the active one.
        """
        ...

    async def change_trial(self, policy: str, event: ReleaseEvent, **values: Any) -> Trial:
        """Set the state (running, paused) or the share of the trial that goes on; `Conflict` if there is none."""
        ...

    async def promote(self, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
        """The version gets all traffic; `None` if its trial has ended already."""
        ...

    async def withdraw_trial(self, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
        """Roll back to the stable version; `None` if the trial has ended already."""
        ...

    async def trial_episodes(self, trial: Trial) -> list[Seen]:
        """What is known of the archived episodes of a trial that got what their arm says, in the order in which they
        were archived."""
        ...

    async def trial_counts(self, policy: str, version: int) -> dict[str, int]:
        """How many episodes were begun: `stable`, `canary`."""
        ...

    async def list_releases(self, policy: str, limit: int, cursor: str | None) -> tuple[list[ReleaseEvent], str | None]:
        """What became of the versions of a policy, newest first."""
        ...

    async def set_shadow(self, policy: str, shadow: Shadow | None, event: ReleaseEvent) -> None:
        """Have a version get copies of calls, in place of any other; `None`: nobody does."""
        ...

    async def list_shadows(self) -> list[Shadow]: ...

    async def add_tally(self, policy: str, version: int, against: int, numbers: Mapping[str, float]) -> None:
        """Add to the sums of a comparison. Not safe to repeat."""
        ...

    async def list_tallies(self, policy: str) -> list[Tally]:
        """Newest version first."""
        ...

    # alarms
    async def histories(self, limit: int) -> list[History]:
        """By tenant, run and policy: the newest archived episodes that trained runs have, oldest first."""
        ...

    async def put_alarms(self, alarms: Sequence[Alarm], at_ms: int) -> None:
        """These are raised, all others are over. One that was raised before keeps the time at which it was."""
        ...

    async def list_alarms(self, tenant: str | None = None) -> list[Alarm]:
        """Those of a tenant, or of all, the newest first."""
        ...
