"""What SQL says once and never changes: settings of runs that have begun, and published versions.

The agent's door asks these on every call; they are read from SQL the first time only. A thing that is not settled yet
is never kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from gateway.engines import Serving
from tracker.errors import NotFound
from tracker.store import Ledger
from tracker.types import Probe, RunSettings, Version, VersionState

MAX_KEPT: Final = 4_096
SETTLED: Final = frozenset({VersionState.ACTIVE, VersionState.RETIRED, VersionState.WITHDRAWN})


class RunCache:
    """Settings of runs, which froze when their first episode was created: ask only for the run of an episode."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[tuple[str, str], RunSettings] = {}

    async def get(self, tenant: str, run: str) -> RunSettings:
        """The settings of an episode's run; raises `NotFound`."""
        kept = self._kept.get((tenant, run))
        if kept is not None:
            return kept
        settings = await self._ledger.get_run(tenant, run)
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[tenant, run] = settings
        return settings


class VersionBook:
    """Which adapter a version is."""

    def __init__(self, ledger: Ledger, adapters_dir: Path) -> None:
        self._ledger = ledger
        self._adapters_dir = adapters_dir
        self._kept: dict[tuple[str, int], Serving] = {}

    async def serving(self, policy: str, version: int) -> Serving:
        """A published version as engines know it; raises `NotFound`."""
        if version == 0:
            return Serving(policy=policy, version=0)
        kept = self._kept.get((policy, version))
        if kept is not None:
            return kept
        stored = await self._ledger.get_version(policy, version)
        if stored.state not in SETTLED:
            raise NotFound(f"Version {version} of policy {policy} is {stored.state}, not published.")
        serving = self.serving_of(stored)
        self._kept[policy, version] = serving
        return serving

    def serving_of(self, version: Version) -> Serving:
        """A version's adapter: named by its folder, which lies under `adapters/`."""
        return Serving(
            policy=version.policy,
            version=version.version,
            name=version.folder,
            path=str(self._adapters_dir / version.folder),
            digest=version.digest,
            probe=msgspec.json.decode(version.probe, type=Probe | None),
        )
