"""Which call the running task is about, for log lines and for the engine's trace: set once a call, read where needed.

A task that serves no call has no context. Nothing decides anything by it; it is only told.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from tracker.types import Record


class CallContext(Record, frozen=True):
    """The names of one call."""

    call_id: str
    episode_id: str
    tenant: str
    traceparent: str | None = None
    """What the engine is told of the call's span; `None` while nothing is traced."""


CURRENT: Final[ContextVar[CallContext | None]] = ContextVar("hone_call", default=None)
"""The call of the running task."""
