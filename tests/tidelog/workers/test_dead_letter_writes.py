"""Dead letters that the server rejects, and streams that change their type."""


from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, orders, pending, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.client.steps import run
from tidelog.testing import Server
from tidelog.topics import Topic, deadletters, partition_of
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.call import Call
from tidelog.workers import App, DeadLetter, Event, Worker
from tidelog.workers.execution.transactions import Committer


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
                committer = running[0].executors["bill"].lines[0].committer
                if then == "the worker stops":
                    running[0].stop()
                elif committer.claims.channel is not None:
                    channel = committer.claims.channel
                    monkeypatch.setattr(channel, "data_received", lambda _: channel.close("cut off"))
            elif event.record.id == 0:
                await event.send(out, event.record)

        await topic.send(Order(0))
        async with working(app) as worker:
            running.append(worker)
            await until(lambda: worker.stats["bill"].acknowledged == 1)
            await topic.send_many([Order(1), Order(2), Order(3)])
            stats = worker.stats["bill"]
            await until(lambda: stats.deadlettered or worker.executors["bill"].lines[0].reads.closed)
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
    settle = Committer.settle
    written: list[int] = []

    async def main(client: Client) -> None:
        topic = changing_type(app, client)
        tasks = []

        async with working(app) as worker:
            executor = worker.executors["bill"]

            async def released() -> None:
                await executor.failures.settled(executor.partitions[0])
                written.append(executor.stats.deadlettered)

            def settled(self: Committer, commit: Any, failed: Exception | None = None) -> None:
                if failed is not None:  # the task goes on before the callbacks of the commit
                    tasks.append(asyncio.create_task(released()))
                settle(self, commit, failed)

            await topic.send(Order(1))
            await until(lambda: executor.stats.acknowledged == 1)
            monkeypatch.setattr(Committer, "settle", settled)
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
