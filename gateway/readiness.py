"""Whether calls can be served and recorded, part by part: what a load balancer asks and what an operator reads.

A part is ready or not, with words that say why. Both stores answer; the schema is one that this gateway knows; an
engine is fit; the active version of a policy is served; no duty has ended. What would be no better at another gateway,
as one of several policies without an engine, is told and turns nothing red. Everything is asked anew each time. Who may
read the words is left to the route.
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
    """Which version of each policy the next call gets. An engine is fit only while it serves all that are live, so a
    policy is served where one is fit for it; one that is served is enough, as agents of the others are told."""
    try:
        active = {row.policy: row.active for row in await services.ledger.list_policies()}
    except HoneError as error:
        return Part(ready=False, detail=error.message)
    names = [policy.name for policy in services.settings.stores.policies]
    served = {name for state in services.engines.ready() for name in names if name in state.bases}
    told = [f"{name}@{active.get(name, 0)}{'' if name in served else ' is served by no engine'}" for name in names]
    return Part(ready=bool(served), detail="; ".join(told))


def _duties(services: Services) -> Part:
    stopped = services.duties.stopped()
    return Part(ready=False, detail=f"ended by a bug: {', '.join(stopped)}") if stopped else Part(ready=True)


async def _found(ping: Awaitable[None]) -> Part:
    try:
        await ping
    except HoneError as error:
        return Part(ready=False, detail=error.message)
    return Part(ready=True)
