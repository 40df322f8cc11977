"""Events, and how a processor's function is called with them: record or event, middleware, timeout, each form."""

# ruff: noqa: PERF401 - loops are what is tested here
from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.workers.feedkit import MemoryActions, MemoryFeed, Order, event_of, made
from tidelog.topics import CodecError, Topic, UndecodableError
from tidelog.workers import AppError, CallNext, EarlyReturnError, Event, Events, Take
from tidelog.workers.declare.processor import Processor


# -- one event -----------------------------------------------------------------------------------------------
def test_what_an_event_has() -> None:
    _, orders = made()
    event = event_of(orders, 5)
    assert (event.record, event.key, event.partition, event.topic) == (Order(5), 5, 2, orders)
    assert (event.id.ms, event.attempt, event.epoch) == (5, 1, 7)
    assert (event.app, event.processor) == ("shop", "it")
    assert event.record is event.record  # decoded once
    event.record = Order(6)
    assert (event.record, event.key) == (Order(6), 6)
    assert repr(event) == "Event(orders:2 5.0, attempt 1)"
    assert event_of(Topic("rows"), 5, a="b").key is None
    odd: Topic[Order] = Topic("odd", Order, partition_by=lambda order: 1.5)  # type: ignore[arg-type, return-value]
    with pytest.raises(CodecError, match=r"topic 'odd': partition_by: a partition key is str, int, bytes or UUID"):
        _ = event_of(odd, 5).key


def test_a_record_is_decoded_when_it_is_asked_for() -> None:
    _, orders = made()
    event = event_of(orders, 5, price="1")  # no id
    assert event.id.ms == 5
    for _ in range(2):
        with pytest.raises(UndecodableError, match=r"entry 5\.0 of orders:2"):
            _ = event.record
    with pytest.raises(UndecodableError):
        _ = event.key


async def _ask(event: Event[Any], orders: Topic[Any]) -> None:
    event.touch(5)
    assert await event.send(orders, Order(9)) is None


def test_what_an_event_is_asked_to_do() -> None:
    _, orders = made()
    actions = MemoryActions(manual=True)
    event = event_of(orders, 5, actions)
    event.ack()
    event.nack()
    event.nack(delay=2.5)
    asyncio.run(_ask(event, orders))
    assert [note[0] for note in actions.notes] == ["ack", "nack", "nack", "touch", "send"]
    assert [note[2:] for note in actions.notes[1:]] == [(0,), (2.5,), (5,), ("orders", Order(9))]
    with pytest.raises(AppError, match=r"event.nack\(\): delay must be a number of seconds from 0: -1"):
        event.nack(delay=-1)
    with pytest.raises(AppError, match=r"event.touch\(\): seconds must be a number of seconds from 0: 'x'"):
        event.touch("x")  # type: ignore[arg-type]


def test_only_manual_processors_acknowledge() -> None:
    _, orders = made()
    event = event_of(orders, 5, actions := MemoryActions())
    for ask in (event.ack, event.nack):
        with pytest.raises(AppError, match=r"requires ack='manual'"):
            ask()
    assert actions.notes == []


@pytest.mark.parametrize(("count", "within"), [(0, 1), (1.5, 1), (True, 1), (1, -1), (1, float("inf")), (1, None)])
def test_takes_that_make_no_sense(count: Any, within: Any) -> None:
    with pytest.raises(AppError, match=r"^Take: "):
        Take(count, within)


# -- each and batch ------------------------------------------------------------------------------------------
def declared_each(function: Any, **options: Any) -> tuple[Processor, Topic[Any]]:
    app, orders = made()
    app.each(orders, name="it", **options)(function)
    return app.processors["it"], orders


def declared_batch(function: Any, **options: Any) -> tuple[Processor, Topic[Any]]:
    app, orders = made()
    app.batch(orders, name="it", take=Take(10), **options)(function)
    return app.processors["it"], orders


def test_calls_with_records_and_with_events() -> None:
    seen: list[Any] = []

    async def record(order: Order) -> None:
        seen.append(order)

    async def event(event: Event[Order]) -> None:
        seen.append(event)

    async def batch(orders: list[Order]) -> None:
        seen.append(orders)

    async def events(batch: list[Event[Order]]) -> None:
        seen.append(batch)

    one, orders = declared_each(record)
    given = [event_of(orders, 1), event_of(orders, 2)]
    asyncio.run(one.invoke(given[:1]))
    asyncio.run(declared_each(event)[0].invoke(given[:1]))
    asyncio.run(declared_batch(batch)[0].invoke(given))
    asyncio.run(declared_batch(events)[0].invoke(given))
    assert seen == [Order(1), given[0], [Order(1), Order(2)], given]


