"""Versions in and out of the engines while agents call: publish, roll back, retire, keep engines up to date.

Where a policy's settings say so a new version is put on trial instead of being given to all (`docs/releases.md`); one
that has to wait for its turn is not loaded before.

A version is routed to only after every fit engine lists it under a name never used before and has passed the probe; a
swap that fails anywhere leaves routing as it was. SQL is the truth about the active version; the routing in the episode
store follows it. Which version a call gets is decided by the store when the call begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.adapter_folder import AdapterRules, check_folder, copy_folder, folder_name
from gateway.adapter_weights import trained_size
from gateway.engines import EnginePool, Serving
from gateway.inspection import recognise, refuse_idle
from gateway.lookups import SETTLED, VersionBook
from tracker.adapters import WEIGHTS_FILE
from tracker.clock import Clock
from tracker.errors import Conflict, HoneError, NotFound, Unavailable, UpstreamFailed
from tracker.settings import PolicySettings, StoreSettings
from tracker.store import EpisodeStore, Ledger, Routing
from tracker.trials import ReleaseEvent, Shadow, TrialState
from tracker.types import DEFAULT, Policy, Probe, Record, Version, VersionState

LOG: Final = logging.getLogger("hone.hotswap")
NO_SMALL_CHANGE: Final = 1e-3
"""A weight of a B matrix above which an adapter must be seen in an engine's answers, however they are rounded."""
MAX_ADAPTER_BYTES: Final = 8 * 2**30
DIRECT: Final = "direct"
Arrive = Callable[[str, int, int], Awaitable[None]]
"""Takes policy, version and epoch: from then on agents get the version."""
REPEATABLE: Final = frozenset({VersionState.RESERVED, VersionState.LOADING, VersionState.FAILED})


class Publication(Record, frozen=True):
    """What a trainer registers: a folder under `adapters/`, its digest and how to recognise it."""

    folder: str
    digest: str
    epoch: int | None = None
    metrics: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    probe: Probe | None = None


