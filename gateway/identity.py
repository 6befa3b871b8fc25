"""Which episode a call belongs to, and the ids the gateway mints.

A path, a header and a session key may each name the episode; all that are given must name the same one. Nothing here
looks an episode up: whether it exists, and for whom, is asked of the stores. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from tracker.errors import BadRequest
from tracker.types import ID_PATTERN, Record

EPISODE_PREFIX: Final = "ep-"
RANDOM_HEX: Final = 32
"""Hex digits of the random part of a call id: 128 bits."""
_ID: Final = re.compile(ID_PATTERN)
_CALL_ID: Final = re.compile(rf"[a-z]+[-_]([0-9a-f]{{32}})-[0-9a-f]{{{RANDOM_HEX}}}")
HOW_TO_OPEN: Final = (
    "This call names no episode. POST /v1/episodes opens one: use the base_url and api_key it answers, "
    "or send its episode_id in the header X-Hone-Episode."
)


class Claims(Record, frozen=True):
    """What a request says about its episode; `None` where it says nothing."""

    path: str | None = None
    """From `/e/{episode_id}/v1/…`."""
    header: str | None = None
    """`X-Hone-Episode`."""
    key: str | None = None
    """The episode a session key is good for."""


def episode_of(claims: Claims) -> str:
    """The one episode that is claimed; raises `BadRequest` if there is none, or more than one.

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
    if not given:
        raise BadRequest(HOW_TO_OPEN, param="episode_id", code="no_episode")
    return next(iter(given.values()))


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
