"""Administrative acts that a key may not do: which request would have been which act, and how many are written down.

The audit log only grows, so whoever holds any key could fill it: of a tenant, so many refusals a minute are written,
and the rest are counted with every other refusal (`/metrics`). What is read is no act. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.windows import Windows
from tracker.types import Scope

MAX_A_MINUTE: Final = 60
"""Refusals of one tenant that are written down."""
WINDOW_MS: Final = 60_000
MAX_TENANTS: Final = 10_000
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ACTING: Final = frozenset({Scope.ADMIN, Scope.TRAINER})
ACTS: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/v1/runs"): "run.change",
    ("POST", "/v1/keys"): "key.create",
    ("POST", "/v1/keys/{key_id}/rotate"): "key.rotate",
    ("PATCH", "/v1/keys/{key_id}"): "key.limit",
    ("DELETE", "/v1/keys/{key_id}"): "key.revoke",
    ("DELETE", "/v1/keys/{key_id}/data"): "key.erase",
    ("DELETE", "/v1/episodes/{episode_id}"): "episode.delete",
    ("POST", "/v1/policies"): "policy.confirm",
    ("POST", "/v1/policies/{name}/versions"): "version.publish",
    ("POST", "/v1/policies/{name}/rollback"): "version.roll_back",
    ("POST", "/v1/policies/{name}/canary"): "release.share",
    ("POST", "/v1/policies/{name}/promote"): "release.promote",
    ("POST", "/v1/policies/{name}/pause"): "release.pause",
    ("POST", "/v1/policies/{name}/resume"): "release.resume",
    ("POST", "/v1/policies/{name}/shadow"): "release.shadow",
    ("POST", "/dashboard/keys"): "key.create",
    ("POST", "/dashboard/keys/{key_id}/rotate"): "key.rotate",
    ("POST", "/dashboard/keys/{key_id}/limits"): "key.limit",
    ("POST", "/dashboard/keys/{key_id}/revoke"): "key.revoke",
    ("POST", "/dashboard/episodes/{episode_id}/delete"): "episode.delete",
    ("POST", "/dashboard/policies/{name}/rollback"): "version.roll_back",
}
"""As the acts that are done are called; any other is called by its method and route."""


class RefusedActs:
    """How many refusals of each tenant were written down in this minute."""

    def __init__(self) -> None:
        self._told = Windows(MAX_A_MINUTE, WINDOW_MS, MAX_TENANTS)

    def is_told(self, tenant: str, now_ms: int) -> bool:
        """Count one more; whether it is written down."""
        return self._told.add(tenant, now_ms)


def act_named(method: str, route: str) -> str | None:
    """The act that a request would have been; `None` for one that only reads.

    >>> act_named("DELETE", "/v1/keys/{key_id}"), act_named("POST", "/v1/tomorrow"), act_named("GET", "/v1/audit")
    ('key.revoke', 'POST /v1/tomorrow', None)
    """
    if method in READING:
        return None
    return ACTS.get((method, route), f"{method} {route}")
