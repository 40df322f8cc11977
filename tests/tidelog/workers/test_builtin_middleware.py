"""The middleware that is shipped: what it measures, which spans it writes, which duplicates it holds back."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.tidelog.workers.feedkit import MemoryActions, Order, event_of, made
from tidelog import AsyncClient
from tidelog.testing import Server
from tidelog.workers import AppError, Event, Take, Timing, deduplicate, timing, to_prometheus, tracing
from tidelog.workers.declare.processor import Processor

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def fails_at_two(order: Order) -> None:
    if order.id == 2:
        raise ValueError("two")


def declared(layer: Any, function: Any = fails_at_two) -> tuple[Processor, Any]:
    app, orders = made()
    app.each(orders, name="it", middleware=[layer])(function)
    return app.processors["it"], orders


def call(one: Processor, orders: Any, number: int) -> None:
    asyncio.run(one.invoke([event_of(orders, number)]))


# -- timing --------------------------------------------------------------------------------------------------
def test_timing_tells_of_each_call(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Timing] = []
    one, orders = declared(timing(slow=0, observe=told.append))
    call(one, orders, 1)
    with pytest.raises(ValueError, match="two"):
        call(one, orders, 2)
    assert [(one.app, one.processor, one.events, type(one.error)) for one in told] == [
        ("shop", "it", 1, type(None)), ("shop", "it", 1, ValueError),
    ]  # fmt: skip
    assert all(one.seconds > 0 for one in told)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0].startswith("shop.it: 1 events from orders:2 1.0 on took ")


def test_what_is_fast_is_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tidelog.workers.declare.builtin_middleware")
    for slow in (3600, None):
        call(*declared(timing(slow=slow)), 1)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2


def test_timings_for_prometheus() -> None:
    registry = prometheus_client.CollectorRegistry()
    observe = to_prometheus(registry)
    assert to_prometheus(registry) is not None  # a second time, with the same histogram
    for error in (None, None, ValueError()):
        observe(Timing("shop", "it", 1, 0.5, error))
    text = prometheus_client.generate_latest(registry).decode()
    assert 'tidelog_worker_call_seconds_count{app="shop",outcome="ok",processor="it"} 2.0' in text
    assert 'tidelog_worker_call_seconds_sum{app="shop",outcome="error",processor="it"} 0.5' in text


# -- tracing -------------------------------------------------------------------------------------------------
def spans_of(run: Callable[[Any], None]) -> Sequence[ReadableSpan]:
    """The spans that ``run`` writes with the tracer that it is given."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    run(provider.get_tracer("test"))
    provider.shutdown()
    return exporter.get_finished_spans()


def test_a_span_of_one_event() -> None:
    def run(tracer: Any) -> None:
        one, orders = declared(tracing(tracer))
        event = event_of(orders, 1, id="1", item="tea", traceparent=PARENT)
        asyncio.run(one.invoke([event]))
        with pytest.raises(ValueError, match="two"):
            call(one, orders, 2)

    first, second = spans_of(run)
    assert (first.name, first.kind) == ("process orders", SpanKind.CONSUMER)
    assert dict(first.attributes or {}) == {
        "messaging.system": "tidelog", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": "orders", "messaging.consumer.group.name": "shop.it",
        "messaging.destination.partition.id": "2", "messaging.message.id": "1.0", "tidelog.attempt": 1,
    }  # fmt: skip
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}-{first.parent.span_id:016x}" in PARENT
    assert [link.context.span_id for link in first.links] == [first.parent.span_id]
    assert second.parent is None
    assert second.status.status_code is StatusCode.ERROR
    assert [event.name for event in second.events] == ["exception"]


@pytest.mark.parametrize(
    ("opted", "operation"),
    [("messaging", None), ("http, messaging/dup", "process"), ("messaging,messaging/dup", "process")],
)
def test_the_former_names_of_attributes(opted: str, operation: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opted)
    (span,) = spans_of(lambda tracer: call(*declared(tracing(tracer)), 1))
    attributes = span.attributes or {}
    assert attributes["messaging.operation.type"] == "process"
    assert attributes.get("messaging.operation") == operation


def test_a_span_of_a_batch_links_to_what_its_events_come_from() -> None:
    async def batch(batch: list[Order]) -> None: ...

    def run(tracer: Any) -> None:
        app, orders = made()
        app.batch(orders, take=Take(5), name="it", middleware=[tracing(tracer)])(batch)
        given = [event_of(orders, 1, id="1", item="tea", traceparent=PARENT), event_of(orders, 2)]
        asyncio.run(app.processors["it"].invoke(given))

    (span,) = spans_of(run)
    assert (span.attributes or {})["messaging.batch.message_count"] == 2
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b7ad6b7169203331"]
    assert span.parent is None