def test_what_is_plain() -> None:
    async def record(order: Order) -> None: ...

    async def event(event: Event[Order]) -> None: ...

    async def batch(orders: list[Order]) -> None: ...

    async def layer(events: Any, call_next: Any) -> None: ...

    async def events(events: Events[Order]) -> None: ...

    assert declared_each(record)[0].plain
    assert declared_batch(batch)[0].plain
    assert not declared_each(event)[0].plain
    assert not declared_each(record, timeout=5)[0].plain
    assert not declared_each(record, middleware=[layer])[0].plain
    assert not declared_events(events)[0].plain


def test_middleware_is_an_onion() -> None:
    told: list[Any] = []

    def layer(name: str) -> Any:
        async def call(events: Sequence[Event[Any]], call_next: CallNext) -> None:
            told.append((name, "in", [event.id.ms for event in events]))
            try:
                await call_next(events)
            except ValueError as error:
                told.append((name, "error", str(error)))
                raise
            told.append((name, "out"))

        return call

    async def record(order: Order) -> None:
        told.append(order.id)
        if order.id == 2:
            raise ValueError("no")

    one, orders = declared_each(record, middleware=[layer("outer"), layer("inner")])
    asyncio.run(one.invoke([event_of(orders, 1)]))
    assert told == [("outer", "in", [1]), ("inner", "in", [1]), 1, ("inner", "out"), ("outer", "out")]
    told.clear()
    with pytest.raises(ValueError, match="no"):
        asyncio.run(one.invoke([event_of(orders, 2)]))
    assert told[2:] == [2, ("inner", "error", "no"), ("outer", "error", "no")]


def test_middleware_changes_what_goes_in_and_keeps_errors_back() -> None:
    seen: list[Any] = []

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        kept = [event for event in events if event.entry["id"] != b"1"]
        for event in kept:
            event.record = Order(event.record.id, "milk")
        try:
            await call_next(kept)
        except UndecodableError:
            seen.append("kept back")

    async def batch(orders: list[Order]) -> None:
        seen.append(orders)

    many, orders = declared_batch(batch, middleware=[layer])
    asyncio.run(many.invoke([event_of(orders, 1), event_of(orders, 2)]))
    asyncio.run(many.invoke([event_of(orders, 1)]))  # nothing is left: no call
    assert seen == [[Order(2, "milk")]]


def test_middleware_sees_an_error_from_decoding() -> None:
    caught: list[Exception] = []

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        try:
            await call_next(events)
        except UndecodableError as error:
            caught.append(error)
            raise

    async def record(order: Order) -> None: ...

    one, orders = declared_each(record, middleware=[layer])
    with pytest.raises(UndecodableError):
        asyncio.run(one.invoke([event_of(orders, 1, item="tea")]))
    assert len(caught) == 1


def test_a_timeout_names_the_processor() -> None:
    async def hang(order: Order) -> None:
        await asyncio.sleep(3600)

    async def own(order: Order) -> None:
        raise TimeoutError("of something else")

    one, orders = declared_each(hang, timeout=0.01)
    with pytest.raises(TimeoutError, match=r"processor 'it' took longer than its timeout, 0.01 s") as raised:
        asyncio.run(one.invoke([event_of(orders, 1)]))
    assert raised.value.__cause__ is not None
    with pytest.raises(TimeoutError, match="of something else"):
        asyncio.run(declared_each(own, timeout=60)[0].invoke([event_of(orders, 1)]))


# -- Runnel's form -------------------------------------------------------------------------------------------
def declared_events(function: Any, **options: Any) -> tuple[Processor, Topic[Any]]:
    app, orders = made()
    app.processor(orders, name="it", **options)(function)
    return app.processors["it"], orders


def run(declared: Processor, orders: Topic[Any], numbers: Sequence[int]) -> tuple[MemoryFeed, Events[Any]]:
    """Call it with these events; returns the feed, and the Events as they are then."""
    feed = MemoryFeed(event_of(orders, number) for number in numbers)
    events = Events(orders, 2, feed)
    asyncio.run(declared.invoke_events(events))
    return feed, events


def fail(declared: Processor, orders: Topic[Any], numbers: Sequence[int]) -> tuple[MemoryFeed, list[int], Exception]:
    """Call it, and it fails: the feed, what was in hand, the error."""
    feed = MemoryFeed(event_of(orders, number) for number in numbers)
    events = Events(orders, 2, feed)
    with pytest.raises(Exception) as raised:
        asyncio.run(declared.invoke_events(events))
    return feed, [event.id.ms for event in events.in_flight], raised.value


async def _note(events: Sequence[Event[Any]], call_next: CallNext) -> None:
    await call_next(events)


