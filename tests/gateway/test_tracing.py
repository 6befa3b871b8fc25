"""Traces: one span a call by the conventions for generative AI, under the caller's, and no words in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.otlp import OtlpTracing
from gateway.requests import RequestHeaders
from gateway.settings import load
from gateway.tracing import Tracing, open_tracing
from tests.fakes.running import running_door, serving
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tracker.errors import SettingsError

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY: dict[str, Any] = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
TOLD = f"00-{TRACE}-{PARENT}-01"


class Recorded:
    """Spans kept in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing: Tracing = OtlpTracing(SimpleSpanProcessor(self._exporter), "w1")

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_a_span_goes_on_from_a_caller_and_names_itself_in_the_same_form(recorded: Recorded) -> None:
    span = recorded.tracing.begin("chat solver", {"hone.episode": "ep-1"}, TOLD)
    version, trace, own, flags = span.traceparent.split("-")
    span.end({"hone.version": 3}, None)
    (ended,) = recorded.spans()
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert own != PARENT
    assert ended.parent is not None
    assert f"{ended.parent.span_id:016x}" == PARENT
    assert dict(ended.attributes or {}) == {"hone.episode": "ep-1", "hone.version": 3}


@pytest.mark.parametrize("told", ["", "00-0-0-00", "nonsense\r\nx: y", f"00-{'0' * 32}-{'0' * 16}-01", f"ff-{TOLD}"])
def test_what_is_no_traceparent_begins_a_trace_of_its_own(recorded: Recorded, told: str) -> None:
    span = recorded.tracing.begin("chat solver", {}, told)
    span.end({}, "upstream_failed")
    (ended,) = recorded.spans()
    assert ended.parent is None
    assert (ended.attributes or {})["error.type"] == "upstream_failed"
    assert not ended.status.is_ok


def test_a_traceparent_that_stands_there_twice_is_none() -> None:
    told = (b"traceparent", TOLD.encode())
    assert RequestHeaders([told]).sole("traceparent") == TOLD
    assert RequestHeaders([told, told]).sole("traceparent") is None
    assert RequestHeaders([]).sole("traceparent") is None


def test_without_a_collector_nothing_is_traced_and_without_the_library_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert open_tracing(None, "w1") is None
    monkeypatch.setitem(sys.modules, "gateway.otlp", None)
    with pytest.raises(SettingsError, match=r"\[otel\]"):
        open_tracing("http://collector:4318", "w1")


def test_the_collector_is_a_root_url(tmp_path: Path) -> None:
    env = {"HONE_POLICIES": "solver=base", "HONE_OTLP_ENDPOINT": "http://collector:4318/v1/traces"}
    assert load(env, tmp_path).otlp_endpoint == "http://collector:4318"
    with pytest.raises(SettingsError, match="otlp_endpoint"):
        load({**env, "HONE_OTLP_ENDPOINT": "collector:4317"}, tmp_path)


@pytest.mark.slow
async def test_each_call_is_one_span_and_the_engine_is_told_of_it(tmp_path: Path) -> None:
    requests: list[bytes] = []

    async def collector(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body, has_more = body + message["body"], message["more_body"]
        requests.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with ScriptedEngine() as engine, serving(collector) as url:
        tracing = open_tracing(url, "w1")
        assert tracing is not None
        async with running_door(engine, tmp_path, tracing=tracing) as door:
            episode = await door.open_episode()
            answered = await door.chat(episode, BODY, traceparent=TOLD)
            assert answered.status == 200
            engine.script(Script(status=500))
            assert (await door.chat(episode, BODY)).status == 502
        async with asyncio.timeout(60):
            await tracing.close()
    spans = [
        span
        for request in requests
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len(spans) == 2
    whole, broken = sorted(spans, key=lambda span: span.start_time_unix_nano)
    told = {item.key: item.value for item in whole.attributes}
    assert (whole.name, whole.trace_id.hex(), whole.parent_span_id.hex()) == ("chat solver", TRACE, PARENT)
    assert told["gen_ai.operation.name"].string_value == "chat"
    assert told["gen_ai.request.model"].string_value == "solver"
    assert told["gen_ai.response.id"].string_value == answered.headers["x-hone-call"]
    assert told["gen_ai.usage.output_tokens"].int_value > 0
    assert told["server.address"].string_value == "127.0.0.1"
    assert told["hone.episode"].string_value == episode
    assert "error.type" not in told
    assert "hi" not in {value.string_value for value in told.values()}
    assert {item.key: item.value.string_value for item in broken.attributes}["error.type"] == "upstream_failed"
    heard = [asked.headers.get("traceparent", asked.headers.get("Traceparent")) for asked in engine.calls]
    assert heard[0] == f"00-{TRACE}-{whole.span_id.hex()}-01"
