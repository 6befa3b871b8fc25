"""Administrative acts on their way into the audit log: who did what, and how it went.

`audited` goes around an act that one transaction cannot hold, and writes it down right after it, also where it failed.
An act that the ledger does alone is written in the same transaction instead: it is given to the ledger's method, and
`attempted` around it writes only what was refused. A key that may not do such an act at all is refused before it is
known what was wanted: `refused` writes that down. Nothing secret is ever a part of an act.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from gateway.auth import Caller
from gateway.dependencies import Services
from tracker.clock import SystemClock
from tracker.errors import HoneError, Unavailable
from tracker.store import Ledger
from tracker.types import Act

LOG: Final = logging.getLogger("hone.audit")
CLI: Final = "cli"
"""Stands for a key where the command line of a data folder did it: whoever may write there needs none."""
FAILED: Final = "failed"
"""The outcome of what ended neither well nor with an error of the tree."""


def act_of(services: Services, caller: Caller, act: str, target: str, detail: Mapping[str, Any] | None = None) -> Act:
    """What a caller is about to do."""
    return Act(
        at_ms=services.clock.now_ms(),
        tenant=caller.tenant,
        key_id=caller.key_id,
        act=act,
        target=target,
        detail=msgspec.json.encode(detail or {}),
    )


def act_of_desk(tenant: str, act: str, target: str, detail: Mapping[str, Any] | None = None) -> Act:
    """What the command line is about to do, for the operating system's user that it runs as."""
    told = {"uid": os.getuid(), **(detail or {})}
    encoded = msgspec.json.encode(told)
    return Act(at_ms=SystemClock().now_ms(), tenant=tenant, key_id=CLI, act=act, target=target, detail=encoded)


@asynccontextmanager
async def attempted(ledger: Ledger, act: Act) -> AsyncGenerator[None]:
    """Around a method of the ledger that was given the act: write it down where it was refused."""
    try:
        yield
    except HoneError as error:
        await ledger.add_act(msgspec.structs.replace(act, outcome=error.code))
        raise


async def refused(services: Services, caller: Caller, act: str, target: str, error: HoneError) -> None:
    """Write down an act that the caller may not do, if there were not too many of his tenant's already; he is told so
    also where it cannot be written."""
    if not services.refused_acts.is_told(caller.tenant, services.clock.now_ms()):
        return
    tried = msgspec.structs.replace(act_of(services, caller, act, target), outcome=error.code)
    try:
        await services.ledger.add_act(tried)
    except Unavailable as away:
        LOG.warning("%s of %s by %s was refused, and is not in the audit log: %s", act, target, caller.key_id, away)


@asynccontextmanager
async def audited(
    services: Services, caller: Caller, act: str, target: str, detail: Mapping[str, Any] | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """Around an act: write it down after it. The detail may be added to meanwhile."""
    told, outcome = dict(detail or {}), FAILED
    try:
        yield told
        outcome = "ok"
    except HoneError as error:
        outcome = error.code
        raise
    finally:
        done = act_of(services, caller, act, target, told)
        await services.ledger.add_act(msgspec.structs.replace(done, outcome=outcome))
