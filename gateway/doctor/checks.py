"""`hone doctor`: everything the gateway leans on, asked once, with what to do about what does not work."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.engine_api import EngineApi, engine_http
from gateway.engines import EnginePool
from gateway.settings import EXPOSED, GatewaySettings
from tracker.errors import HoneError
from tracker.redis_server import EmbeddedRedis
from tracker.redis_store import Patience, RedisStore
from tracker.sql import Database, open_engine, upgrade
from tracker.types import Record


class Finding(Record, frozen=True):
    """What became of one check."""

    what: str
    is_ok: bool
    detail: str


async def examine(settings: GatewaySettings) -> list[Finding]:
    """Check both stores and every engine."""
    settings.stores.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    findings = [
        _network(settings),
        await _found("redis", _check_redis(settings)),
        await _found("sql", _check_sql(settings)),
    ]
    async with engine_http(settings.engine_timeout_s) as http:
        engines = EnginePool(settings.engines, settings.stores.policies, EngineApi(http, settings.engine_key))
        findings += [await _found(f"engine {url}", _check_engine(engines, url)) for url in settings.engines]
    return findings


def _network(settings: GatewaySettings) -> Finding:
    """Whether what agents send can be read by others on its way here."""
    if settings.is_exposed:
        return Finding(what="network", is_ok=False, detail=EXPOSED.format(host=settings.host))
    told = "TLS" if settings.tls_cert else "this machine alone" if settings.is_loopback else "behind a proxy"
    return Finding(what="network", is_ok=True, detail=told)


async def _found(what: str, check: Awaitable[str]) -> Finding:
    try:
        return Finding(what=what, is_ok=True, detail=await check)
    except HoneError as error:
        return Finding(what=what, is_ok=False, detail=error.message)


async def _check_redis(settings: GatewaySettings) -> str:
    url = settings.stores.redis_url
    if url is not None:
        return await _ping_redis(url, settings.begin_timeout_s)
    embedded = EmbeddedRedis(settings.stores.data_dir)
    await embedded.start()
    try:
        return await _ping_redis(embedded.url, settings.begin_timeout_s)
    finally:
        await embedded.stop()


async def _ping_redis(url: str, begin_s: float) -> str:
    store = await RedisStore.connect(url, patience=Patience(begin_s=begin_s))
    try:
        await store.ping()
    finally:
        await store.close()
    return "it answers, and keeps what it acknowledges"


async def _check_sql(settings: GatewaySettings) -> str:
    await upgrade(settings.stores.database_url)
    database = Database(open_engine(settings.stores.database_url))
    try:
        await database.ping()
    finally:
        await database.close()
    return "it answers, and its schema is up to date"


async def _check_engine(engines: EnginePool, url: str) -> str:
    state = await engines.look_at(url)
    served = ", ".join(f"{policy} as {name}" for policy, name in state.bases.items())
    return f"it serves {served}; its log-probabilities are {state.scoring}"
