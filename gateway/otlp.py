"""Spans by OpenTelemetry's own library, sent to a collector over OTLP/HTTP in the background.

Imported by `tracing.py` alone, and only where traces are wanted. Spans are sent in batches by a thread of the library;
a collector that is away costs no call anything, its spans are dropped. Credentials and further fields of the resource
are the library's own `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_RESOURCE_ATTRIBUTES`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.tracing import Attributes

PATH: Final = "/v1/traces"
SERVICE: Final = "hone-gateway"


class OtlpSpan:
    """One call's span."""

    def __init__(self, span: Span) -> None:
        self._span = span
        told = span.get_span_context()
        self.traceparent = f"00-{told.trace_id:032x}-{told.span_id:016x}-{int(told.trace_flags):02x}"

    def end(self, attributes: Attributes, error: str | None) -> None:
        """Close it with what is known now."""
        self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class OtlpTracing:
    """Makes spans and hands them to a processor."""

    def __init__(self, processor: SpanProcessor, worker: str) -> None:
        resource = Resource.create({"service.name": SERVICE, "service.instance.id": worker})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("hone")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, attributes: Attributes, traceparent: str | None) -> OtlpSpan:
        """Open a span; a `traceparent` that is not well-formed is as good as none."""
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        parent = self._propagator.extract(carrier, Context())
        return OtlpSpan(self._tracer.start_span(name, parent, SpanKind.CLIENT, dict(attributes)))

    async def close(self) -> None:
        """Send what is left; the library waits in a thread."""
        await asyncio.to_thread(self._provider.shutdown)


def open_otlp(endpoint: str, worker: str) -> OtlpTracing:
    """Spans that go to the collector at this root URL."""
    url = endpoint if endpoint.endswith(PATH) else endpoint.rstrip("/") + PATH
    return OtlpTracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)), worker)
