"""Requests and responses of OTLP over HTTP, in the formats protobuf and JSON.

https://opentelemetry.io/docs/specs/otlp/ - JSON is that of protobuf, except that IDs are in hexadecimal digits, and
enums are numbers. Unknown fields are ignored.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tidelog.flows.connectors.otlp import values

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
FORMATS: Final = (PROTOBUF, JSON)
_IDS: Final = {
    "traceId": 32, "trace_id": 32, "spanId": 16, "span_id": 16, "parentSpanId": 16, "parent_span_id": 16,
}  # their number of digits  # fmt: skip


class OtlpSignal(NamedTuple):
    """A kind of data, which has a path of its own."""

    name: str
    request: Any
    response: Any
    values: Callable[[Any], Iterator[dict[str, Any]]]
    count: Callable[[Any], int]
    rejected: str  # the field of a partial success with the number of rejected records


SIGNALS: Final = {
    "/v1/logs": OtlpSignal(
        "logs", logs_service_pb2.ExportLogsServiceRequest, logs_service_pb2.ExportLogsServiceResponse, values.logs,
        values.log_count, "rejected_log_records",
    ),
    "/v1/metrics": OtlpSignal(
        "metrics", metrics_service_pb2.ExportMetricsServiceRequest, metrics_service_pb2.ExportMetricsServiceResponse,
        values.metrics, values.point_count, "rejected_data_points",
    ),
    "/v1/traces": OtlpSignal(
        "traces", trace_service_pb2.ExportTraceServiceRequest, trace_service_pb2.ExportTraceServiceResponse,
        values.spans, values.span_count, "rejected_spans",
    ),
}  # fmt: skip


def signal_of(path: str) -> OtlpSignal | None:
    return next((each for end, each in SIGNALS.items() if path.endswith(end)), None)


def decoded(signal: OtlpSignal, body: bytes, form: str) -> Any:
    """Return a request. Raises ValueError if it is not valid."""
    if form == JSON:
        try:
            given = msgspec.json.decode(body)
            if not isinstance(given, dict):
                raise ValueError("the request is not an object")
            return json_format.ParseDict(_with_ids(given), signal.request(), ignore_unknown_fields=True)
        except (json_format.ParseError, RecursionError) as error:
            raise ValueError(f"the request is not valid: {error}") from None
    try:
        return signal.request.FromString(body)
    except DecodeError as error:
        raise ValueError(f"the request is not valid: {error}") from None


def success(signal: OtlpSignal, form: str, rejected: int = 0, reason: str = "") -> bytes:
    """Return the response to a request, with the number of rejected records."""
    message = signal.response()
    if rejected:
        setattr(message.partial_success, signal.rejected, rejected)
        message.partial_success.error_message = reason
    if form == JSON:
        return msgspec.json.encode(json_format.MessageToDict(message))
    encoded: bytes = message.SerializeToString()
    return encoded


def failure(text: str, form: str) -> bytes:
    """Return the body of an error: a ``google.rpc.Status`` with its field ``message``, number 2."""
    if form == JSON:
        return msgspec.json.encode({"message": text})
    data = text.encode("utf-8", "replace")
    return b"\x12" + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _with_ids(given: Any) -> Any:
    """Return a value of JSON with IDs in base64, as protobuf expects. Raises ValueError for an invalid ID."""
    if isinstance(given, list):
        return [_with_ids(each) for each in given]
    if not isinstance(given, dict):
        return given
    return {name: _id(name, each) if name in _IDS else _with_ids(each) for name, each in given.items()}


def _id(name: str, given: Any) -> str:
    if not given:
        return ""
    try:
        found = bytes.fromhex(given)
    except (TypeError, ValueError):
        found = b""
    if len(found) * 2 != _IDS[name]:
        raise ValueError(f"{name} is {given!r}: it must be {_IDS[name]} hexadecimal digits")
    return base64.b64encode(found).decode()
