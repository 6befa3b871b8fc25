"""Who is calling: API keys, and session keys that are good for one episode.

An API key is random, shown once and stored as its SHA-256. A session key is derived from a secret that SQL holds, the
tenant and the episode id, so it is checked without SQL and every gateway derives the same one. It carries no scope:
its bearer can call for its episode and end it, nothing else. What a caller may do is asked at each route; which
episode a call belongs to is left to `identity.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

from tracker.clock import Clock
from tracker.errors import Forbidden, Unauthorized
from tracker.store import Ledger
from tracker.types import ID_PATTERN, Key, Record, Scope

CACHE_MS: Final = 5_000
"""How long a look-up is believed; a revoked key works this much longer at most."""
CACHE_SIZE: Final = 4_096
MAX_KEY_CHARS: Final = 512
SESSION_KEY: Final = re.compile(rf"hone-ep-([0-9a-f]{{32}})-([0-9a-f]{{32}})-({ID_PATTERN})")
HOW: Final = "Send an API key as 'Authorization: Bearer KEY' or 'x-api-key: KEY' (hone keys create makes one)."


class Caller(Record, frozen=True):
    """Who sent a request."""

    tenant: str
    key_id: str
    scopes: tuple[Scope, ...] = ()
    episode_id: str | None = None
    """Set for a session key: the one episode it is good for."""

    def may(self, *scopes: Scope) -> bool:
        """Whether one of these scopes is held; `admin` implies all."""
        return Scope.ADMIN in self.scopes or any(scope in self.scopes for scope in scopes)

    def require(self, *scopes: Scope) -> None:
        """Raise `Forbidden` unless one of these scopes is held."""
        if not self.may(*scopes):
            needed = " or ".join(dict.fromkeys((*scopes, Scope.ADMIN)))
            raise Forbidden(f"This key does not have the scope this needs: {needed}.")


class KeyRing:
    """Authenticates requests and derives session keys."""

    def __init__(self, ledger: Ledger, secret: bytes, clock: Clock) -> None:
        self._ledger = ledger
        self._secret = secret
        self._clock = clock
        self._seen: dict[str, tuple[Key | None, int]] = {}

    async def authenticate(self, authorization: str | None, x_api_key: str | None) -> Caller:
        """The caller behind these two headers; raises `Unauthorized`. If both are sent, they must agree."""
        key = _presented(authorization, x_api_key)
        session = SESSION_KEY.fullmatch(key)
        if session is not None:
            return self._session_caller(session)
        stored = await self._find(digest(key))
        if stored is None or stored.revoked_ms is not None:
            raise Unauthorized(f"This API key is not valid. {HOW}")
        if stored.expires_ms is not None and stored.expires_ms <= self._clock.now_ms():
            raise Unauthorized(f"This API key has expired. {HOW}")
        return Caller(tenant=stored.tenant, key_id=stored.key_id, scopes=stored.scopes)

    def session_key(self, tenant: str, episode_id: str) -> str:
        """The key of one episode (`ep-` and 32 hex digits), the same each time."""
        return f"hone-{episode_id}-{self._mac(tenant, episode_id)}-{tenant}"

    def _session_caller(self, session: re.Match[str]) -> Caller:
        episode_id, tenant = f"ep-{session[1]}", session[3]
        if not hmac.compare_digest(session[2], self._mac(tenant, episode_id)):
            raise Unauthorized("This session key is not valid: use the api_key that POST /v1/episodes answered.")
        return Caller(tenant=tenant, key_id=f"session:{episode_id}", episode_id=episode_id)

    def _mac(self, tenant: str, episode_id: str) -> str:
        message = f"session-key:1:{tenant}:{episode_id}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()[:32]

    async def _find(self, key_digest: str) -> Key | None:
        now_ms = self._clock.now_ms()
        found, until_ms = self._seen.get(key_digest, (None, 0))
        if now_ms < until_ms:
            return found
        found = await self._ledger.find_key(key_digest)
        if len(self._seen) >= CACHE_SIZE:
            self._seen.clear()
        self._seen[key_digest] = (found, now_ms + (CACHE_MS if found is not None else 0))
        return found


def mint() -> tuple[str, str]:
    """A new random API key and the digest under which it is stored."""
    key = f"hone-sk-{secrets.token_urlsafe(32)}"
    return key, digest(key)


def digest(key: str) -> str:
    """SHA-256 (hex) of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _presented(authorization: str | None, x_api_key: str | None) -> str:
    """The one key in the two headers."""
    given = {key for key in (_bearer(authorization), (x_api_key or "").strip()) if key}
    if not given:
        raise Unauthorized(f"No API key was given. {HOW}", code="missing_api_key")
    if len(given) > 1:
        raise Unauthorized("Authorization and x-api-key hold different keys: send one of them.")
    key = given.pop()
    if len(key) > MAX_KEY_CHARS:
        raise Unauthorized(f"This API key is not valid. {HOW}")
    return key


def _bearer(authorization: str | None) -> str:
    if authorization is None or not authorization.strip():
        return ""
    scheme, _, key = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized(f"The Authorization header is not understood. {HOW}")
    return key.strip()