def test_without_a_provider_tracing_does_nothing() -> None:
    call(*declared(tracing()), 1)


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [(to_prometheus, "prometheus_client", "workers"), (tracing, "opentelemetry", "otel")],
)
def test_without_the_extra(
    make: Callable[[], Any], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AppError, match=rf"pip install 'tidelog\[{extra}\]'"):
        make()


# -- deduplication -------------------------------------------------------------------------------------------
class Seen:
    """A processor behind ``deduplicate``, on a real server; notes which events got through."""

    def __init__(self, server: Server, field: Any = "item", seconds: float = 600) -> None:
        self.server = server
        self.app, self.orders = made()
        self.got: list[list[int]] = []
        self.app.batch(self.orders, take=Take(9), name="it", middleware=[deduplicate(field, seconds)], on_error=None)(
            self.handle
        )

    async def handle(self, batch: list[Event[Order]]) -> None:
        self.got.append([event.id.ms for event in batch])
        if any(event.record.item == "bad" for event in batch):
            raise ValueError("bad")

    def call(self, *events: tuple[int, str], processor: str = "it") -> None:
        async def run() -> None:
            async with AsyncClient(self.server.url) as client:
                actions = MemoryActions(client=client)
                actions.processor = processor
                given = [event_of(self.orders, number, actions, id="1", item=item) for number, item in events]
                await self.app.processors["it"].invoke(given)

        asyncio.run(run())


def test_duplicates_are_held_back(tidelog_server: Server) -> None:
    seen = Seen(tidelog_server)
    seen.call((1, "tea"), (2, "milk"), (3, "tea"))
    seen.call((4, "milk"))
    seen.call((5, "jam"))
    assert seen.got == [[1, 2], [5]]
    seen.call((6, "milk"), processor="other")  # each processor has its own
    assert seen.got == [[1, 2], [5], [6]]
    with tidelog_server.client() as client:
        assert client.redis.get("app:shop:seen:it:tea") == b"orders:2 1.0"
        assert 500_000 < client.redis.pttl("app:shop:seen:it:tea") <= 600_000


def test_the_same_event_again_is_no_duplicate(tidelog_server: Server) -> None:
    seen = Seen(tidelog_server)
    seen.call((1, "tea"))
    seen.call((1, "tea"))  # delivered again: the worker died before it could acknowledge
    assert seen.got == [[1], [1]]


def test_after_the_time_a_value_is_new(tidelog_server: Server) -> None:
    seen = Seen(tidelog_server, seconds=0.001)
    seen.call((1, "tea"))
    with tidelog_server.client() as client:
        while client.redis.exists("app:shop:seen:it:tea"):
            pass
    seen.call((2, "tea"))
    assert seen.got == [[1], [2]]


def test_a_failure_lets_another_one_through(tidelog_server: Server) -> None:
    seen = Seen(tidelog_server)
    seen.call((1, "tea"))
    with pytest.raises(ValueError, match="bad"):
        seen.call((2, "tea"), (3, "bad"), (4, "milk"))
    assert seen.got == [[1], [3, 4]]
    seen.call((5, "milk"), (6, "tea"))  # milk is free again, tea belongs to the first
    assert seen.got == [[1], [3, 4], [5]]


def test_values(tidelog_server: Server) -> None:
    seen = Seen(tidelog_server, field=lambda order: None if order.item == "none" else order.item)
    seen.call((1, "none"), (2, "none"), (3, "tea"))
    assert seen.got == [[1, 2, 3]]
    bad: list[tuple[Any, str]] = [(lambda order: 1.5, "a value must be str, .*, not float"), ("nr", "'nr'")]
    for field, message in bad:
        with pytest.raises(TypeError, match=message):
            Seen(tidelog_server, field=field).call((1, "tea"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: timing(slow=-1), "timing: slow must be a number of seconds from 0, or None: -1"),
        (lambda: timing(observe=lambda: None), "timing: observe does not accept one argument"),  # type: ignore[arg-type, misc]
        (lambda: deduplicate("id", 0), "deduplicate: seconds must be a number from 0.001: 0"),
        (lambda: deduplicate(5, 60), "deduplicate: field is not a function, but 5"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(AppError, match=message):
        make()