class HotSwap:
    """Moves policies from version to version. One move at a time in each process."""

    def __init__(
        self,
        stores: StoreSettings,
        store: EpisodeStore,
        ledger: Ledger,
        engines: EnginePool,
        clock: Clock,
        max_adapter_bytes: int = MAX_ADAPTER_BYTES,
    ) -> None:
        self._stores = stores
        self._store = store
        self._ledger = ledger
        self._engines = engines
        self._clock = clock
        self._max_adapter_bytes = max_adapter_bytes
        self._book = VersionBook(ledger, stores.adapters_dir)
        self._lock = asyncio.Lock()

    async def publish(self, policy: str, publication: Publication) -> Version:
        """Serve a new version and route new pins to it; raises `Conflict` with the reason if the swap failed.

        Room is made before; what the new version replaces is unloaded by a later round, when no call can be on its
        way to it any more.
        """
        async with self._lock:
            row = await self._row(policy)
            if publication.epoch is not None and publication.epoch != row.epoch:
                raise Conflict(
                    f"Policy {policy} was rolled back: its epoch is {row.epoch}, not {publication.epoch}.",
                    code="stale_epoch",
                )
            if not self._engines.ready():
                raise Unavailable("No engine is fit to serve a new version now.", retry_after_s=5)
            await self._tidy(policy)
            version = await self._admit(policy, publication, row.epoch)
            if version.state is not VersionState.ACTIVE:
                version = await self._enter(version, publication.probe)
            await self._route(policy)
            return version

    async def rollback(self, policy: str, version: int, event: ReleaseEvent | None = None) -> Policy:
        """Go back to an earlier version: it is served first, then the epoch rises and everything later is withdrawn."""
        async with self._lock:
            active = (await self._row(policy)).active
            if version > active:
                await self._refuse_newer(policy, version, active)
            await self._serve_again(policy, version)
            row = await self._ledger.rollback(policy, version, event)
            await self._follow(policy)
            return row

    async def promote(self, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
        """Give the version on trial to all; `None` if its trial has ended already. Engines serve it as it is."""
        async with self._lock:
            row = await self._ledger.promote(policy, version, event)
            await self._follow(policy)
            return row

    async def withdraw(self, policy: str, version: int, event: ReleaseEvent) -> Policy | None:
        """Take the version on trial from those that have it; `None` if its trial has ended already."""
        async with self._lock:
            row = await self._ledger.withdraw_trial(policy, version, event)
            await self._follow(policy)
            return row

    async def serve_shadow(self, policy: str, shadow: Shadow | None, event: ReleaseEvent) -> None:
        """Have a version that was published before get copies of calls, once every fit engine serves it."""
        async with self._lock:
            await self._row(policy)
            if shadow is not None:
                await self._serve_again(policy, shadow.version)
            await self._ledger.set_shadow(policy, shadow, event)

    async def keep_up(self) -> None:
        """One round: routing as SQL has it, every engine seen to, versions that nobody needs retired."""
        async with self._lock:
            live: list[Serving] = []
            for settings in self._stores.policies:
                await self._next_trial(settings)
                await self._route(settings.name)
                live += await self._live(settings.name)
            await self._engines.look(live)
            for settings in self._stores.policies:
                await self._tidy(settings.name)

    def _settings_of(self, policy: str) -> PolicySettings:
        settings = self._stores.policy(policy)
        if settings is None:
            names = ", ".join(settings.name for settings in self._stores.policies)
            raise NotFound(f"There is no policy {policy!r}; there is {names}.", param="policy")
        return settings

    async def _row(self, policy: str) -> Policy:
        self._settings_of(policy)
        return await self._ledger.ensure_policy(policy)

    async def _admit(self, policy: str, publication: Publication, epoch: int) -> Version:
        """The version a publication is, its folder checked and under its final name."""
        root = self._stores.adapters_dir
        rules = AdapterRules(lora=self._settings_of(policy).lora, max_bytes=self._max_adapter_bytes)
        path = await asyncio.to_thread(check_folder, root, publication.folder, publication.digest, rules)
        version = await self._ledger.find_version(policy, publication.folder)
        if version is None:
            version = await self._ledger.reserve_version(policy, epoch, self._clock.now_ms())
            folder = folder_name(policy, version.version, publication.digest)
            await asyncio.to_thread(copy_folder, path, root / folder, publication.digest)
        else:
            folder = publication.folder
            if version.state is VersionState.ACTIVE and version.digest == publication.digest:
                return version
            if version.state not in REPEATABLE or version.epoch != epoch:
                raise Conflict(f"Version {version.version} of {policy} is {version.state} and is not published again.")
        version = msgspec.structs.replace(
            version,
            state=VersionState.LOADING,
            folder=folder,
            digest=publication.digest,
            metrics=msgspec.json.encode(publication.metrics),
            probe=msgspec.json.encode(publication.probe),
            detail="",
        )
        await self._ledger.put_version(version)
        return version

    async def _enter(self, version: Version, probe: Probe | None) -> Version:
        """Bring a new version to its agents: all of them, or those of its trial."""
        release = self._settings_of(version.policy).release
        if release.mode == DIRECT:
            return await self._swap(version, probe, self._ledger.activate)
        event = self._event(version)
        if await self._on_trial(version.policy):
            await self._ledger.queue_trial(version.policy, version.version, version.epoch, release.share / 100, event)
            return version
        return await self._swap(version, probe, partial(self._try, release.share / 100))

    async def _try(self, share: float, policy: str, version: int, epoch: int) -> None:
        event = ReleaseEvent(policy=policy, version=version, at_ms=self._clock.now_ms(), kind="started")
        await self._ledger.start_trial(policy, version, epoch, share, event)

    def _event(self, version: Version) -> ReleaseEvent:
        now_ms = self._clock.now_ms()
        return ReleaseEvent(policy=version.policy, version=version.version, at_ms=now_ms, kind="waiting")

    async def _on_trial(self, policy: str) -> list[int]:
        return [trial.version for trial in await self._ledger.open_trials() if trial.policy == policy]

    async def _next_trial(self, settings: PolicySettings) -> None:
        """Put the newest version that waits on trial, if it is its turn and an engine is fit."""
        policy, release = settings.name, settings.release
        if release.mode == DIRECT or not self._engines.ready() or await self._on_trial(policy):
            return
        for trial in await self._ledger.list_trials(policy):
            if trial.state is not TrialState.WAITING:
                continue
            version = await self._ledger.get_version(policy, trial.version)
            if version.state is VersionState.LOADING:
                await self._tidy(policy)
                await self._take_turn(version, release.share / 100)
                return

    async def _take_turn(self, version: Version, share: float) -> None:
        probe = msgspec.json.decode(version.probe, type=Probe | None)
        try:
            await self._swap(version, probe, partial(self._try, share))
        except Conflict as error:  # it is marked as failed, and the next one has its turn
            LOG.warning("%s", error.message)

    async def _swap(self, version: Version, probe: Probe | None, arrive: Arrive) -> Version:
        """Load, probe, arrive; undone if any of it fails. What `arrive` writes in SQL is the point of no return."""
        serving = self._book.serving_of(version)
        try:
            urls = await self._load_everywhere(serving)
            details = [await self._recognise(url, serving, probe) for url in urls]
            known = msgspec.structs.replace(version, detail="; ".join(dict.fromkeys(details)))
            await self._ledger.put_version(known)
            await arrive(version.policy, version.version, version.epoch)
        except HoneError as error:
            LOG.warning("version %s was not published: %s", serving.name, error.message)
            await self._unload_everywhere(serving.name)
            failed = msgspec.structs.replace(version, state=VersionState.FAILED, detail=error.message)
            await self._ledger.put_version(failed)
            raise Conflict(
                f"Version {version.version} of {version.policy} was not published: {error.message}", code="swap_failed"
            ) from error
        LOG.info("version %s is served (%s)", serving.name, known.detail)
        return await self._ledger.get_version(version.policy, version.version)

    async def _serve_again(self, policy: str, version: int) -> None:
        """Bring back a version that was published before and not withdrawn since; version 0 is always there."""
        serving = await self._book.serving(policy, version)
        if version:
            stored = await self._ledger.get_version(policy, version)
            if stored.state is VersionState.WITHDRAWN:
                raise Conflict(f"Version {version} of {policy} was withdrawn: publish it anew instead.")
            for url in await self._load_everywhere(serving):
                await recognise(self._engines.api, url, serving.name, serving.probe)
            await self._ledger.put_version(msgspec.structs.replace(stored, state=VersionState.ACTIVE))

    async def _refuse_newer(self, policy: str, version: int, active: int) -> None:
        """Nobody goes back to a version on trial, or to one that waits: a trial ends by promotion or by loss."""
        stored = await self._ledger.get_version(policy, version)
        if stored.state is not VersionState.WITHDRAWN:
            told = f"Version {version} of {policy} is newer than the active one, which is {active}"
            raise Conflict(f"{told}: there is no way back to it.", param="version")

    async def _load_everywhere(self, serving: Serving) -> list[str]:
        """Every engine that is fit now serves the version; one that comes back later is brought up to date then."""
        urls = [state.url for state in self._engines.ready() if serving.policy in state.bases]
        if not urls:
            raise UpstreamFailed("no engine is fit to serve it")
        if serving.version:
            for url in urls:
                await self._engines.load(url, serving)
        return urls

    async def _unload_everywhere(self, name: str) -> None:
        for state in self._engines.ready():
            if name in state.adapters:
                try:
                    await self._engines.unload(state.url, name)
                except UpstreamFailed as error:
                    LOG.warning("%s was not unloaded, and will be tried again: %s", name, error.message)

    async def _recognise(self, url: str, serving: Serving, probe: Probe | None) -> str:
        """How sure it is that an engine serves the version; a publisher's word alone is checked against the base."""
        weights = Path(serving.path) / WEIGHTS_FILE
        if probe is None and await asyncio.to_thread(trained_size, weights) >= NO_SMALL_CHANGE:
            base = self._engines.base_of(url, serving.policy)
            await refuse_idle(self._engines.api, url, serving.name, base)
        return await recognise(self._engines.api, url, serving.name, probe)

    async def _staleness(self) -> int:
        """The largest lag that any run allows."""
        stored = await self._ledger.list_runs(DEFAULT)
        return max(run.staleness for run in (*self._stores.runs, *stored))

    async def _route(self, policy: str) -> None:
        """Make the store's routing what SQL says; read in this order, the answer of SQL is never the older one."""
        before = await self._store.get_routing(policy)
        row = await self._ledger.ensure_policy(policy)
        versions = await self._ledger.list_versions(policy)
        wanted = Routing(
            active=row.active,
            oldest=max(0, row.active - await self._staleness()),
            withdrawn=tuple(v.version for v in versions if v.state is VersionState.WITHDRAWN),
        )
        if before != wanted:
            await self._store.set_routing(policy, wanted)

    async def _follow(self, policy: str) -> None:
        """Route what was decided just now; where the episode store does not answer, the next round of `keep_up` does.

        It stands in SQL by then: whoever asked must not be told that nothing was done.
        """
        try:
            await self._route(policy)
        except Unavailable as error:
            LOG.warning("%s is routed as decided when the episode store answers: %s", policy, error.message)

    async def _live(self, policy: str) -> list[Serving]:
        """What every engine must serve: the active version, one on trial, a shadow, and those that episodes are pinned
        to, newest first. One slot of an engine stays free for the next version."""
        routing = await self._store.get_routing(policy)
        pinned = sorted(await self._store.pins(policy), reverse=True)
        known = {v.version for v in await self._ledger.list_versions(policy) if v.state in SETTLED}
        shadows = [shadow.version for shadow in await self._ledger.list_shadows() if shadow.policy == policy]
        needed = [routing.active, *await self._on_trial(policy), *shadows]
        wanted = [version for version in dict.fromkeys([*needed, *pinned]) if version in known]
        slots = max(await self._staleness() + 1, len(set(needed) & known))
        return [await self._book.serving(policy, version) for version in wanted][:slots]

    async def _tidy(self, policy: str) -> None:
        """Unload and retire published versions that are not live and that no call is using."""
        live = {serving.name for serving in await self._live(policy)}
        for version in await self._ledger.list_versions(policy):
            name = version.folder
            if not name or version.state not in SETTLED | {VersionState.FAILED} or name in live:
                continue
            if self._engines.num_in_flight(name):
                continue
            await self._unload_everywhere(name)
            if version.state is VersionState.ACTIVE:
                await self._ledger.put_version(msgspec.structs.replace(version, state=VersionState.RETIRED))
                LOG.info("version %s is retired", name)
