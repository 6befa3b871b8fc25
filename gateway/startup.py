"""From settings to running services: stores, schema, policies, runs, keys, engines and background duties.

Everything that is opened here is closed here, in reverse order, also where the start fails midway. What could not work
is refused now with `SettingsError`; what may come back (an engine that is down) only keeps readiness red.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from gateway.alarming import ALARMS_S, look_for_alarms
from gateway.auth import KeyRing
from gateway.background import duties
from gateway.dependencies import Services
from gateway.engine_api import EngineApi, engine_http
from gateway.engines import EnginePool, Fitness
from gateway.gauges import NOW_S, OVERVIEW_S, show_now, show_overview
from gateway.hotswap import HotSwap
from gateway.logs import name_worker
from gateway.lookups import RunCache, VersionBook
from gateway.meters import FLUSH_S, Meters
from gateway.metrics import Metrics
from gateway.releasing import DECIDE_S, Releasing
from gateway.settings import EXPOSED, GatewaySettings
from gateway.shadows import LOOK_S, Shadows
from gateway.tracing import open_tracing
from tracker.archive import audit, sweep
from tracker.clock import Clock, SystemClock
from tracker.errors import Conflict, SettingsError
from tracker.ledger import SqlLedger
from tracker.redis_server import EmbeddedRedis
from tracker.redis_store import Patience, RedisStore
from tracker.settings import StoreSettings
from tracker.sql import open_engine, upgrade
from tracker.store import EpisodeStore, Ledger
from tracker.types import DEFAULT
from tracker.vault import Vault

LOG: Final = logging.getLogger("hone.startup")
SESSION_SECRET: Final = "session-keys"  # noqa: S105 - a name, no secret
HEARTBEAT_S: Final = 1.0
HEARTBEAT_TTL_MS: Final = 8_000
"""A worker that missed this much of its heartbeats is dead, and its calls are lost."""
SETTLE_S: Final = 3 * HEARTBEAT_S
"""After Redis was away, before workers that it has heard nothing of are taken for dead."""
AUDIT_S: Final = 5.0
"""Between two comparisons of the open episodes in SQL with the episode store."""
RETENTION_S: Final = 10.0
"""Between two looks for what runs do not keep any longer."""
FINDING_S: Final = 5.0
"""Between two looks for what episodes are found by and nobody has noted yet."""
NOTED_AT_ONCE: Final = 50
REDIS_CHECK_S: Final = 0.5
PARENT_CHECK_S: Final = 0.5


@asynccontextmanager
async def open_services(settings: GatewaySettings, clock: Clock | None = None) -> AsyncGenerator[Services]:
    """Everything behind the gateway's doors, for as long as the block lasts."""
    if settings.is_exposed:
        LOG.warning(EXPOSED.format(host=settings.host))
    clock, worker_id = clock or SystemClock(), f"worker-{secrets.token_hex(8)}"
    name_worker(worker_id)
    async with AsyncExitStack() as stack:
        tracing = open_tracing(settings.otlp_endpoint, worker_id)
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        make_folders(settings.stores)
        embedded = await _start_embedded(settings.stores, stack)
        store = await _open_store(settings, stack)
        await upgrade(settings.stores.database_url)
        ledger = SqlLedger(open_engine(settings.stores.database_url), clock, Vault(settings.stores.encryption_key))
        stack.push_async_callback(ledger.close)
        await ledger.check_encryption()
        await _register(settings.stores, ledger)
        http = await stack.enter_async_context(engine_http(settings.engine_timeout_s))
        engines = EnginePool(settings.engines, settings.stores.policies, EngineApi(http, settings.engine_key))
        swap = HotSwap(settings.stores, store, ledger, engines, clock, settings.max_adapter_bytes)
        await swap.keep_up()
        _refuse_unfit(engines)
        lifetime_s = settings.call_timeout_s + settings.record_timeout_s + settings.body_timeout_s
        meters = Meters(store, ledger, clock, worker_id, lifetime_s)
        stack.push_async_callback(meters.close)
        metrics = Metrics(settings.metrics_dir if settings.workers > 1 else None)
        versions = VersionBook(ledger, settings.stores.adapters_dir)
        shadows = Shadows(ledger, engines, versions, metrics)
        stack.push_async_callback(shadows.close)
        services = Services(
            settings=settings,
            store=store,
            ledger=ledger,
            batches=ledger,
            keys=KeyRing(ledger, await ledger.secret(SESSION_SECRET), clock),
            meters=meters,
            engines=engines,
            runs=RunCache(ledger),
            versions=versions,
            swap=swap,
            releasing=Releasing(settings.stores, ledger, swap, clock),
            shadows=shadows,
            duties=await stack.enter_async_context(duties()),
            clock=clock,
            worker_id=worker_id,
            metrics=metrics,
            tracing=tracing,
        )
        await _start_duties(services)
        if embedded is not None:
            services.duties.start("embedded redis", embedded.revive, REDIS_CHECK_S)
        yield services


