"""Making, rotating, limiting and revoking keys, each with its place in the audit log: for REST and for the dashboard.

Nobody gives what he does not hold, and nothing changes the scopes or the tenant of a key that is there. This process
believes nothing of before after a change; others within `CACHE_MS`. A refusal is in the audit log too.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.auditing import act_of, attempted
from gateway.auth import Caller, mint
from gateway.dependencies import Services
from gateway.key_making import Wanted, made, told_of
from tracker.types import Key


async def create_key(services: Services, caller: Caller, wanted: Wanted) -> tuple[str, Key]:
    """A new key, which is told this once, and what is stored of it."""
    secret, key = made(wanted, services.clock.now_ms())
    act = act_of(services, caller, "key.create", key.key_id, told_of(key))
    async with attempted(services.ledger, act):
        for scope in key.scopes:
            caller.require(scope)
        await services.ledger.add_key(key, act)
    return secret, key


async def rotate_key(services: Services, caller: Caller, key_id: str, grace_s: float) -> tuple[str, Key, int]:
    """Another secret, the key, and until when the old secret works."""
    secret, key_digest = mint()
    until_ms = services.clock.now_ms() + int(grace_s * 1000)
    act = act_of(services, caller, "key.rotate", key_id, {"grace_s": grace_s})
    async with attempted(services.ledger, act):
        key = await services.ledger.rotate_key(caller.tenant, key_id, key_digest, until_ms, act)
    services.keys.forget()
    return secret, key, until_ms


async def limit_key(services: Services, caller: Caller, key_id: str, changes: Mapping[str, int | None]) -> Key:
    """Change the limits that are named; `None` takes one away."""
    act = act_of(services, caller, "key.limit", key_id, changes)
    async with attempted(services.ledger, act):
        key = await services.ledger.limit_key(caller.tenant, key_id, changes, act)
    services.keys.forget()
    return key


async def revoke_key(services: Services, caller: Caller, key_id: str) -> Key:
    """The key, and the session keys of what it opened, are good for nothing from now on."""
    act = act_of(services, caller, "key.revoke", key_id)
    async with attempted(services.ledger, act):
        key = await services.ledger.revoke_key(caller.tenant, key_id, services.clock.now_ms(), act)
    services.keys.forget()
    return key
