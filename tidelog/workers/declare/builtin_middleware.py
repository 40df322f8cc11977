"""The middleware that is included: ``timing``, ``tracing``, ``deduplicate``."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client import strings
from tidelog.codecs import CodecError
from tidelog.topics.failureactions import is_number
from tidelog.topics.partition import Key, canonical
from tidelog.workers import keys, logs
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.middleware import CallNext, Middleware
from tidelog.workers.declare.signature import check_takes

log = logs.get(__name__)
SECONDS: Final = "tidelog_worker_call_seconds"  # the name of the histogram
EXTRA: Final = "pip install 'tidelog[workers]'"
OTEL: Final = "pip install 'tidelog[otel]'"
OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"  # which conventions an instrumentation emits, separated by commas
DUP: Final = "messaging/dup"


# -- timing --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Timing:
    """One call of a processor's function, or one pull of an ``app.processor`` function."""

    app: str
    processor: str
    events: int
    seconds: float
    error: BaseException | None  # None: the call succeeded


def timing(slow: float | None = 1.0, observe: Callable[[Timing], None] | None = None) -> Middleware:
    """Measure how long the inner layers and the function take.

    slow: calls that take at least this many seconds are logged as warnings; None: never. All calls are logged at debug
        level.
    observe: is called with each Timing, also for failed calls; ``to_prometheus()`` returns such a function.
    """
    if slow is not None and (not is_number(slow) or slow < 0):
        raise AppError(f"timing: slow must be a number of seconds from 0, or None: {slow!r}")
    if observe is not None:
        check_takes("timing: observe", observe, "observe=lambda timing: ...")

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        began = time.perf_counter()
        error: BaseException | None = None
        try:
            await call_next(events)
        except BaseException as caught:
            error = caught
            raise
        finally:
            if events:
                _tell(events, time.perf_counter() - began, error)

    def _tell(events: Sequence[Event[Any]], seconds: float, error: BaseException | None) -> None:
        first = events[0]
        attributes = Timing(first.app, first.processor, len(events), seconds, error)
        level = logging.WARNING if slow is not None and seconds >= slow else logging.DEBUG
        where = f"{first.topic.stream(first.partition)} {first.id}"
        group = f"{first.app}.{first.processor}"
        log.log(level, "%s: %d events from %s on took %.3f s", group, len(events), where, seconds)
        if observe is not None:
            observe(attributes)

    return layer


def to_prometheus(registry: Any = None) -> Callable[[Timing], None]:
    """Return an observer for ``timing`` that fills the histogram ``tidelog_worker_call_seconds``.

    Its labels are app, processor and outcome. registry: a CollectorRegistry; None: the default one, which has a single
    histogram even if this function is called again. Raises AppError if the extra ``workers`` is not installed.
    """
    try:
        import prometheus_client
    except ImportError:
        raise AppError(f"to_prometheus needs prometheus-client: {EXTRA}") from None
    where = prometheus_client.REGISTRY if registry is None else registry
    histogram: Any = _histograms.get(where)
    if histogram is None:
        labels = ("app", "processor", "outcome")
        histogram = prometheus_client.Histogram(SECONDS, "Duration of a processor's calls.", labels, registry=where)
        _histograms[where] = histogram

    def observe(timing: Timing) -> None:
        outcome = "ok" if timing.error is None else "error"
        histogram.labels(timing.app, timing.processor, outcome).observe(timing.seconds)

    return observe


_histograms: dict[Any, Any] = {}  # by registry: a registry accepts each name only once


