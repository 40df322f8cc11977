"""What becomes of events when functions, streams and declarations do what they should not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, pending, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.client.steps import run
from tidelog.testing import Server
from tidelog.topics import Topic, admin, deadletters, partition_of
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.call import Call
from tidelog.workers import App, DeadLetter, Event, Events, Halt, Retry, Skip, Take, Worker
from tidelog.workers.execution import worker as worker_module
from tidelog.workers.execution.transactions import Committer

SOON = Retry(2, first=0.01, most=0.02)


@pytest.fixture
def app(tidelog_server: Server) -> App:
    return App("shop", tidelog_server.url, lease=20.0, grace=20.0)


def orders(app: App, partitions: int | None = 1) -> Topic[Any]:
    return app.topic("orders", Order, partition_by="key", partitions=partitions)


@pytest.mark.parametrize("form", ["each", "event", "key", "none", "batch", "events"])
def test_a_cancellation_that_nobody_asked_for_is_a_failure(app: App, tidelog_server: Server, form: str) -> None:
    """Such as that of a task that the function waits for: the processor goes on behind it."""
    topic = orders(app)
    on_error = [SOON, DeadLetter()]
    seen: list[int] = []

    async def see(order: Order) -> None:
        seen.append(order.id)
        if order.id == 3:
            waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waited.cancel()
            await waited

    if form in ("each", "key", "none"):
        ordering: Any = "partition" if form == "each" else form

        @app.each(topic, name="bill", ordering=ordering, concurrency=1, on_error=on_error)
        async def bill(order: Order) -> None:
            await see(order)

    elif form == "event":

        @app.each(topic, name="bill", on_error=on_error)
        async def bill_event(event: Event[Order]) -> None:
            await see(event.record)

    elif form == "batch":

        @app.batch(topic, name="bill", take=Take(1), on_error=on_error)
        async def bill_batch(batch: list[Order]) -> None:
            await see(batch[0])

    else:

        @app.processor(topic, name="bill", on_error=on_error)
        async def bill_events(events: Events[Order]) -> None:
            async for order in events.records():
                await see(order)

    async def main(client: Client) -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(6))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 6)
            await until(lambda: worker.stats["bill"].deadlettered == 1)  # counted after the acknowledgement
        assert seen.count(3) == 3
        (letter,) = client.trange("orders.dead:0")
        assert b"CancelledInsideError" in (letter["dlq:error"] or b"")

    with tidelog_server.client() as client:
        asyncio.run(main(client))


class Unforeseen(BaseException):
    """No Exception, and no cancellation."""


class StrFailsError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)


RAISED = [SystemExit, GeneratorExit, asyncio.CancelledError, Unforeseen, StrFailsError, UnpicklableError]
FORMS = ["each", "key", "none", "event", "batch", "batch-none", "events", "layered"]


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_raised_the_policy_gets_it(
    app: App, tidelog_server: Server, form: str, raised: type[BaseException]
) -> None:
    topic = orders(app)
    seen: list[int] = []
    options: dict[str, Any] = {"name": "bill", "on_error": [Retry(1, first=0.001), DeadLetter()]}

    async def see(order: Order) -> None:
        seen.append(order.id)
        if order.id == 3:
            raise raised

    async def layer(events: Any, call_next: Any) -> None:
        await call_next(events)
        for event in events:
            await see(event.record)

    if form in ("each", "key", "none"):

        @app.each(topic, ordering="partition" if form == "each" else form, **options)  # type: ignore[arg-type]
        async def bill(order: Order) -> None:
            await see(order)

    elif form == "event":

        @app.each(topic, **options)
        async def bill_event(event: Event[Order]) -> None:
            await see(event.record)

    elif form.startswith("batch"):

        @app.batch(topic, take=Take(1), ordering="none" if form.endswith("none") else "partition", **options)
        async def bill_batch(batch: list[Order]) -> None:
            await see(batch[0])

    elif form == "events":

        @app.processor(topic, **options)
        async def bill_events(events: Events[Order]) -> None:
            async for order in events.records():
                await see(order)

    else:

        @app.processor(topic, middleware=[layer], **options)
        async def bill_layered(events: Events[Order]) -> None:
            async for _ in events.records():
                pass

    async def main(client: Client) -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(6))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 6)
            await until(lambda: worker.stats["bill"].deadlettered == 1)
        assert seen.count(3) == 2
        (letter,) = client.trange("orders.dead:0")
        assert letter["dlq:attempts"] == b"2"
        told = (letter["dlq:error"] or b"") + (letter["dlq:message"] or b"") + (letter["dlq:traceback"] or b"")
        assert raised.__name__.encode() in told

    with tidelog_server.client() as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("form", ["each", "key", "none", "events"])
def test_an_event_that_is_given_back_knows_its_attempt(app: App, form: str) -> None:
    """Also at another worker."""
    topic = orders(app)
    seen: list[int] = []

    def see(event: Event[Order]) -> None:
        seen.append(event.attempt)
        if len(seen) < 5:
            event.nack()
        else:
            event.ack()

    if form == "events":

        @app.processor(topic, name="bill", ack="manual")
        async def bill_events(events: Events[Order]) -> None:
            async for event in events:
                see(event)

    else:

        @app.each(topic, name="bill", ack="manual", ordering="partition" if form == "each" else form)  # type: ignore[arg-type]
        async def bill(event: Event[Order]) -> None:
            see(event)
            if len(seen) == 3:
                await asyncio.sleep(0)

    async def main() -> None:
        await topic.send(Order(1))
        async with working(app):
            await until(lambda: len(seen) == 5)
        assert seen == [1, 2, 3, 4, 5]

    asyncio.run(main())


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_an_attempt_is_known_to_the_next_worker(app: App, tidelog_server: Server, ordering: Any) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, name="bill", ack="manual", ordering=ordering)
    async def bill(event: Event[Order]) -> None:
        seen.append(event.attempt)
        if len(seen) < 3:
            event.nack(delay=0.2)
        else:
            event.ack()

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        for count in (1, 2, 3):
            async with working(app) as worker:
                await until(lambda: len(seen) == count)  # noqa: B023
                await until(lambda: count < 3 or worker.stats["bill"].acknowledged == 1)  # noqa: B023
        assert seen == [1, 2, 3]
        await until(lambda: not client.redis.keys("app:shop:tried:*"))  # what is settled leaves nothing

    with tidelog_server.client() as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_before_has_retries_and_an_ending_too(app: App, tidelog_server: Server, ordering: Any) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, ordering=ordering, ack="before", on_error=[SOON, DeadLetter()])
    async def bill(order: Order) -> None:
        seen.append(order.id)
        raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(120))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].deadlettered == 120)
        assert len(seen) == 360

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert client.tlen("orders.dead:0") == 120


def test_before_with_a_loop_is_tried_again(app: App) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.processor(topic, ack="before", on_error=[SOON, DeadLetter()])
    async def bill(events: Events[Order]) -> None:
        async for order in events.records():
            seen.append(order.id)
            if order.id == 1 and seen.count(1) < 3:
                raise ValueError("twice")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(3))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].finished == 3)
        assert seen == [0, 1, 1, 1, 2]

    asyncio.run(main())


def test_a_halt_of_what_is_acknowledged_before_does_not_hold_up_the_end(app: App) -> None:
    topic = orders(app)

    @app.each(topic, ordering="key", ack="before", on_error=[Halt()])
    async def bill(_: Order) -> None:
        raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(5))
        async with working(app) as worker:
            partitions = worker.executors["bill"].partitions
            await until(lambda: partitions)
            (partition,) = partitions.values()
            await until(lambda: partition.ended)  # long before the grace is over
        assert worker.stats["bill"].failed == 1

    async def limited() -> None:
        async with asyncio.timeout(15):
            await main()

    asyncio.run(limited())


def test_a_queue_knows_the_attempt(app: App) -> None:
    topic = orders(app)
    attempts: dict[int, list[int]] = {}

    @app.each(topic, ordering="none", on_error=[SOON, Skip()])
    async def bill(event: Event[Order]) -> None:
        attempts.setdefault(event.record.id, []).append(event.attempt)
        if event.record.id % 3 == 0:
            raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(30))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 30)
        assert attempts == {number: [1, 2, 3] if number % 3 == 0 else [1] for number in range(30)}

    asyncio.run(main())


@pytest.mark.parametrize("form", ["records", "events", "loop"])
def test_an_entry_of_a_batch_that_is_no_record_is_given_up_alone(
    app: App, tidelog_server: Server, form: str
) -> None:  # fmt: skip
    topic = orders(app)
    good: list[int] = []
    on_error = [SOON, DeadLetter()]

    async def through(_: Any, call_next: Any) -> None:
        await call_next(_)

    if form == "records":

        @app.batch(topic, name="bill", take=Take(10, within=5), middleware=[through], on_error=on_error)
        async def bill(batch: list[Order]) -> None:
            good.extend(order.id for order in batch)

    elif form == "events":

        @app.batch(topic, name="bill", take=Take(10, within=5), on_error=on_error)
        async def bill_events(batch: list[Event[Order]]) -> None:
            good.extend([event.record.id for event in batch])

    else:

        @app.processor(topic, name="bill", on_error=on_error)
        async def bill_loop(events: Events[Order]) -> None:
            async for batch in events.batches(Take(10, within=5)):
                good.extend([event.record.id for event in batch])

    async def main(client: Client) -> None:
        await topic.ready()
        for number in range(10):
            client.tappend("orders:0", {"id": "none" if number in (2, 5) else str(number), "key": "k"})
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)
            await until(lambda: worker.stats["bill"].deadlettered == 2)
        assert good == [0, 1, 3, 4, 6, 7, 8, 9]

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_batch_of_a_loop_that_fails_is_tried_again_as_it_was(app: App) -> None:
    """Though more has come meanwhile: otherwise it would count as another one, and be tried for ever."""
    topic = orders(app)
    batches: list[list[int]] = []

    @app.processor(topic, on_error=[SOON, Skip()])
    async def bill(events: Events[Order]) -> None:
        async for batch in events.batches(Take(100, within=0)):
            batches.append([event.record.id for event in batch])
            if any(event.record.id < 2 for event in batch):
                await topic.send_many(Order(100 + len(batches)) for _ in range(3))
                raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(2))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 11)
        assert batches[:3] == [[0, 1]] * 3

    asyncio.run(main())


def test_a_full_batch_does_not_wait_for_its_time(app: App) -> None:
    """Though the buffer is more than half full, and has no room for more by itself."""
    topic = orders(app)
    sizes: list[int] = []

    @app.batch(topic, take=Take(100, within=3600), prefetch=100)
    async def bill(batch: list[Order]) -> None:
        sizes.append(len(batch))

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(70))
        async with working(app) as worker:
            partitions = worker.executors["bill"].partitions
            await until(lambda: partitions)
            (partition,) = partitions.values()
            await until(lambda: len(partition.buffer.rows) == 70)
            await topic.send_many(Order(number) for number in range(30))
            await until(lambda: sizes)
        assert sizes == [100]

    asyncio.run(main())


def test_a_letter_has_the_key_of_its_topic(app: App, tidelog_server: Server) -> None:
    topic = orders(app, 8)

    @app.each(topic, ordering="key", key=lambda order: order.id, on_error=[DeadLetter()])
    async def bill(_: Order) -> None:
        raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(20))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].deadlettered == 20)

    asyncio.run(main())
    with tidelog_server.client() as client:
        entries, _ = run(client, deadletters.page("orders.dead"))
        letters = [deadletters.read(entry) for entry in entries]
        assert {letter.key for letter in letters} == {f"k{number}".encode() for number in range(20)}
        assert all(partition_of(letter.key, 8) == letter.partition for letter in letters)


def test_an_ending_that_the_server_refuses_stops_nobody(
    app: App, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.workers.execution.failures.REFUSED", 0.05)
    topic = orders(app)

    @app.each(topic, ordering="key", on_error=[DeadLetter()])
    async def bill(order: Order) -> None:
        if order.id == 0:
            raise ValueError("always")

    async def main(client: Client) -> None:
        client.redis.set("orders.dead:0", "no stream")
        await topic.send_many(Order(number, f"k{number}") for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 9 and worker.stats["bill"].failed > 2)
            client.redis.delete("orders.dead:0")
            await until(lambda: worker.stats["bill"].acknowledged == 10)
        assert client.tlen("orders.dead:0") == 1

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_stream_that_becomes_another_type_loses_no_event(app: App, tidelog_server: Server) -> None:
    topic = orders(app)
    out = app.topic("out", Order, partitions=1)

    @app.each(topic, transactional=True)
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 1)
            client.redis.delete("out:0")
            client.redis.set("out:0", "no stream")
            await topic.send(Order(2))
            await until(lambda: worker.stats["bill"].deadlettered == 1)  # known after the fact
            await topic.send(Order(3))
            await until(lambda: worker.stats["bill"].deadlettered == 2)  # known before
        assert pending(client, app, "bill") == 0
        assert [int(letter["id"] or 0) for letter in client.trange("orders.dead:0")] == [2, 3]

    with tidelog_server.client() as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("then", ["the worker stops", "the reply is lost"])
def test_a_stream_that_becomes_another_type_and_then(
    app: App, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The event is acknowledged and not all of it appended: it becomes a letter all the same, and others are whole."""
    topic = orders(app)
    out = app.topic("out", Order, partitions=1)
    other = app.topic("other", Order, partitions=1)

    async def main(client: Client) -> None:
        running: list[Worker] = []

        @app.each(topic, transactional=True)
        async def bill(event: Event[Order]) -> None:
            await event.send(other, event.record)
            if event.record.id == 2:
                await event.send(out, event.record)
                client.redis.delete("out:0")
                client.redis.set("out:0", "no stream")
                committer = running[0].executors["bill"]._committer
                if then == "the worker stops":
                    running[0].stop()
                elif committer._channel is not None:
                    channel = committer._channel
                    monkeypatch.setattr(channel, "data_received", lambda _: channel.close("cut off"))
            elif event.record.id == 0:
                await event.send(out, event.record)

        await topic.send(Order(0))
        async with working(app) as worker:
            running.append(worker)
            await until(lambda: worker.stats["bill"].acknowledged == 1)
            await topic.send_many([Order(1), Order(2), Order(3)])
            stats = worker.stats["bill"]
            await until(lambda: stats.deadlettered or worker.executors["bill"]._reads._closed)
        assert [int(letter["id"] or 0) for letter in client.trange("orders.dead:0")] == [2]
        whole = [int(entry["id"]) for entry in client.trange("other:0")]
        assert whole == list(range(len(whole)))
        assert len(whole) + pending(client, app, "bill") == 4

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def changing_type(app: App, client: Client) -> Topic[Any]:
    """A processor whose second event turns the stream that it sends to into another type."""
    topic = orders(app)
    out = app.topic("out", Order, partitions=1)

    @app.each(topic, transactional=True)
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)
        if event.record.id == 2:
            client.redis.delete("out:0")
            client.redis.set("out:0", "no stream")

    return topic