def make_folders(stores: StoreSettings) -> None:
    """The data folder, for its owner alone, and what lies in it."""
    try:
        stores.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        stores.adapters_dir.mkdir(exist_ok=True)
        stores.checkpoints_dir.mkdir(exist_ok=True)
    except OSError as error:
        told = f"HONE_DATA_DIR: name a folder that can be made; {error.filename}: {error.strerror}."
        raise SettingsError(told) from error


async def _start_embedded(stores: StoreSettings, stack: AsyncExitStack) -> EmbeddedRedis | None:
    """The redis-server in the data folder, where the settings name no other."""
    if stores.redis_url is not None:
        return None
    embedded = EmbeddedRedis(stores.data_dir)
    stack.push_async_callback(embedded.stop)
    await embedded.start()
    return embedded


async def _open_store(settings: GatewaySettings, stack: AsyncExitStack) -> EpisodeStore:
    """A store that was found fit; how fast it answers is told by readiness, and decides no start."""
    url = settings.stores.redis_url or EmbeddedRedis(settings.stores.data_dir).url
    patience = Patience(begin_s=settings.begin_timeout_s, settle_s=SETTLE_S)
    store = await RedisStore.connect(url, patience=patience)
    stack.push_async_callback(store.close)
    return store


async def _register(stores: StoreSettings, ledger: Ledger) -> None:
    """What the settings name exists in SQL."""
    for policy in stores.policies:
        await ledger.ensure_policy(policy.name)
    for run in stores.runs:
        try:
            await ledger.put_run(DEFAULT, run)
        except Conflict as error:
            raise SettingsError(f"runs: {error.message} Give the changed run a new name.") from error


def _refuse_unfit(engines: EnginePool) -> None:
    for state in engines.states():
        if state.fitness is Fitness.REFUSED:
            raise SettingsError(state.detail)


async def _start_duties(services: Services) -> None:
    settings, store = services.settings, services.store
    beat = partial(store.heartbeat, services.worker_id, HEARTBEAT_TTL_MS)
    await beat()
    services.duties.start("heartbeat", beat, HEARTBEAT_S)
    stored = (store, services.ledger, services.clock)
    services.duties.start("sweeper", partial(sweep, *stored, services.metrics.not_trained), settings.sweep_interval_s)
    services.duties.start("audit", partial(audit, *stored), AUDIT_S)
    services.duties.start("usage", services.meters.flush, FLUSH_S)
    services.duties.start("gauges", partial(show_now, services), NOW_S)
    services.duties.start("overview", partial(show_overview, services), OVERVIEW_S)
    services.duties.start("retention", services.ledger.apply_retention, RETENTION_S)
    services.duties.start("scores", services.ledger.score_episodes, FINDING_S)
    services.duties.start("kinds", partial(services.ledger.note_kinds, NOTED_AT_ONCE), FINDING_S)
    services.duties.start("releases", services.releasing.decide, min(DECIDE_S, settings.poll_interval_s))
    services.duties.start("shadows", services.shadows.look, min(LOOK_S, settings.poll_interval_s))
    services.duties.start("alarms", partial(look_for_alarms, services), ALARMS_S)
    services.duties.start("engines", services.swap.keep_up, settings.poll_interval_s)
    if settings.workers > 1:
        services.duties.start("parent", partial(_end_after, os.getppid()), PARENT_CHECK_S)


async def _end_after(parent: int) -> None:
    """Stop this worker once its parent was killed: it would keep the port, and no restart could have it."""
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
