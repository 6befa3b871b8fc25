"""Where the events of an answer come from: an engine of ours, or the server of a model that is no policy.

A source sends one call out and gives back its answer in batches of events, in the form of chat completions (or of
completions, where that was asked). What the events mean is left to `capture.py`, what to do with them to `proxy.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from gateway.engines import Placement
from gateway.exact.source import ExactSource
from gateway.exact.threads import Threads
from gateway.orders import Order
from gateway.routing import EXACT, PolicyRoute
from gateway.sse import SseEvent
from gateway.upstream import Upstream
from tracker.types import Call, Prompting

COMPLETIONS: Final = "completions"
"""The dialect whose prompts are no conversations: nothing of them is rendered."""


class Batches(Protocol):
    """An answer that has begun."""

    def batches(self) -> AsyncGenerator[list[SseEvent]]:
        """Events that came together, up to the end mark or the transport's end."""
        ...


class Source(Protocol):
    """One way to have a call answered."""

    @property
    def prompting(self) -> Prompting | None:
        """How the prompt of the call came about, where the gateway had a part in it."""
        ...

    def ask(self, order: Order, placement: Placement) -> AbstractAsyncContextManager[Batches]:
        """Send the call; its answer has begun when this is entered. Raises `UpstreamFailed`."""
        ...


class PlainSource:
    """The engine is sent the conversation and renders it."""

    prompting = None

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def ask(self, order: Order, placement: Placement) -> AbstractAsyncContextManager[Batches]:
        """Send the call as its dialect writes it for engines."""
        body = order.dialect.engine_body(order.asked, order.target(placement.model))
        url = placement.engine + order.dialect.engine_path
        return self._upstream.ask(url, body, order.request_id, streams=order.asked.streams)


class Sources:
    """The source of each call."""

    def __init__(self, upstream: Upstream, text: Source, threads: Threads) -> None:
        self._upstream = upstream
        self._plain = PlainSource(upstream)
        self._text = text
        self._threads = threads

    def of(self, order: Order, index: int) -> Source:
        """The source that this call takes, which is the episode's `index`-th."""
        if not isinstance(order.route, PolicyRoute):
            return self._text
        if order.route.prompting == EXACT and order.dialect.name != COMPLETIONS:
            return ExactSource(self._upstream, self._threads, index)
        return self._plain

    def note(self, call: Call) -> None:
        """Take a call that was recorded: later ones may go on from it."""
        self._threads.note(call)
