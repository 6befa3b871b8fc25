"""Who looks at the dashboard: the viewer behind the cookie, and what a page asks of him.

The key that somebody signed in with is looked up at every request, and nothing is believed of before: a key that was
revoked, has expired or was rotated since loses its sessions at once. Tenant and scopes are those of the key, so that a
viewer sees on a page what the same key is told over REST. How a cookie is made is left to `session.py`.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Request

from gateway.auth import Caller
from gateway.dashboard.session import COOKIE, Session, Sessions
from gateway.routes.access import note_refused, services_of
from tracker.errors import Forbidden, NotFound, Unauthorized
from tracker.types import Key, Record, Scope

SCOPES: Final = (Scope.READ, Scope.ADMIN)
"""One of these is needed to sign in."""


class NotSignedIn(Unauthorized):
    """Nobody is signed in: the answer is the way to the sign-in page."""

    code = "not_signed_in"


class Viewer(Record, frozen=True):
    """Somebody who is signed in."""

    key_id: str
    tenant: str
    scopes: tuple[Scope, ...]
    csrf: str
    """What the forms on his pages carry."""
    label: str = ""

    @property
    def is_admin(self) -> bool:
        """Whether he may change anything."""
        return Scope.ADMIN in self.scopes

    @property
    def caller(self) -> Caller:
        """As the routes of REST know him."""
        return Caller(tenant=self.tenant, key_id=self.key_id, scopes=self.scopes)


def sessions_of(request: Request) -> Sessions:
    """The sessions that the app's lifespan built."""
    sessions = request.app.state.sessions
    if not isinstance(sessions, Sessions):
        raise TypeError("the dashboard answers requests outside its lifespan")
    return sessions


async def find_viewer(request: Request) -> Viewer | None:
    """Whoever is signed in, if anybody is."""
    sessions, services = sessions_of(request), services_of(request)
    session = sessions.read(request.cookies.get(COOKIE, ""))
    if session is None:
        return None
    try:
        key = await services.ledger.get_key(session.tenant, session.key_id)
    except NotFound:
        return None
    if not _is_good(key, services.clock.now_ms()) or not sessions.fits(session, key):
        return None
    return viewer_of_key(key, session, sessions)


def viewer_of_key(key: Key, session: Session, sessions: Sessions) -> Viewer:
    """The viewer that a key makes of a session."""
    return Viewer(
        key_id=key.key_id, tenant=key.tenant, scopes=key.scopes, csrf=sessions.token(session), label=key.label
    )


async def viewer_of(request: Request) -> Viewer:
    """A dependency: whoever is signed in; raises `NotSignedIn`."""
    viewer = await find_viewer(request)
    if viewer is None:
        raise NotSignedIn("Sign in first.")
    return viewer


async def admin_of(request: Request, viewer: Annotated[Viewer, Depends(viewer_of)]) -> Viewer:
    """A dependency: the same, who must be an administrator. Who is none is in the audit log, if he wanted to act."""
    if not viewer.is_admin:
        refused = Forbidden("This needs a key with the scope admin. Sign in with one.")
        await note_refused(request, viewer.caller, refused)
        raise refused
    return viewer


ViewerOf = Annotated[Viewer, Depends(viewer_of)]
AdminOf = Annotated[Viewer, Depends(admin_of)]


def _is_good(key: Key, now_ms: int) -> bool:
    is_over = key.expires_ms is not None and key.expires_ms <= now_ms
    return key.revoked_ms is None and not is_over and any(scope in key.scopes for scope in SCOPES)
