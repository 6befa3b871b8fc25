"""Traces of calls by OpenTelemetry's conventions for generative AI: one span a call, and no words of anybody in it.

Off unless `HONE_OTLP_ENDPOINT` names a collector. Only then is the library needed (the extra `otel`), looked for, and a
line said where it is missing. A caller's `traceparent` is the span's parent, and the engine is told of the span in the
same form. How spans are made and sent is left to `otlp.py`, what a call says of itself to `watching.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final, Protocol

from tracker.errors import SettingsError

Attributes = Mapping[str, str | int | float | tuple[str, ...]]
ADVICE: Final = "HONE_OTLP_ENDPOINT needs OpenTelemetry: pip install '.[otel]' in Hone's checkout, or leave it unset."


class Span(Protocol):
    """The span of one call."""

    @property
    def traceparent(self) -> str:
        """What the engine is told, by W3C's Trace Context."""
        ...

    def end(self, attributes: Attributes, error: str | None) -> None:
        """Close it; `error` is the kind of what went wrong."""
        ...


class Tracing(Protocol):
    """Makes spans."""

    def begin(self, name: str, attributes: Attributes, traceparent: str | None) -> Span:
        """Open a span, under the caller's where it named one that is well-formed."""
        ...

    async def close(self) -> None:
        """Send what is left."""
        ...


def open_tracing(endpoint: str | None, worker: str) -> Tracing | None:
    """What makes spans, if any are wanted. Raises `SettingsError` where the library is missing."""
    if endpoint is None:
        return None
    try:
        otlp = importlib.import_module("gateway.otlp")  # costs memory and start-up time: only who traces pays them
    except ModuleNotFoundError as error:
        raise SettingsError(ADVICE) from error
    tracing: Tracing = otlp.open_otlp(endpoint, worker)
    return tracing
