"""One call as it is seen from outside: counted while it runs, named in log lines, traced where traces are wanted.

Entered before the intent and left after the record, whatever becomes of the call in between. Nothing here touches an
event of the answer; nothing here can fail a call.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from gateway.context import CURRENT, CallContext
from gateway.dependencies import Services
from gateway.orders import Order
from gateway.routing import UpstreamRoute
from gateway.tracing import Span
from tracker.errors import HoneError
from tracker.types import Call, CallState

COMPLETION: Final = "text_completion"
CHAT: Final = "chat"
COMPLETIONS: Final = "completions"


class Watched:
    """A context around one call."""

    def __init__(self, services: Services, order: Order) -> None:
        self._services = services
        self._order = order
        self._now = services.metrics.now
        self._span: Span | None = None
        self._call: Call | None = None
        self._refused: HoneError | None = None

    def __enter__(self) -> Self:
        order = self._order
        self._now.num_calls += 1
        self._now.num_streams += order.asked.streams
        self._span = span = self._begin_span()
        self._token = CURRENT.set(
            CallContext(
                call_id=order.call_id,
                episode_id=order.episode_id,
                tenant=order.admitted.head.tenant,
                traceparent=None if span is None else span.traceparent,
            )
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._now.num_calls -= 1
        self._now.num_streams -= self._order.asked.streams
        CURRENT.reset(self._token)
        if self._span is not None:
            told = {} if self._call is None else _ended(self._call)
            self._span.end(told, _trouble(self._call, error or self._refused))

    def ended(self, call: Call) -> None:
        """The call has its end, recorded or not."""
        self._call = call
        self._services.metrics.ended(call)

    def withheld(self, error: HoneError) -> None:
        """Its answer was not released, since it could not be recorded."""
        self._refused = error
        self._services.metrics.unrecorded.of("withheld").inc()

    def _begin_span(self) -> Span | None:
        tracing = self._services.tracing
        if tracing is None:
            return None
        order = self._order
        operation = COMPLETION if order.dialect.name == COMPLETIONS else CHAT
        model = order.policy or order.asked.model
        return tracing.begin(f"{operation} {model}", _begun(order, operation), order.traceparent)


def _begun(order: Order, operation: str) -> dict[str, Any]:
    """What is known before the call leaves."""
    route, sampling = order.route, order.sampling
    told: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": route.upstream if isinstance(route, UpstreamRoute) else "hone",
        "gen_ai.request.model": order.asked.model,
        "gen_ai.response.id": order.call_id,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "hone.episode": order.episode_id,
        "hone.policy": order.policy,
        "hone.dialect": order.dialect.name,
    }
    return {name: value for name, value in told.items() if value is not None}


def _ended(call: Call) -> dict[str, Any]:
    """What the answer was."""
    where = urlsplit(call.engine)
    sampled = sum(len(choice.sampled_ids) for choice in call.choices)
    told: dict[str, Any] = {
        "gen_ai.response.model": call.policy or call.model,
        "gen_ai.response.finish_reasons": tuple(choice.finish_reason or "" for choice in call.choices),
        "gen_ai.usage.input_tokens": len(call.prompt_ids) or None,
        "gen_ai.usage.output_tokens": sampled or call.usage_completion_tokens,
        "server.address": where.hostname,
        "server.port": where.port,
        "hone.version": call.version,
    }
    return {name: value for name, value in told.items() if value is not None}


def _trouble(call: Call | None, error: BaseException | None) -> str | None:
    """The kind of what went wrong: a reason of ours where there is one."""
    if isinstance(error, HoneError):
        return error.code or type(error).__name__
    if error is not None:
        return type(error).__name__
    if call is None or call.state is CallState.COMPLETED:
        return None
    return call.reason or call.state