@pytest.mark.parametrize("middleware", [[], [_note]], ids=["bare", "layered"])
def test_records_events_and_batches(middleware: list[Any]) -> None:
    seen: list[Any] = []

    async def records(events: Events[Order]) -> None:
        async for order in events.records():
            seen.append(order.id)

    async def single(events: Events[Order]) -> None:
        assert (events.partition, events.topic.name) == (2, "orders")
        async for event in events:
            seen.append(event.id.ms)

    async def batches(events: Events[Order]) -> None:
        async for batch in events.batches(Take(2, within=0.5)):
            seen.append([event.record.id for event in batch])

    for function, expected in ((records, [1, 2, 3]), (single, [1, 2, 3]), (batches, [[1, 2], [3]])):
        seen.clear()
        feed, events = run(*declared_events(function, middleware=middleware), [1, 2, 3])
        assert seen == expected
        assert feed.done == [1, 2, 3]
        assert events.ended
        assert not events.is_done
        assert events.in_flight == []
    assert feed.asked == [(2, 0.5)] * 3


@pytest.mark.parametrize("middleware", [[], [_note]], ids=["bare", "layered"])
def test_an_event_is_done_when_the_next_one_is_asked_for(middleware: list[Any]) -> None:
    async def picky(events: Events[Order]) -> None:
        async for order in events.records():
            if order.id == 2:
                raise ValueError("two")

    feed, in_flight, error = fail(*declared_events(picky, middleware=middleware), [1, 2, 3])
    assert (feed.done, in_flight, str(error)) == ([1], [2], "two")


@pytest.mark.parametrize("middleware", [[], [_note]], ids=["bare", "layered"])
def test_failures_without_an_event(middleware: list[Any]) -> None:
    async def setup(events: Events[Order]) -> None:
        raise ValueError("no database")

    feed, in_flight, error = fail(*declared_events(setup, middleware=middleware), [1])
    assert (feed.done, in_flight, str(error)) == ([], [], "no database")


@pytest.mark.parametrize("middleware", [[], [_note]], ids=["bare", "layered"])
def test_an_entry_that_is_no_record(middleware: list[Any]) -> None:
    async def records(events: Events[Order]) -> None:
        async for _ in events.records():
            pass

    declared, orders = declared_events(records, middleware=middleware)
    feed = MemoryFeed([event_of(orders, 1), event_of(orders, 2, price="5")])
    events = Events(orders, 2, feed)
    with pytest.raises(UndecodableError):
        asyncio.run(declared.invoke_events(events))
    assert (feed.done, [event.id.ms for event in events.in_flight]) == ([1], [2])


@pytest.mark.parametrize("middleware", [[], [_note]], ids=["bare", "layered"])
def test_an_early_return_is_an_error_unless_it_is_meant(middleware: list[Any]) -> None:
    async def early(events: Events[Order]) -> None:
        async for _ in events.records():
            return

    async def meant(events: Events[Order]) -> None:
        async for order in events.records():
            if order.id == 2:
                events.done()

    feed, in_flight, error = fail(*declared_events(early, middleware=middleware), [1, 2, 3])
    assert (feed.done, in_flight) == ([], [1])
    assert isinstance(error, EarlyReturnError)
    feed, events = run(*declared_events(meant, middleware=middleware), [1, 2, 3])
    assert (feed.done, events.is_done, events.in_flight) == ([1, 2], True, [])


def test_the_timeout_is_that_of_an_event() -> None:
    async def slow(events: Events[Order]) -> None:
        async for order in events.records():
            if order.id == 2:
                await asyncio.sleep(3600)

    class Waits(MemoryFeed):
        async def next(self, count: int, within: float) -> list[Event[Any]]:
            await asyncio.sleep(0.05)  # longer than the timeout: waiting for events is no work
            return await super().next(count, within)

    declared, orders = declared_events(slow, timeout=0.02)
    feed = Waits([event_of(orders, 1), event_of(orders, 2)])
    events = Events(orders, 2, feed)
    with pytest.raises(TimeoutError, match="processor 'it' took longer than its timeout"):
        asyncio.run(declared.invoke_events(events))
    assert (feed.done, [event.id.ms for event in events.in_flight]) == ([1], [2])


async def _stopped(declared: Processor, events: Events[Any], started: asyncio.Event) -> None:
    task = asyncio.create_task(declared.invoke_events(events))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}  # no middleware is left behind


def test_a_cancellation_goes_through() -> None:
    told: list[str] = []
    started = asyncio.Event()

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        try:
            await call_next(events)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    async def hang(events: Events[Order]) -> None:
        async for _ in events.records():
            started.set()
            await asyncio.sleep(3600)

    declared, orders = declared_events(hang, middleware=[layer])
    events = Events(orders, 2, MemoryFeed([event_of(orders, 1)]))
    asyncio.run(_stopped(declared, events, started))
    assert told == ["cancelled"]


