"""The signed cookie of the dashboard: who looks, and until when. The key itself is never in it.

Signed with a secret that SQL keeps, so that every gateway knows a session of any other. What it may do is not in it
either: the key is looked up again at each request (`access.py`), and a session is bound to the secret that its key had
then, so that a key which was rotated because it leaked takes the sessions of whoever found it along. A form's token is
derived from the session, and good for no other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from tracker.clock import Clock
from tracker.types import Key, Record

SECRET: Final = "dashboard"  # noqa: S105 - a name, no secret
COOKIE: Final = "hone_session"
LIFE_S: Final = 12 * 3600
MAX_CHARS: Final = 2_048


class Session(Record, frozen=True):
    """What a cookie says."""

    tenant: str
    key_id: str
    mark: str
    """Of the secret that the key had when somebody signed in with it."""
    until_ms: int
    nonce: str


class Sessions:
    """Makes cookies and reads them."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock

    def begin(self, key: Key) -> str:
        """The cookie of somebody who signed in with this key."""
        session = Session(
            tenant=key.tenant,
            key_id=key.key_id,
            mark=self._mark(key),
            until_ms=self._clock.now_ms() + LIFE_S * 1000,
            nonce=secrets.token_hex(8),
        )
        told = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode().rstrip("=")
        return f"{told}.{self._mac('session', told)}"

    def read(self, cookie: str) -> Session | None:
        """What a cookie says, if it is one of ours and not over."""
        told, _, mac = cookie.rpartition(".")
        if len(cookie) > MAX_CHARS or not hmac.compare_digest(_ascii(mac), self._mac("session", told).encode()):
            return None
        try:
            raw = base64.urlsafe_b64decode(told + "=" * (-len(told) % 4))
            session = msgspec.json.decode(raw, type=Session)
        except (binascii.Error, msgspec.MsgspecError):
            return None
        return session if self._clock.now_ms() < session.until_ms else None

    def fits(self, session: Session, key: Key) -> bool:
        """Whether the key still has the secret that the session began with."""
        return hmac.compare_digest(session.mark, self._mark(key))

    def token(self, session: Session) -> str:
        """What each form of a session carries."""
        return self._mac("form", f"{session.tenant} {session.key_id} {session.nonce}")

    def _mark(self, key: Key) -> str:
        return self._mac("key", key.digest)[:32]

    def _mac(self, purpose: str, told: str) -> str:
        return hmac.new(self._secret, f"dashboard:1:{purpose}:{told}".encode(), hashlib.sha256).hexdigest()


def _ascii(text: str) -> bytes:
    """For a comparison in constant time, which takes no other text."""
    return text.encode("ascii", "replace")
