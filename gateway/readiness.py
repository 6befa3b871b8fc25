"""Whether calls can be served and recorded, part by part: what a load balancer asks and what an operator reads.

A part is ready or not, with words that say why. Both stores answer; the schema is one that this gateway knows; an
engine is fit; every policy's active version is served by one that is; no duty has ended. Everything is asked anew each
time. Who may read the words is left to the route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from gateway.dependencies import Services
from gateway.engines import Fitness
from tracker.errors import HoneError
from tracker.overview import SchemaState
from tracker.types import Record

OK: Final = "ok"
UNKNOWN: Final = "not known while the database is away"


class Part(Record, frozen=True, omit_defaults=False):
    """One thing that calls need."""

    ready: bool
    detail: str = OK


async def parts_of(services: Services) -> dict[str, Part]:
    """Every part by its name."""
    redis, sql = await asyncio.gather(_found(services.store.ping()), _found(services.ledger.ping()))
    return {
        "redis": redis,
        "sql": sql,
        "schema": await _schema(services) if sql.ready else Part(ready=False, detail=UNKNOWN),
        "engines": _engines(services),
        "versions": await _versions(services) if sql.ready else Part(ready=False, detail=UNKNOWN),
        "duties": _duties(services),
    }


async def _schema(services: Services) -> Part:
    try:
        state, detail = await services.ledger.schema_state()
    except HoneError as error:
        return Part(ready=False, detail=error.message)
    return Part(ready=state is not SchemaState.BEHIND, detail=detail)


def _engines(services: Services) -> Part:
    """One that is fit is enough; the others are told of."""
    states = services.engines.states()
    told = [f"{state.url} is {state.fitness}{f': {state.detail}' if state.detail else ''}" for state in states]
    return Part(ready=any(state.fitness is Fitness.READY for state in states), detail="; ".join(told))


async def _versions(services: Services) -> Part:
    """Whether each policy's active version is there for the next call."""
    missing: list[str] = []
    try:
        for policy in services.settings.stores.policies:
            if not await _is_served(services, policy.name):
                missing.append(policy.name)
    except HoneError as error:
        return Part(ready=False, detail=error.message)
    told = f"no fit engine serves the active version of {', '.join(missing)}"
    return Part(ready=False, detail=told) if missing else Part(ready=True)


async def _is_served(services: Services, policy: str) -> bool:
    active = (await services.ledger.ensure_policy(policy)).active
    fit = [state for state in services.engines.ready() if policy in state.bases]
    if not active:
        return bool(fit)
    serving = await services.versions.serving(policy, active)
    return any(state.adapters.get(serving.name) == serving.path for state in fit)


def _duties(services: Services) -> Part:
    stopped = services.duties.stopped()
    return Part(ready=False, detail=f"ended by a bug: {', '.join(stopped)}") if stopped else Part(ready=True)


async def _found(ping: Awaitable[None]) -> Part:
    try:
        await ping
    except HoneError as error:
        return Part(ready=False, detail=error.message)
    return Part(ready=True)
