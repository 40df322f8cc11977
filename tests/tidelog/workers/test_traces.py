"""Traces from a send through workers, outputs, dead letters and replays, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer

from tests.tidelog.flows.serverkit import in_loop
from tests.tidelog.workers.workerkit import SOON, Order, orders, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.client.alone import run_alone
from tidelog.topics import Topic, deadletters
from tidelog.workers import App, DeadLetter, Event, Skip, Take, tracing


@pytest.fixture
def traced() -> Iterator[tuple[Tracer, InMemorySpanExporter]]:
    """A tracer, and the spans that end."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("test"), exporter
    provider.shutdown()


def parent_of(span: ReadableSpan) -> str:
    """The traceparent of a span."""
    at = span.context
    assert at is not None
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


def ids(at: SpanContext | None) -> tuple[int, int]:
    assert at is not None
    return at.trace_id, at.span_id


def contexts(client: Client, stream: str) -> list[str]:
    return [entry.text()["traceparent"] for entry in client.trange(stream)]


@in_loop
@pytest.mark.parametrize("transactional", [False, True])
async def test_a_trace_continues_through_a_worker(
    app: App, client: Client, traced: tuple[Tracer, InMemorySpanExporter], transactional: bool
) -> None:
    tracer, exporter = traced
    source = orders(app)
    target: Topic[Order] = app.topic("invoices", Order, partitions=1)

    @app.each(source, middleware=[tracing(tracer)], transactional=transactional)
    async def bill(event: Event[Order]) -> None:
        await event.send(target, event.record)

    with tracer.start_as_current_span("checkout") as checkout:
        source.sync.send(Order(1))
    async with working(app):
        await until(lambda: client.tlen("invoices:0") == 1)
        await until(lambda: len(exporter.get_finished_spans()) == 2)
    source.sync.close()
    first, process = exporter.get_finished_spans()
    assert (first.name, process.name) == ("checkout", "process orders")
    assert ids(process.parent) == ids(checkout.get_span_context())
    assert [ids(link.context) for link in process.links] == [ids(checkout.get_span_context())]
    assert contexts(client, "orders:0") == [parent_of(first)]
    assert contexts(client, "invoices:0") == [parent_of(process)]


@in_loop
async def test_a_batch_links_to_the_trace_of_each_event(
    app: App, client: Client, traced: tuple[Tracer, InMemorySpanExporter]
) -> None:
    tracer, exporter = traced
    source = orders(app)

    @app.batch(source, take=Take(3, within=30), middleware=[tracing(tracer)])
    async def index(batch: list[Order]) -> None: ...

    source.sync.send(Order(1))
    for number in (2, 3):
        with tracer.start_as_current_span("checkout"):
            source.sync.send(Order(number))
    async with working(app):
        await until(lambda: len(exporter.get_finished_spans()) == 3)
    source.sync.close()
    one, two, process = exporter.get_finished_spans()
    assert [ids(link.context) for link in process.links] == [ids(one.context), ids(two.context)]
    assert process.parent is None


@in_loop
async def test_a_dead_letter_and_its_replay_continue_the_trace(
    app: App, client: Client, traced: tuple[Tracer, InMemorySpanExporter]
) -> None:
    tracer, exporter = traced
    source = orders(app)
    failing = True

    @app.each(source, middleware=[tracing(tracer)], on_error=[SOON, DeadLetter()])
    async def bill(order: Order) -> None:
        if failing:
            raise ValueError(order.id)

    @app.each(source, on_error=[Skip()])
    async def untraced(event: Event[Order]) -> None:
        assert event.trace_context.keys() == {"traceparent"}

    with tracer.start_as_current_span("checkout") as checkout:
        source.sync.send(Order(1))
    async with working(app):
        await until(lambda: client.redis.exists("orders.dead:0") == 1)
        failing = False
        run_alone(client, deadletters.replay("orders.dead"))
        await until(lambda: len(exporter.get_finished_spans()) == 5)
    source.sync.close()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["checkout"] + ["process orders"] * 4  # three attempts and the replay
    assert {ids(span.parent) for span in spans[1:]} == {ids(checkout.get_span_context())}
    assert contexts(client, "orders:0") == [parent_of(spans[0])] * 2
