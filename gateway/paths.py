"""Agents' paths: what a raw request path means, however often its slashes and its `/v1` are repeated.

`/v1/chat/completions/`, `//v1//chat/completions` and `/v1/v1/chat/completions` are one path, so that a base URL with
or without `/v1`, or with a slash too many, just works. What could mean one thing here and another behind us (dot
segments, encoded slashes, backslashes) is refused everywhere. Pure.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from tracker.errors import BadRequest, NotFound
from tracker.types import MAX_TASK_CHARS, Record

ROUTES: Final = frozenset(
    {"chat/completions", "completions", "responses", "messages", "messages/count_tokens", "embeddings", "models"}
)
"""What stands behind `/v1/` on the agent's door."""
_AMBIGUOUS: Final = re.compile(rb"%2f|%5c|%00|\\|%2e", re.IGNORECASE)
_DOTS: Final = frozenset({"..", "."})


class AgentPath(Record, frozen=True):
    """A path of the agent's door."""

    route: str
    """One of `ROUTES`."""
    model: str | None = None
    """The name behind `models/`."""
    response: str | None = None
    """The id behind `responses/`."""
    episode_id: str | None = None
    """From `/e/{episode_id}/v1/…`."""
    task: str | None = None
    """From `/t/{task}/v1/…`."""


def normalise(raw_path: bytes) -> AgentPath | None:
    """What a path means to the agent's door; `None` if it is none of its. Raises `NotFound` on a refused one.

    >>> normalise(b"//v1//v1/chat/completions/")
    AgentPath(route='chat/completions', model=None, response=None, episode_id=None, task=None)
    >>> normalise(b"/e/ep-1/v1/models").episode_id
    'ep-1'
    >>> normalise(b"/v1/reward") is None
    True
    """
    path = raw_path.partition(b"?")[0]
    if _AMBIGUOUS.search(path):
        raise NotFound("Write the path without dot segments, backslashes or encoded slashes.", code="refused_path")
    segments = [part for part in path.decode("latin-1").split("/") if part]
    if not _DOTS.isdisjoint(segments):
        raise NotFound("Write the path without dot segments.", code="refused_path")
    episode_id = task = None
    if len(segments) > 2 and segments[0] in ("e", "t"):
        kind, name, *segments = segments
        episode_id, task = (unquote(name), None) if kind == "e" else (None, _task(name))
    if not segments or segments[0] != "v1":
        return None
    while segments and segments[0] == "v1":
        segments = segments[1:]
    return _route(segments, episode_id, task)


def _route(segments: list[str], episode_id: str | None, task: str | None) -> AgentPath | None:
    route = "/".join(segments)
    if route in ROUTES:
        return AgentPath(route=route, episode_id=episode_id, task=task)
    if len(segments) == 2 and segments[0] == "models":
        return AgentPath(route="models", model=unquote(segments[1]), episode_id=episode_id, task=task)
    if len(segments) == 2 and segments[0] == "responses" and segments[1].startswith("resp_"):
        return AgentPath(route="responses", response=segments[1], episode_id=episode_id, task=task)
    return None


def _task(segment: str) -> str:
    task = unquote(segment)
    if len(task) > MAX_TASK_CHARS:
        raise BadRequest(f"A task is at most {MAX_TASK_CHARS} characters.", param="task")
    return task