def test_a_cancellation_leaves_in_hand_what_the_feed_gave() -> None:
    started = asyncio.Event()

    async def odd(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        await call_next([event for event in events if event.id.ms % 2])

    async def hang(events: Events[Order]) -> None:
        async for _ in events.batches(Take(3)):
            started.set()
            await asyncio.sleep(3600)

    declared, orders = declared_events(hang, middleware=[odd])
    events = Events(orders, 2, MemoryFeed(event_of(orders, number) for number in (1, 2, 3)))
    asyncio.run(_stopped(declared, events, started))
    assert [event.id.ms for event in events.in_flight] == [1, 2, 3]


def test_a_cancellation_reaches_middleware_that_waits() -> None:
    told: list[str] = []
    started = asyncio.Event()

    async def slow(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            told.append("ended")

    async def records(events: Events[Order]) -> None:
        async for _ in events.records():
            pass

    declared, orders = declared_events(records, middleware=[slow])
    events = Events(orders, 2, MemoryFeed([event_of(orders, 1)]))
    asyncio.run(_stopped(declared, events, started))
    assert told == ["ended"]


# -- middleware around Runnel's form -------------------------------------------------------------------------
async def _all(events: Events[Order]) -> None:
    async for order in events.records():
        if order.item == "bad":
            raise ValueError("bad")


def test_middleware_of_this_form_sees_the_same() -> None:
    told: list[Any] = []

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        (event,) = events
        if event.id.ms == 1:  # held back
            return
        if event.id.ms == 2:  # changed
            event.record = Order(2, "bad")
        try:
            await call_next(events)
        except ValueError as error:
            told.append((event.id.ms, str(error)))
            raise
        told.append(event.id.ms)

    feed, in_flight, error = fail(*declared_events(_all, middleware=[layer]), [1, 3, 2])
    assert told == [3, (2, "bad")]
    assert (feed.done, in_flight, str(error)) == ([1, 3], [2], "bad")


def test_middleware_of_this_form_keeps_an_error_back() -> None:
    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        events[0].record = Order(1, "bad")
        try:
            await call_next(events)
        except ValueError:
            pass

    feed, events = run(*declared_events(_all, middleware=[layer]), [1, 2])
    assert feed.done == [1]  # a success; the function has ended, and is to be called again
    assert (events.ended, events.is_done, events.in_flight) == (False, False, [])


@pytest.mark.parametrize("when", ["before", "after"])
def test_middleware_of_this_form_fails(when: str) -> None:
    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        if when == "before" and events[0].id.ms == 2:
            raise RuntimeError(when)
        await call_next(events)
        if events[0].id.ms == 2:
            raise RuntimeError(when)

    feed, in_flight, error = fail(*declared_events(_all, middleware=[layer]), [1, 2, 3])
    assert (feed.done, in_flight, str(error)) == ([1], [2], when)


def test_the_processor_may_say_more_about_an_error_of_middleware() -> None:
    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        raise RuntimeError("of the layer")

    async def told(events: Events[Order]) -> None:
        try:
            async for _ in events.records():
                pass
        except RuntimeError as error:
            raise ValueError("of the processor") from error

    _, in_flight, error = fail(*declared_events(told, middleware=[layer]), [1])
    assert (in_flight, str(error), str(error.__cause__)) == ([1], "of the processor", "of the layer")


def test_middleware_of_this_form_passes_on_once() -> None:
    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        await call_next(events)
        await call_next(events)

    _, in_flight, error = fail(*declared_events(_all, middleware=[layer]), [1])
    assert in_flight == [1]
    assert str(error) == "in app.processor, middleware can call call_next only once for the same events"


def test_middleware_of_this_form_passes_on_fewer() -> None:
    seen: list[list[int]] = []

    async def odd(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        await call_next([event for event in events if event.id.ms % 2])

    async def batches(events: Events[Order]) -> None:
        async for batch in events.batches(Take(2)):
            seen.append([event.id.ms for event in batch])

    feed, _ = run(*declared_events(batches, middleware=[odd]), [1, 2, 4, 6, 7, 8])
    assert (seen, feed.done) == ([[1], [7]], [1, 2, 4, 6, 7, 8])


def test_layers_have_a_context_of_their_own() -> None:
    """What the docs say about context variables."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")
    seen: list[str] = []

    async def layer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        name.set("layer")
        await call_next(events)

    async def records(events: Events[Order]) -> None:
        async for _ in events.records():
            seen.append(name.get())

    async def record(order: Order) -> None:
        seen.append(name.get())

    run(*declared_events(records, middleware=[layer]), [1])
    one, orders = declared_each(record, middleware=[layer])
    asyncio.run(one.invoke([event_of(orders, 1)]))
    assert seen == ["", "layer"]
