"""The way to servers of models that are no policy: each with its own key and its own connections.

Only URLs of the settings are ever dialled, and redirects are not followed. The agent's key never goes there, the
upstream's key never comes back: neither in an answer nor in an error. An upstream that refuses our key is a fault of
the gateway's settings (502), never one of the agent's key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Final

from gateway.deadlines import Deadlines
from gateway.engines import Placement
from gateway.orders import Order
from gateway.routing import UpstreamRoute
from gateway.sse import SseEvent
from gateway.upstream import Answer, EngineRefused, Upstream
from gateway.upstream_settings import UpstreamSettings
from tracker.errors import UpstreamFailed

KEY_REFUSED: Final = frozenset({401, 403, 407})
HIDDEN: Final = b"***"
PASSING: Final = frozenset({"chat", "completions"})
"""Dialects whose agents get an upstream's events as they are."""


class Upstreams:
    """Connections to all servers that the settings name."""

    def __init__(
        self,
        settings: Sequence[UpstreamSettings],
        timeout_s: float,
        idle_s: float | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._keys = {each.name: each.key.get_secret_value().encode() if each.key else b"" for each in settings}
        self._servers = {
            name: Upstream(key.decode() or None, timeout_s, f"The upstream {name}", idle_s=idle_s, deadlines=deadlines)
            for name, key in self._keys.items()
        }

    async def close(self) -> None:
        """Close every connection."""
        for server in self._servers.values():
            await server.close()

    @asynccontextmanager
    async def ask(
        self, route: UpstreamRoute, path: str, body: bytes, request_id: str, *, streams: bool
    ) -> AsyncGenerator[Answer]:
        """Send a request to the upstream of a model; its answer has begun when this is entered."""
        async with AsyncExitStack() as stack:
            asking = self._servers[route.upstream].ask(route.url + path, body, request_id, streams=streams)
            try:
                answer = await stack.enter_async_context(asking)
            except EngineRefused as refused:
                raise _told(refused, route.upstream, self._keys[route.upstream].decode()) from None
            yield answer

    def without_key(self, route: UpstreamRoute, said: bytes) -> bytes:
        """What an upstream said, without its key wherever it may repeat it."""
        key = self._keys[route.upstream]
        return said.replace(key, HIDDEN) if key else said


class TextSource:
    """Calls to models that are no policy."""

    prompting = None

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    @asynccontextmanager
    async def ask(self, order: Order, placement: Placement) -> AsyncGenerator[_TextAnswer]:
        """Send the call as its dialect writes it for engines."""
        route = order.route
        assert isinstance(route, UpstreamRoute)
        body = order.dialect.engine_body(order.asked, order.target(placement.model))
        path = order.dialect.engine_path.removeprefix("/v1")
        asking = self._upstreams.ask(route, path, body, order.request_id, streams=order.asked.streams)
        async with asking as answer:
            yield _TextAnswer(answer, partial(self._for_agent, order, route))

    def _for_agent(self, order: Order, route: UpstreamRoute, event: SseEvent) -> SseEvent:
        """An event as it goes on: one that only the upstream knows stays as it is, or is left out of a translation."""
        raw = self._upstreams.without_key(route, event.raw)
        if not _is_known(event):
            return SseEvent(raw=raw if order.dialect.name in PASSING else b"", data=None)
        if raw == event.raw:
            return event
        return SseEvent(raw=raw, data=self._upstreams.without_key(route, event.data or b""))


class _TextAnswer:
    """An upstream's answer, each event changed only where it must be."""

    def __init__(self, answer: Answer, change: Callable[[SseEvent], SseEvent]) -> None:
        self._answer = answer
        self._change = change

    async def batches(self) -> AsyncGenerator[list[SseEvent]]:
        async with aclosing(self._answer.batches()) as batches:
            async for events in batches:
                yield [self._change(event) for event in events]


def _is_known(event: SseEvent) -> bool:
    """Whether what follows can read the event: it has choices, tells an error, or ends the stream."""
    data = event.data
    return data is not None and (event.is_done or b'"choices"' in data or b'"error"' in data)


def _told(refused: EngineRefused, name: str, key: str) -> UpstreamFailed:
    """An upstream's refusal in words that cannot be read as a fault of the agent's own key."""
    message = refused.message.replace(key, HIDDEN.decode()) if key else refused.message
    if refused.status in KEY_REFUSED:
        told = f"The upstream {name} refused the key that this gateway has for it (HTTP {refused.status})"
        why = f": {message}" if refused.status == 403 else ""
        return UpstreamFailed(f"{told}; whoever runs the gateway must set it right{why}.")
    refused.message = message
    return refused
