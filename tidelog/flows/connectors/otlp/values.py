"""Log records, data points, and spans of OTLP as plain values. Fields have their names in the protocol.

A trace ID or a span ID is text in hexadecimal digits, and attributes are an object. A time of 0 is unknown, and null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

TEMPORALITIES: Final = {0: None, 1: "delta", 2: "cumulative"}
KINDS: Final = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
SPAN_KINDS: Final = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
STATUS_CODES: Final = {1: "ok", 2: "error"}


def logs(request: Any) -> Iterator[dict[str, Any]]:
    """Yield a value for each log record of an ``ExportLogsServiceRequest``."""
    for each in request.resource_logs:
        resource = attributes(each.resource.attributes)
        for group in each.scope_logs:
            scope = _scope(group.scope)
            for record in group.log_records:
                yield {
                    "time_unix_nano": record.time_unix_nano or None,
                    "observed_time_unix_nano": record.observed_time_unix_nano or None,
                    "severity_number": record.severity_number, "severity_text": record.severity_text,
                    "body": any_value(record.body), "attributes": attributes(record.attributes),
                    "dropped_attributes_count": record.dropped_attributes_count, "flags": record.flags,
                    "trace_id": record.trace_id.hex() or None, "span_id": record.span_id.hex() or None,
                    "event_name": record.event_name or None, "resource": dict(resource), "scope": dict(scope),
                }  # fmt: skip


def metrics(request: Any) -> Iterator[dict[str, Any]]:
    """Yield a value for each data point of an ``ExportMetricsServiceRequest``."""
    for each in request.resource_metrics:
        resource = attributes(each.resource.attributes)
        for group in each.scope_metrics:
            scope = _scope(group.scope)
            for metric in group.metrics:
                kind = metric.WhichOneof("data")
                if kind is None:
                    continue
                data = getattr(metric, kind)
                common = {"name": metric.name, "description": metric.description, "unit": metric.unit, "type": kind}
                if kind in ("sum", "histogram", "exponential_histogram"):
                    common["aggregation_temporality"] = TEMPORALITIES.get(data.aggregation_temporality)
                if kind == "sum":
                    common["is_monotonic"] = data.is_monotonic
                for point in data.data_points:
                    yield common | _point(kind, point) | {"resource": dict(resource), "scope": dict(scope)}


def spans(request: Any) -> Iterator[dict[str, Any]]:
    """Yield a value for each span of an ``ExportTraceServiceRequest``."""
    for each in request.resource_spans:
        resource = attributes(each.resource.attributes)
        for group in each.scope_spans:
            scope = _scope(group.scope)
            for span in group.spans:
                yield {
                    "name": span.name, "kind": SPAN_KINDS.get(span.kind),
                    "start_time_unix_nano": span.start_time_unix_nano or None,
                    "end_time_unix_nano": span.end_time_unix_nano or None,
                    "trace_id": span.trace_id.hex() or None, "span_id": span.span_id.hex() or None,
                    "parent_span_id": span.parent_span_id.hex() or None, "trace_state": span.trace_state or None,
                    "flags": span.flags,
                    "status": {"code": STATUS_CODES.get(span.status.code), "message": span.status.message},
                    "attributes": attributes(span.attributes),
                    "dropped_attributes_count": span.dropped_attributes_count,
                    "events": [_span_event(one) for one in span.events],
                    "dropped_events_count": span.dropped_events_count,
                    "links": [_link(one) for one in span.links], "dropped_links_count": span.dropped_links_count,
                    "resource": dict(resource), "scope": dict(scope),
                }  # fmt: skip


def span_count(request: Any) -> int:
    return sum(len(group.spans) for each in request.resource_spans for group in each.scope_spans)


def log_count(request: Any) -> int:
    return sum(len(group.log_records) for each in request.resource_logs for group in each.scope_logs)


def point_count(request: Any) -> int:
    return sum(
        len(getattr(metric, kind).data_points)
        for each in request.resource_metrics for group in each.scope_metrics for metric in group.metrics
        if (kind := metric.WhichOneof("data")) is not None
    )  # fmt: skip


def attributes(given: Iterable[Any]) -> dict[str, Any]:
    return {each.key: any_value(each.value) for each in given}


def any_value(given: Any) -> Any:
    """Return an ``AnyValue`` as a plain value. The decoder limits its nesting to 100."""
    kind = given.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(given, kind)
    if kind == "array_value":
        return [any_value(each) for each in value.values]
    if kind == "kvlist_value":
        return attributes(value.values)
    return value


def _scope(given: Any) -> dict[str, Any]:
    return {"name": given.name, "version": given.version, "attributes": attributes(given.attributes)}


def _span_event(given: Any) -> dict[str, Any]:
    return {
        "name": given.name, "time_unix_nano": given.time_unix_nano or None, "attributes": attributes(given.attributes),
        "dropped_attributes_count": given.dropped_attributes_count,
    }  # fmt: skip


def _link(given: Any) -> dict[str, Any]:
    return {
        "trace_id": given.trace_id.hex() or None, "span_id": given.span_id.hex() or None,
        "trace_state": given.trace_state or None, "flags": given.flags, "attributes": attributes(given.attributes),
        "dropped_attributes_count": given.dropped_attributes_count,
    }  # fmt: skip


def _point(kind: str, point: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "attributes": attributes(point.attributes), "start_time_unix_nano": point.start_time_unix_nano or None,
        "time_unix_nano": point.time_unix_nano or None, "flags": point.flags,
    }  # fmt: skip
    if kind in ("gauge", "sum"):
        value["value"] = _number(point)
    else:
        value |= {"count": point.count, "sum": point.sum}
    if kind == "summary":
        value["quantile_values"] = [{"quantile": each.quantile, "value": each.value} for each in point.quantile_values]
        return value
    if kind in ("histogram", "exponential_histogram"):
        value |= {name: getattr(point, name) if point.HasField(name) else None for name in ("sum", "min", "max")}
    if kind == "histogram":
        value |= {"bucket_counts": list(point.bucket_counts), "explicit_bounds": list(point.explicit_bounds)}
    if kind == "exponential_histogram":
        value |= {"scale": point.scale, "zero_count": point.zero_count, "zero_threshold": point.zero_threshold}
        for name in ("positive", "negative"):
            buckets = getattr(point, name)
            value[name] = {"offset": buckets.offset, "bucket_counts": list(buckets.bucket_counts)}
    value["exemplars"] = [
        {
            "value": _number(each), "time_unix_nano": each.time_unix_nano or None,
            "filtered_attributes": attributes(each.filtered_attributes),
            "trace_id": each.trace_id.hex() or None, "span_id": each.span_id.hex() or None,
        }
        for each in point.exemplars
    ]  # fmt: skip
    return value


def _number(given: Any) -> int | float | None:
    kind = given.WhichOneof("value")
    return None if kind is None else getattr(given, kind)
