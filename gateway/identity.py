"""Which episode a call belongs to, and the ids the gateway mints.

A path, a header and a session key may each name the episode; all that are given must name the same one. A call that
names none is known by a scope, and by the session that it may say it belongs to; what it says is in `conversation.py`.
Nothing here looks an episode up: whether it exists, and for whom, is asked of the stores. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final, cast

from tracker.errors import BadRequest
from tracker.types import ID_PATTERN, MAX_TASK_CHARS, Record

EPISODE_PREFIX: Final = "ep-"
RANDOM_HEX: Final = 32
"""Hex digits of the random part of a call id: 128 bits."""
_ID: Final = re.compile(ID_PATTERN)
_CALL_ID: Final = re.compile(rf"[a-z]+[-_]([0-9a-f]{{32}})-[0-9a-f]{{{RANDOM_HEX}}}")
_SESSION_FIELD: Final = re.compile(r"header:[!#$%&'*+.^_`|~0-9A-Za-z-]+|body:[^.\s][^\s]*")
HOW_TO_NAME: Final = "write header:NAME or body:FIELD.FIELD"


class Claims(Record, frozen=True):
    """What a request says about its episode; `None` where it says nothing."""

    path: str | None = None
    """From `/e/{episode_id}/v1/…`."""
    header: str | None = None
    """`X-Hone-Episode`."""
    key: str | None = None
    """The episode a session key is good for."""


def episode_of(claims: Claims) -> str | None:
    """The one episode that is claimed, or `None`; raises `BadRequest` if there are more.

    >>> episode_of(Claims(path="ep-1", key="ep-1"))
    'ep-1'
    """
    named = {"the path": claims.path, "the header X-Hone-Episode": claims.header, "the session key": claims.key}
    given = {where: name for where, name in named.items() if name}
    for where, name in given.items():
        if not _ID.fullmatch(name):
            raise BadRequest(f"The episode id in {where} does not match {ID_PATTERN}.", param="episode_id")
    if len(set(given.values())) > 1:
        told = " and ".join(f"{where} ({name})" for where, name in given.items())
        raise BadRequest(f"{told} name different episodes: name one.", param="episode_id", code="episode_mismatch")
    return next(iter(given.values()), None)


def task_named(path: str | None, header: str | None) -> str | None:
    """The task that a call names; raises `BadRequest` if it names two, or one that is too long."""
    if path and header and path != header:
        raise BadRequest("The path and the header X-Hone-Task name different tasks: name one.", param="X-Hone-Task")
    task = path or header
    if task is not None and len(task) > MAX_TASK_CHARS:
        raise BadRequest(f"A task is at most {MAX_TASK_CHARS} characters.", param="X-Hone-Task")
    return task or None


def scope_of(tenant: str, key_id: str, task: str | None) -> bytes:
    """What an implicit episode never reaches beyond: tenant, key and the task that was named."""
    return _digest("scope", tenant, key_id, task or "")


def is_session_field(field: str) -> bool:
    """Whether a setting names a header or a field of the body.

    >>> is_session_field("body:metadata.user_id"), is_session_field("cookie")
    (True, False)
    """
    return _SESSION_FIELD.fullmatch(field) is not None


def session_of(fields: Sequence[str], header: Callable[[str], str | None], body: object) -> bytes | None:
    """The session that a call says it belongs to, by the first of the configured fields that it has.

    A field may have several names, of which the first that is there counts: a sub-agent's header for its parent's
    session, then the parent's own.

    >>> session_of(["body:a.b"], lambda name: None, {"a": {"b": "x"}}) is not None
    True
    >>> parents = {"session": "1"}.get
    >>> session_of(["header:parent|session"], {"parent": "1", "session": "2"}.get, {}) == session_of(
    ...     ["header:parent|session"], parents, {}
    ... )
    True
    """
    for field in fields:
        kind, _, names = field.partition(":")
        for name in names.split("|"):
            value = header(name.lower()) if kind == "header" else _at(body, name)
            if value:
                return _digest("session", field, value)
    return None


def call_id_of(prefix: str, episode_id: str, random_hex: str) -> str:
    """The id of a new call, which leads to its episode.

    >>> call_id_of("chatcmpl-", "ep-" + "0" * 32, "f" * 32)
    'chatcmpl-00000000000000000000000000000000-ffffffffffffffffffffffffffffffff'
    """
    return f"{prefix}{episode_id.removeprefix(EPISODE_PREFIX)}-{random_hex}"


def episode_id_of(call_id: str) -> str | None:
    """The episode that a call id leads to, or `None` if it is none of ours."""
    match = _CALL_ID.fullmatch(call_id)
    return None if match is None else EPISODE_PREFIX + match[1]


def _at(value: object, path: str) -> str | None:
    """The text or number at a dotted path."""
    for name in path.split("."):
        value = cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


def _digest(*parts: str) -> bytes:
    hasher = hashlib.blake2b(digest_size=16, person=b"hone-identity")
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(8, "big"))
        hasher.update(raw)
    return hasher.digest()