# -- tracing -------------------------------------------------------------------------------------------------
def tracing(tracer: Any = None) -> Middleware:
    """Create an OpenTelemetry span for each call, named ``process <topic>``, with the exception if the call fails.

    It has a link to the trace context of each entry. The span of a single event is also a child of that context. Names
    are those of the messaging conventions; with ``messaging/dup`` in OTEL_SEMCONV_STABILITY_OPT_IN, also those of
    version 1.24.

    tracer: None: the tracer of the global provider. Raises AppError if the extra ``otel`` is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation import tracecontext
    except ImportError:
        raise AppError(f"tracing needs opentelemetry-api: {OTEL}") from None
    propagator = tracecontext.TraceContextTextMapPropagator()
    former = DUP in [word.strip() for word in os.environ.get(OPT_IN, "").split(",")]

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        if not events:
            await call_next(events)
            return
        contexts = [propagator.extract(event.trace_context) for event in events]
        spans = [trace.get_current_span(context).get_span_context() for context in contexts]
        single = len(events) == 1
        begun = (tracer or trace.get_tracer("tidelog")).start_as_current_span(
            f"process {events[0].topic.name}",
            context=contexts[0] if single else None,
            kind=trace.SpanKind.CONSUMER,
            attributes=_attributes(events, former),
            links=[trace.Link(span) for span in spans if span.is_valid],
        )
        with begun:
            await call_next(events)

    return layer


def _attributes(events: Sequence[Event[Any]], former: bool) -> dict[str, str | int]:
    """Return the attributes of OpenTelemetry's messaging conventions. ``former``: also those of version 1.24."""
    first = events[0]
    attributes: dict[str, str | int] = {
        "messaging.system": "tidelog",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": first.topic.name,
        "messaging.consumer.group.name": f"{first.app}.{first.processor}",
    }
    if former:
        attributes["messaging.operation"] = "process"  # the only one that later versions renamed
    if len({event.partition for event in events}) == 1:
        attributes["messaging.destination.partition.id"] = str(first.partition)
    if len(events) == 1:
        attributes["messaging.message.id"] = str(first.id)
        attributes["tidelog.attempt"] = first.attempt
    else:
        attributes["messaging.batch.message_count"] = len(events)
    return attributes


# -- deduplication -------------------------------------------------------------------------------------------
def deduplicate(field: str | Callable[[Any], Key | None], seconds: float) -> Middleware:
    """Pass on only the first of several events that have the same value within a period.

    field: a field of the record, or a function of the record that returns the value: str, int, bytes or UUID. Events
        without a value (None) always pass.
    seconds: the length of the period.

    Each value is a key on the server, ``app:<app>:seen:<processor>:<value>``, that identifies the event, so that event
    can be redelivered. If the event fails, the key is deleted, and another event with this value can pass.
    """
    if not is_number(seconds) or seconds < 0.001:
        raise AppError(f"deduplicate: seconds must be a number from 0.001: {seconds!r}")
    if not isinstance(field, str):
        check_takes("deduplicate: field", field, "deduplicate(lambda record: record.id, 60)")
    get: Callable[[Any], Any] = _getter(field) if isinstance(field, str) else field
    ms = round(seconds * 1000)

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        found = [_seen_key(event, get(event.record)) for event in events]
        first: dict[bytes, Event[Any]] = {}
        for key, event in zip(found, events, strict=True):
            if key is not None:
                first.setdefault(key, event)
        asked = [event.actions.run(strings.set_absent(key, _identity(event), ms)) for key, event in first.items()]
        holders = await asyncio.gather(*asked)
        held = {
            key: event
            for (key, event), holder in zip(first.items(), holders, strict=True)
            if holder is None or holder == _identity(event)
        }
        passed = [event for key, event in zip(found, events, strict=True) if key is None or held.get(key) is event]
        try:
            await call_next(passed)
        except Exception:
            freed = [event.actions.run(strings.delete_equal(key, _identity(event))) for key, event in held.items()]
            await asyncio.gather(*freed, return_exceptions=True)  # the remaining keys expire
            raise

    return layer


def _getter(field: str) -> Callable[[Any], Any]:
    def get(record: Any) -> Any:
        try:
            return record.get(field) if isinstance(record, dict) else getattr(record, field)
        except AttributeError:
            raise CodecError(f"deduplicate: a record has no field {field!r}") from None

    return get


def _seen_key(event: Event[Any], value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        return keys.seen(event.app, event.processor).encode() + canonical(value)
    except TypeError:
        raise CodecError(f"deduplicate: a value must be str, int, bytes or UUID, not {type(value).__name__}") from None


def _identity(event: Event[Any]) -> bytes:
    return f"{event.topic.stream(event.partition)} {event.id}".encode()