def test_a_letter_about_what_is_acknowledged_is_written_again_if_the_server_did_not_take_it(
    app: App, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event is pending no more: that says nothing about the letter."""
    send = AsyncConnection.send
    cut: list[AsyncConnection] = []

    def cut_off(self: AsyncConnection, made: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        letter = any(b"orders.dead:0" in (call.packed or b"") for call in made)
        if letter and not cut and made[0].args == ("MULTI",):
            cut.append(self)
            self.close("cut off")
        return send(self, made)

    async def main(client: Client) -> None:
        topic = changing_type(app, client)
        await topic.send(Order(1))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 1)
            monkeypatch.setattr(AsyncConnection, "send", cut_off)
            await topic.send(Order(2))
            await until(lambda: worker.stats["bill"].deadlettered == 1)
        assert cut
        assert [int(letter["id"] or 0) for letter in client.trange("orders.dead:0")] == [2]

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_release_waits_for_a_letter_that_was_found_necessary_at_that_moment(
    app: App, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Committer._settle
    written: list[int] = []

    async def main(client: Client) -> None:
        topic = changing_type(app, client)
        tasks = []

        async with working(app) as worker:
            executor = worker.executors["bill"]

            async def released() -> None:
                await executor._failures.settled(executor.partitions[0])
                written.append(executor.stats.deadlettered)

            def settled(self: Committer, commit: Any, failed: Exception | None = None) -> None:
                if failed is not None:  # the task goes on before the callbacks of the commit
                    tasks.append(asyncio.create_task(released()))
                settle(self, commit, failed)

            await topic.send(Order(1))
            await until(lambda: executor.stats.acknowledged == 1)
            monkeypatch.setattr(Committer, "_settle", settled)
            await topic.send(Order(2))
            await until(lambda: written)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
    assert written == [1]


def test_what_a_dead_letter_has_sent_is_thrown_away(app: App) -> None:
    topic = orders(app)
    out = app.topic("out", Order, partitions=1)

    @app.each(topic, transactional=True, on_error=[DeadLetter()])
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)
        raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].deadlettered == 10)
            (partition,) = worker.executors["bill"].partitions.values()
            assert partition.actions.waiting == 0

    asyncio.run(main())


def test_what_is_given_back_comes_again_at_once(app: App) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, ack="manual")
    async def bill(event: Event[Order]) -> None:
        seen.append(event.record.id)
        if seen.count(event.record.id) < 5:
            event.nack()
        else:
            event.ack()

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(200))
        async with asyncio.timeout(15), working(app) as worker:  # the lease is 20 s
            await until(lambda: worker.stats["bill"].acknowledged == 200)

    asyncio.run(main())


def test_nothing_is_remembered_of_events_that_may_go_to_another_worker(app: App) -> None:
    topic = orders(app)

    @app.each(topic, ack="manual", ordering="none")
    async def bill(event: Event[Order]) -> None:
        if event.record.id < 50:
            event.nack(delay=600)
        else:
            event.ack()

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(60))
        async with working(app) as worker:
            (partition,) = worker.executors["bill"].partitions.values()
            await until(lambda: worker.stats["bill"].acknowledged == 10 and not partition.buffer.in_flight)
            await until(lambda: not (partition.start_counts or partition.started or partition.suspects))

    asyncio.run(main())


def test_a_stream_that_cannot_be_read_does_not_hold_up_others(app: App, tidelog_server: Server) -> None:
    topic = orders(app, 2)
    seen: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async def main(client: Client) -> None:
        keys = {topic.partition(Order(0, f"k{number}")): f"k{number}" for number in range(50)}
        async with working(app) as worker:
            await until(lambda: len(worker.executors["bill"].partitions) == 2)
            await topic.send(Order(0, keys[0]))
            await topic.send(Order(0, keys[1]))
            await until(lambda: len(seen) == 2)
            client.redis.delete("orders:1")
            client.redis.set("orders:1", "no stream")
            async with asyncio.timeout(25):
                for number in range(1, 101):  # a second for each, if it held them up
                    await topic.send(Order(number, keys[0]))
                    await until(lambda number=number: number in seen)  # type: ignore[misc]

    with tidelog_server.client() as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_after_the_grace_what_is_in_work_is_cancelled(tidelog_server: Server, ordering: Any) -> None:
    app = App("shop", tidelog_server.url, lease=0.5, grace=0.5)
    topic = orders(app)
    inside, cancelled = asyncio.Event(), asyncio.Event()

    @app.each(topic, ordering=ordering)
    async def bill(_: Order) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        async with working(app) as worker:
            await inside.wait()
            executor = worker.executors["bill"]
            (partition,) = executor.partitions.values()
            await executor.released(0)
            assert cancelled.is_set()
            assert not partition.held
        assert pending(client, app, "bill") == 1

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_topic_that_grows_is_taken_up(
    app: App, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "GROWTH", 0.05)
    topic = orders(app, None)
    fixed = app.topic("fixed", Order, partition_by="key", partitions=1)
    seen: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    @app.each(topic, name="queue", ordering="none")
    async def queue(order: Order) -> None:
        seen.append(order.id)

    @app.each(fixed, name="other")
    async def other(_: Order) -> None: ...

    async def main(client: Client) -> None:
        sender: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=2, url=tidelog_server.url)
        await sender.send_many(Order(number, f"k{number}") for number in range(50))
        async with working(app) as worker:
            await until(lambda: len(seen) == 100)
            await asyncio.to_thread(admin.grow, client, "fixed", 3)
            await until(lambda: "fixed has changed" in caplog.text)
            await asyncio.to_thread(admin.grow, client, "orders", 4, True)
            await until(lambda: len(worker.executors["queue"].partitions) == 4)
            await until(lambda: len(worker.executors["bill"].partitions) == 4)
            grown: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=4, url=tidelog_server.url)
            await grown.send_many(Order(number, f"k{number}") for number in range(50, 100))
            await until(lambda: worker.stats["bill"].finished == worker.stats["queue"].finished == 100)
            await grown.close()
        await sender.close()
        assert sorted(seen) == sorted([*range(100)] * 2)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
