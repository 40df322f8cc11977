"""otlp with the exporters of OpenTelemetry's SDK, and with requests of other clients."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.tidelog.flows.netkit import changing, running, seen, url_of
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog import Client
from tidelog.flows import Event, Flow, FlowFileError, RejectError
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import RETRY
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.testing import Server

pytest.importorskip("opentelemetry.proto", reason="it is not installed (pip install 'tidelog[flows-otlp]')")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is not installed")

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "otlp.yaml"
SHOP = Resource.create({"service.name": "shop"})
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def receiving(change: Callable[[Event], None] | None = None, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("otlp")
    flow.connector("in", "otlp", **{"port": 0, **options})
    out = seen(flow)
    flow.pipeline("work", *([] if change is None else [changing(change)]))
    flow.connect("in -> work -> seen")
    return flow, out


def send_logs(url: str, *texts: str, compression: Any = Compression.NoCompression) -> None:
    """Send each text as an error. Blocks."""
    provider = LoggerProvider(resource=SHOP)
    exporter = OTLPLogExporter(f"{url}v1/logs", compression=compression, timeout=10)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("shop.orders")
    for each in texts:
        logger.emit(LogRecord(
            timestamp=time.time_ns(), severity_number=SeverityNumber.ERROR, severity_text="ERROR", body=each,
            attributes={"order": 7, "tags": ["a", "b"]},
        ))  # fmt: skip
    provider.shutdown()


def send_metrics(url: str, compression: Any = Compression.NoCompression) -> None:
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{url}v1/metrics", compression=compression), export_interval_millis=3_600_000
    )
    provider = MeterProvider([reader], SHOP)
    meter = provider.get_meter("shop", "1.2")
    meter.create_counter("orders", unit="1", description="Orders").add(3, {"city": "Oslo"})
    meter.create_gauge("celsius").set(21.5)
    meter.create_histogram("seconds").record(0.3)
    provider.shutdown()


def send_spans(url: str, compression: Any = Compression.NoCompression) -> None:
    provider = TracerProvider(resource=SHOP)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}v1/traces", compression=compression)))
    tracer = provider.get_tracer("shop", "1.2", attributes={"lang": "python"})
    with (
        tracer.start_as_current_span("order", kind=SpanKind.SERVER, attributes={"city": "Oslo"}) as order,
        tracer.start_as_current_span("pay", links=[Link(order.get_span_context(), {"why": "retry"})]) as pay,
    ):
        pay.add_event("refused", {"code": 3})
        pay.set_status(Status(StatusCode.ERROR, "no money"))
    provider.shutdown()


# -- the SDK -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip], ids=["plain", "gzip"])
@in_loop
async def test_logs_and_metrics_of_the_sdk(compression: Any) -> None:
    flow, out = receiving()
    async with running(flow) as one:
        url = await url_of(one)
        await asyncio.to_thread(send_logs, url, "no tea", compression=compression)
        (record,) = out.values
        assert (record["body"], record["severity_text"], record["severity_number"]) == ("no tea", "ERROR", 17)
        assert record["attributes"]["order"] == 7
        assert record["attributes"]["tags"] == ["a", "b"]
        assert record["resource"]["service.name"] == "shop"
        assert record["scope"]["name"] == "shop.orders"
        assert record["trace_id"] is None
        assert abs(record["time_unix_nano"] - out.events[0].ingest_ns) < 60e9
        assert out.events[0].meta["signal"] == "logs"
        out.events.clear()
        await asyncio.to_thread(send_metrics, url, compression)
        points = {each["name"]: each for each in out.values}
    assert sorted(points) == ["celsius", "orders", "seconds"]
    orders = points["orders"]
    assert (orders["value"], orders["type"], orders["unit"], orders["is_monotonic"]) == (3, "sum", "1", True)
    assert orders["aggregation_temporality"] == "cumulative"
    assert orders["attributes"] == {"city": "Oslo"}
    assert (points["celsius"]["type"], points["celsius"]["value"]) == ("gauge", 21.5)
    seconds = points["seconds"]
    assert (seconds["type"], seconds["count"], seconds["sum"], seconds["min"]) == ("histogram", 1, 0.3, 0.3)
    assert sum(seconds["bucket_counts"]) == 1
    assert len(seconds["bucket_counts"]) == len(seconds["explicit_bounds"]) + 1
    assert seconds["scope"] == {"name": "shop", "version": "1.2", "attributes": {}}


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip], ids=["plain", "gzip"])
@in_loop
async def test_traces_of_the_sdk(compression: Any) -> None:
    flow, out = receiving()
    async with running(flow) as one:
        await asyncio.to_thread(send_spans, await url_of(one), compression)
    spans = {each["name"]: each for each in out.values}
    assert {each.meta["signal"] for each in out.events} == {"traces"}
    assert sorted(spans) == ["order", "pay"]
    order, pay = spans["order"], spans["pay"]
    assert (order["kind"], pay["kind"]) == ("server", "internal")
    assert (order["parent_span_id"], pay["parent_span_id"]) == (None, order["span_id"])
    assert (len(pay["span_id"]), len(pay["trace_id"])) == (16, 32)
    assert order["trace_id"] == pay["trace_id"]
    assert order["start_time_unix_nano"] <= pay["start_time_unix_nano"] <= pay["end_time_unix_nano"]
    assert pay["status"] == {"code": "error", "message": "no money"}
    assert order["status"] == {"code": None, "message": ""}
    assert order["attributes"] == {"city": "Oslo"}
    assert [(each["name"], each["attributes"]) for each in pay["events"]] == [("refused", {"code": 3})]
    assert [(each["span_id"], each["attributes"]) for each in pay["links"]] == [(order["span_id"], {"why": "retry"})]
    assert pay["scope"] == {"name": "shop", "version": "1.2", "attributes": {"lang": "python"}}
    assert pay["resource"]["service.name"] == "shop"


@in_loop
async def test_traces_of_the_specification_and_rejected_spans() -> None:
    span = {
        "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
        "parentSpanId": "EEE19B7EC3C1B173", "name": "I'm a server span", "kind": 2,
        "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000",
        "attributes": [{"key": "spanId", "value": {"stringValue": "not an ID"}}],
    }  # fmt: skip
    bad = {**span, "name": "bad"}
    flow, out = receiving(lambda event: judged(Event({"body": event.value["name"]})))
    async with running(flow) as one, aiohttp.ClientSession() as session:
        url = f"{await url_of(one)}v1/traces"
        async with session.post(url, json={"resourceSpans": [{"scopeSpans": [{"spans": [span, bad]}]}]}) as response:
            assert response.status == 200
            assert (await response.json())["partialSuccess"]["rejectedSpans"] == "1"
    (found,) = out.values
    assert (found["trace_id"], found["span_id"]) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174")
    assert (found["parent_span_id"], found["kind"]) == ("eee19b7ec3c1b173", "server")
    assert found["attributes"] == {"spanId": "not an ID"}


@in_loop
async def test_the_sdk_sends_again_after_a_pause() -> None:
    flow, out = receiving()
    async with running(flow) as one:
        url = await url_of(one)
        await one.pause()
        sending = asyncio.ensure_future(asyncio.to_thread(send_logs, url, "later"))
        await until(lambda: one.graph.sources["in"].counts.get("refused", 0) > 0)
        assert out.values == []
        await one.resume()
        await sending
        assert [each["body"] for each in out.values] == ["later"]


# -- responses -----------------------------------------------------------------------------------------------
def request_of(*bodies: str) -> bytes:
    message = logs_service_pb2.ExportLogsServiceRequest()
    records = message.resource_logs.add().scope_logs.add().log_records
    for each in bodies:
        records.add().body.string_value = each
    return bytes(message.SerializeToString())


def judged(event: Event) -> None:
    if event.value["body"] == "bad":
        raise RejectError("it is bad")


@pytest.mark.parametrize("reasons", [False, True])
@in_loop
async def test_partial_success(reasons: bool) -> None:
    flow, out = receiving(judged, reasons=reasons)
    async with running(flow) as one, aiohttp.ClientSession() as session:
        url = await url_of(one)
        for bodies, rejected in ((("a", "bad", "b", "bad"), 2), (("bad",), 1), (("c",), 0), ((), 0)):
            body = request_of(*bodies)
            async with session.post(f"{url}v1/logs", data=body, headers=PROTOBUF) as response:
                assert (response.status, response.content_type) == (200, "application/x-protobuf")
                found = logs_service_pb2.ExportLogsServiceResponse.FromString(await response.read())
            assert found.partial_success.rejected_log_records == rejected
            assert ("it is bad" in found.partial_success.error_message) is (reasons and rejected > 0)
        given = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "bad"}}]}]}]}
        async with session.post(f"{url}v1/logs", json=given) as response:
            assert response.status == 200
            assert (await response.json())["partialSuccess"]["rejectedLogRecords"] == "1"
        assert [each["body"] for each in out.values] == ["a", "b", "c"]


@in_loop
async def test_a_retry_is_a_status_that_exporters_repeat() -> None:
    flow = Flow("otlp")
    flow.connector("in", "otlp", port=0)
    flow.connector("out", "script", act="retry")
    flow.connect("in -> out")
    assert RETRY
    async with running(flow) as one, aiohttp.ClientSession() as session:
        url = await url_of(one)
        async with session.post(f"{url}v1/logs", data=request_of("a"), headers=PROTOBUF) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.read())[:1] == b"\x12"  # a Status with a message
            assert response.content_type == "application/x-protobuf"


@in_loop
async def test_json_of_the_specification() -> None:
    given = {"resourceLogs": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
        "scopeLogs": [{"scope": {"name": "lib"}, "logRecords": [{
            "timeUnixNano": "1544712660300000000", "severityNumber": 10, "severityText": "Information", "unknown": 1,
            "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
            "body": {"kvlistValue": {"values": [{"key": "n", "value": {"intValue": "3"}},
                                                {"key": "l", "value": {"arrayValue": {"values": [{}]}}}]}},
        }]}],
    }]}  # fmt: skip
    flow, out = receiving()
    async with running(flow) as one, aiohttp.ClientSession() as session:
        url = await url_of(one)
        headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "gzip"}
        body = gzip.compress(json.dumps(given).encode())
        async with session.post(f"{url}v1/logs", data=body, headers=headers) as response:
            assert response.status == 200
            assert await response.json() == {}
    (record,) = out.values
    assert record["trace_id"] == "5b8efff798038103d269b633813fc60c"
    assert record["span_id"] == "eee19b7ec3c1b174"
    assert record["body"] == {"n": 3, "l": [None]}
    assert record["time_unix_nano"] == 1544712660300000000
    assert record["resource"] == {"service.name": "shop"}


@in_loop
async def test_invalid_requests_get_a_status_and_a_reason() -> None:
    flow, out = receiving(max_body="10KB", max_messages=20, auth={"bearer": "secret"})
    deep: Any = {"stringValue": "x"}
    for _ in range(200):
        deep = {"arrayValue": {"values": [deep]}}
    record = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": deep}]}]}]}
    ids = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": "xyz"}]}]}]}
    secret = {"Authorization": "Bearer secret"}
    text = {"Content-Type": "application/json"}
    cases: list[tuple[str, bytes, dict[str, str], int]] = [
        ("v1/logs", request_of("a"), {}, 401),
        ("v1/profiles", b"", PROTOBUF, 404),
        ("v1/traces", b"\xff", PROTOBUF, 400),
        ("v1/logs", b"a", {"Content-Type": "text/plain"}, 415),
        ("v1/logs", b"\xff\xff\xff", PROTOBUF, 400),
        ("v1/logs", b"{", text, 400),
        ("v1/logs", b"[]", text, 400),
        ("v1/logs", b'{"resourceLogs": 3}', text, 400),
        ("v1/logs", json.dumps(record).encode(), text, 400),
        ("v1/logs", json.dumps(ids).encode(), text, 400),
        ("v1/logs", request_of("x" * 20_000), PROTOBUF, 413),
        ("v1/logs", request_of(*"x" * 21), PROTOBUF, 413),
        ("v1/logs", gzip.compress(request_of("x" * 20_000)), {**PROTOBUF, "Content-Encoding": "gzip"}, 413),
        ("v1/logs", b"no gzip", {**PROTOBUF, "Content-Encoding": "gzip"}, 400),
    ]
    async with running(flow) as one, aiohttp.ClientSession() as session:
        url = await url_of(one)
        for path, body, headers, status in cases:
            given = headers | secret if status != 401 else headers | PROTOBUF
            async with session.post(url + path, data=body, headers=given) as response:
                assert response.status == status, (path, body[:50])
                answer = await response.read()
            if headers is text:
                assert json.loads(answer)["message"]
            else:
                assert answer[:1] == b"\x12"
        async with session.get(f"{url}v1/logs", headers=secret) as response:
            assert response.status == 405
        assert out.values == []
        numbers = random.Random(7)
        valid = request_of("a", "b")
        for _ in range(200):  # no request causes an internal error
            form, sent = numbers.choice([(PROTOBUF, valid), (text, json.dumps(ids).encode())])
            changed = bytearray(sent)
            changed[numbers.randrange(len(sent))] = numbers.randrange(256)
            async with session.post(f"{url}v1/logs", data=bytes(changed), headers=form | secret) as response:
                assert response.status in (200, 400)


# -- options, the example ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/v1/logs"}, "it must end with /\\*"),
        ({"codec": "string"}, "codec"),
        ({"answer": "accepted"}, "answer"),
        ({"preprocessors": ["gzip"]}, "preprocessors: omit it, because OTLP defines the formats"),
        ({"methods": ["GET"]}, "methods: omit it, because OTLP uses POST"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        receiving(**options)[0].spec()


def test_it_is_no_sink() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("out", "otlp")
    flow.connect("in -> out")
    with pytest.raises(FlowFileError, match="otlp is a source, and not a sink"):
        flow.spec()


@in_loop
async def test_the_example(tidelog_server: Server) -> None:
    spec = read_text(EXAMPLE.read_text(), variables={"PORT": "0"}, server=tidelog_server.url).flows["telemetry"]
    one = RunningFlow(spec, FlowContext("telemetry", server=tidelog_server.url))
    await one.start()
    url = await url_of(one)
    await asyncio.to_thread(send_logs, url, "no tea")
    await asyncio.to_thread(send_metrics, url)
    await asyncio.to_thread(send_spans, url)
    await one.stop()
    with Client(tidelog_server.url) as client:
        (entry,) = client.trange("telemetry.errors")
        assert json.loads(entry["data"])["body"] == "no tea"
        (entry,) = client.trange("telemetry.orders")
        assert json.loads(entry["data"])["value"] == 3
        spans = [json.loads(entry["data"])["name"] for entry in client.trange("telemetry.traces")]
        assert sorted(spans) == ["order", "pay"]
