"""Who is calling: API keys, and session keys that are good for one episode.

An API key is random, shown once and stored as its SHA-256 (why no slower hash: `tracker/keys.py`). A session key is
derived from a secret that SQL holds, the tenant and the episode id, so that every gateway derives the same one; it is
compared in constant time. It carries no scope: its bearer can call for its episode and end it, nothing else, and it is
good no longer than the key that opened the episode. What SQL says of a key is believed for `CACHE_MS`, under its whole
digest. So a revocation or a rotation holds everywhere within that time, at once where it was done. How often SQL is
asked for keys that nobody has is bounded in `guesses.py`. What a caller may do is asked at each route; which episode a
call belongs to is left to `identity.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.guesses import Guesses
from tracker.clock import Clock
from tracker.errors import Forbidden, NotFound, Unauthorized, Unavailable
from tracker.quotas import Quota, day_of
from tracker.store import Ledger
from tracker.types import ID_PATTERN, NO_LIMITS, Key, Record, Scope

CACHE_MS: Final = 5_000
"""How long a look-up is believed; a revoked key works this much longer at most."""
CACHE_SIZE: Final = 4_096
LOOK_UP_S: Final = 5.0
"""How long a look-up may take before the request is refused."""
STALE_MS: Final = 60_000
STALE_WAIT_S: Final = 0.25
"""Calls of open episodes go on while SQL is away: of a key that was looked up within `STALE_MS`, what was found then is
believed if no newer answer comes in this time. Nobody can revoke a key while SQL is away."""
MAX_KEY_CHARS: Final = 512
SESSION_KEY: Final = re.compile(rf"hone-ep-([0-9a-f]{{32}})-([0-9a-f]{{32}})-({ID_PATTERN})")
AWAY: Final = "The database does not say whether this key is good; try again."
HOW: Final = "Send an API key as 'Authorization: Bearer KEY' or 'x-api-key: KEY' (hone keys create makes one)."


class Caller(Record, frozen=True):
    """Who sent a request."""

    tenant: str
    key_id: str
    scopes: tuple[Scope, ...] = ()
    episode_id: str | None = None
    """Set for a session key: the one episode it is good for."""
    quota: Quota | None = None
    """What calls with this key may take; `None` where it has no limits, and for a session key, whose opener has."""

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
        self._by_digest = _Known(self._find, clock)
        self._by_id = _Known(self._get, clock)
        self._guesses = Guesses(clock)

    async def authenticate(
        self, authorization: str | None, x_api_key: str | None, address: str | None = None
    ) -> Caller:
        """The caller behind these two headers; raises `Unauthorized`, or `TooManyRequests` where this address has tried
        too many keys. If both headers are sent, they must agree."""
        key = _presented(authorization, x_api_key)
        session = SESSION_KEY.fullmatch(key)
        if session is not None:
            return self._session_caller(session)
        found = await self._found(digest(key), address)
        if found is None:
            raise Unauthorized(f"This API key is not valid. {HOW}")
        self._refuse_ended(found.key)
        stored = found.key
        return Caller(tenant=stored.tenant, key_id=stored.key_id, scopes=stored.scopes, quota=found.quota)

    async def opener(self, tenant: str, key_id: str) -> Quota | None:
        """The limits of the key that opened an episode, if it has any; raises `Unauthorized` if it is good no more."""
        found = await self._by_id.get_or_stale(f"{tenant} {key_id}") if key_id else None
        if found is None:
            return None
        self._refuse_ended(found.key)
        return found.quota

    def forget(self) -> None:
        """Believe nothing that was looked up before now."""
        self._by_digest.forget()
        self._by_id.forget()

    def session_key(self, tenant: str, episode_id: str) -> str:
        """The key of one episode (`ep-` and 32 hex digits), the same each time."""
        return f"hone-{episode_id}-{self._mac(tenant, episode_id)}-{tenant}"

    async def _found(self, key_digest: str, address: str | None) -> _Found | None:
        """What SQL says of a key; it is not asked for more unknown ones than `guesses.py` lets through."""
        if self._guesses.is_known(key_digest):
            return await self._by_digest.get(key_digest)
        if self._guesses.is_unknown(key_digest):
            return None
        with self._guesses.looking(key_digest, address) as guess:
            found = await self._by_digest.get(key_digest)
            guess.is_known = found is not None
        return found

    def _refuse_ended(self, key: Key) -> None:
        if key.revoked_ms is not None:
            raise Unauthorized(f"This API key is not valid. {HOW}")
        if key.expires_ms is not None and key.expires_ms <= self._clock.now_ms():
            raise Unauthorized(f"This API key has expired. {HOW}")

    def _session_caller(self, session: re.Match[str]) -> Caller:
        episode_id, tenant = f"ep-{session[1]}", session[3]
        if not hmac.compare_digest(session[2], self._mac(tenant, episode_id)):
            raise Unauthorized("This session key is not valid: use the api_key that POST /v1/episodes answered.")
        return Caller(tenant=tenant, key_id=f"session:{episode_id}", episode_id=episode_id)

    def _mac(self, tenant: str, episode_id: str) -> str:
        message = f"session-key:1:{tenant}:{episode_id}".encode()
        return hmac.digest(self._secret, message, hashlib.sha256).hex()[:32]

    async def _find(self, key_digest: str) -> _Found | None:
        key = await self._ledger.find_key(key_digest)
        return None if key is None else _Found(key=key, quota=await self._quota(key))

    async def _get(self, named: str) -> _Found | None:
        tenant, _, key_id = named.partition(" ")
        try:
            key = await self._ledger.get_key(tenant, key_id)
        except NotFound:
            return None
        return _Found(key=key, quota=await self._quota(key))

    async def _quota(self, key: Key) -> Quota | None:
        limits = key.limits
        if limits == NO_LIMITS:
            return None
        if limits.token_budget is None and limits.token_budget_per_day is None:
            return Quota(key_id=key.key_id, limits=limits)
        day = day_of(self._clock.now_ms())
        in_all, today = (await self._ledger.key_usage([key.key_id], day))[key.key_id]
        return Quota(key_id=key.key_id, limits=limits, spent=in_all.tokens, spent_today=today.tokens, day=day)


class _Found(Record, frozen=True):
    """What was looked up of a key."""

    key: Key
    quota: Quota | None = None


class _Known:
    """Look-ups that are believed for `CACHE_MS`; whoever asks meanwhile for the same waits for the one that runs.

    Only what was found is kept. Its age is counted from before SQL was asked, and by a clock that was set back it is
    no longer known.
    """

    def __init__(self, look: Callable[[str], Awaitable[_Found | None]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._kept: dict[str, tuple[_Found, int]] = {}
        self._asked: dict[str, asyncio.Task[_Found | None]] = {}

    async def get(self, name: str) -> _Found | None:
        """What SQL says of it, now or a moment ago; `None` where there is no such key."""
        return self._since(name, CACHE_MS) or await self._ask_once(name)

    async def get_or_stale(self, name: str) -> _Found | None:
        """The same; what is known already where SQL does not say soon."""
        found = self._since(name, CACHE_MS)
        if found is not None:
            return found
        if name not in self._kept:
            return await self._ask_once(name)
        try:
            async with asyncio.timeout(STALE_WAIT_S):
                return await self._ask_once(name)
        except (TimeoutError, Unavailable):
            found = self._since(name, STALE_MS)
            if found is None:
                raise Unavailable(AWAY) from None
            return found

    def _since(self, name: str, age_ms: int) -> _Found | None:
        """What was found, if that is no older."""
        kept = self._kept.get(name)
        return kept[0] if kept is not None and 0 <= self._clock.now_ms() - kept[1] < age_ms else None

    async def _ask_once(self, name: str) -> _Found | None:
        task = self._asked.get(name)
        if task is None:
            task = self._asked[name] = asyncio.create_task(self._ask(name, self._kept, self._asked))
            task.add_done_callback(_heard)
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Look-ups that still run are for those who wait for them alone."""
        self._kept, self._asked = {}, {}

    async def _ask(
        self, name: str, kept: dict[str, tuple[_Found, int]], asked: dict[str, asyncio.Task[_Found | None]]
    ) -> _Found | None:
        at_ms = self._clock.now_ms()
        try:
            async with asyncio.timeout(LOOK_UP_S):
                found = await self._look(name)
        except TimeoutError:
            raise Unavailable(AWAY) from None
        finally:
            asked.pop(name, None)
        if len(kept) >= CACHE_SIZE:
            kept.clear()
        if found is None:
            kept.pop(name, None)
        else:
            kept[name] = (found, at_ms)
        return found


def _heard(task: asyncio.Task[_Found | None]) -> None:
    """Whoever asked may have left; what went wrong is then nobody's."""
    if not task.cancelled():
        task.exception()


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
