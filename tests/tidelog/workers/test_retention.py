"""The leader's maintenance: what retention gives up is evicted, and nothing that a processor needs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, pending, working
from tests.waiting import until
from tidelog import AsyncClient, Client
from tidelog.client import steps, strings
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.topics.admin import alter, grow
from tidelog.topics.settings import Retention
from tidelog.workers import App
from tidelog.workers.coordination.retention import RetentionTask


def shop(server: Server, **options: Any) -> tuple[App, Topic[Order]]:
    """An app with a processor ``bill`` of the topic ``orders``."""
    app = App("shop", server.url)
    topic = app.topic("orders", Order, partition_by="id", partitions=2, **options)

    @app.each(topic)
    async def bill(order: Order) -> None: ...

    return app, topic


def filled(client: Client, topic: Topic[Order], number: int = 100) -> None:
    topic.sync.send_many([Order(n) for n in range(number)])
    topic.sync.close()


def lengths(client: Client) -> int:
    return sum(client.tlen(f"orders:{at}") for at in range(2))


def evict(client: Client, app: App) -> tuple[int, bool]:
    """One look at the topic: how many entries went, whether its length has changed."""
    made = RetentionTask("shop", app.topics, app.processors.values(), AsyncClient())
    changed = steps.run(client, made.evict("orders"))
    return made.evicted, changed


def read(client: Client, group: str, number: int, acknowledge: bool = True) -> None:
    """Read so many entries of each partition for a group."""
    for at in range(2):
        batch = client.tread(f"orders:{at}", "0", number, group=group, retry=60_000)
        if acknowledge:
            client.tack(f"orders:{at}", group, *[entry.id for entry in batch.entries])


def test_what_all_groups_have_finished_goes(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server, partition_size=10)
    filled(client, topic)
    read(client, "shop.bill", 100)
    read(client, "spark", 20)
    assert evict(client, app) == (40, True)
    read(client, "spark", 100)
    assert evict(client, app) == (40, True)
    assert lengths(client) == 20
    assert evict(client, app) == (0, True)  # of another Maintenance; it has not seen it before


def test_pending_messages_stay(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server, partition_size=10)
    filled(client, topic)
    read(client, "shop.bill", 100, acknowledge=False)
    assert evict(client, app) == (0, True)
    assert lengths(client) == 100


def test_nothing_goes_before_each_processor_has_its_group(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server, partition_size=10)
    filled(client, topic)
    read(client, "spark", 100)
    assert evict(client, app) == (0, True)
    assert lengths(client) == 100


def test_by_age(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server, max_age=0.05)
    filled(client, topic)
    read(client, "shop.bill", 100)
    steps.run(client, _aged())
    assert evict(client, app)[0] == 100


def _aged() -> steps.Steps[None]:
    """Wait until the server's clock is so much further."""
    (began,) = yield [strings.server_time()]
    now = began
    while now < began + 60:
        (now,) = yield [strings.server_time()]


def test_what_drops_is_trimmed_too(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server, max_age=0.05, overflow="drop")
    filled(client, topic)
    steps.run(client, _aged())
    evict(client, app)
    assert lengths(client) == 0


def test_a_group_that_nobody_has_any_more_is_named(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app, topic = shop(tidelog_server, partition_size=10)
    filled(client, topic)
    read(client, "shop.bill", 100)
    read(client, "shop.old", 1)
    made = RetentionTask("shop", app.topics, app.processors.values(), AsyncClient())
    steps.run(client, made.evict("orders"))
    assert made.evicted == 2
    for _ in range(2):
        steps.run(client, made.evict("orders"))
    assert caplog.text.count("the group shop.old, which no processor of the app uses") == 1
    assert "TGROUP DESTROY orders:N shop.old" in caplog.text


def test_a_processor_that_has_not_begun_is_named(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app, topic = shop(tidelog_server, partition_size=10)
    filled(client, topic)
    read(client, "spark", 100)
    made = RetentionTask("shop", app.topics, app.processors.values(), AsyncClient())
    for _ in range(2):
        steps.run(client, made.evict("orders"))
    assert made.evicted == 0
    assert caplog.text.count("shop.bill has not. Does a worker run it?") == 1


def test_a_topic_that_has_grown_is_named(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app, topic = shop(tidelog_server)
    filled(client, topic)
    made = RetentionTask("shop", app.topics, app.processors.values(), AsyncClient())
    steps.run(client, made.evict("orders"))
    grow(client, "orders", 4)
    for _ in range(2):
        steps.run(client, made.evict("orders"))
    assert caplog.text.count("topic orders: it had 2 partitions and now has 4") == 1


@pytest.mark.parametrize("key", ["topic:a", "a:0"])
def test_a_topic_that_can_not_be_read_does_not_hold_up_the_others(
    tidelog_server: Server, client: Client, key: str
) -> None:
    async def main() -> None:
        app, topic = shop(tidelog_server, partition_size=10)
        app.topic("a", Order, partition_by="id", partitions=2, partition_size=10)
        filled(client, app.topics["a"])
        app.topics["a"].sync.close()
        async with working(app):
            client.redis.set(key, "text")
            await topic.send_many([Order(n) for n in range(100)])
            await until(lambda: lengths(client) == 20)

    asyncio.run(main())


def test_topics_without_limits_cost_one_call(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server)
    filled(client, topic)
    made = RetentionTask("shop", app.topics, app.processors.values(), AsyncClient())
    operation = made.evict("orders")
    (call,) = next(operation)
    assert call.args[0] == "GET"
    with pytest.raises(StopIteration):
        operation.send([client.redis.get("topic:orders")])


def test_a_running_worker_does_it(tidelog_server: Server, client: Client) -> None:
    """Also with a retention that is changed while it runs."""

    async def main() -> None:
        app, topic = shop(tidelog_server)
        async with working(app) as worker:
            await topic.send_many([Order(n) for n in range(1000)])
            await until(lambda: worker.stats["bill"].acknowledged == 1000)
            assert lengths(client) == 1000
            await asyncio.to_thread(alter, client, "orders", Retention(partition_size=10))
            await until(lambda: lengths(client) == 20)
            assert pending(client, app, "bill") == 0

    asyncio.run(main())
