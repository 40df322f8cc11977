"""The status of an app with many partitions: it is read in slices, with a limit if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tidelog.client.steps import drive, run
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.transport.call import Call
from tidelog.workers import App
from tidelog.workers.operate.status import SLICE, AppStatus, read_status

LARGE = 2 * SLICE + 1  # partitions


class Order(msgspec.Struct):
    id: int


@pytest.fixture
def shop(tidelog_server: Server) -> App:
    """Two processors of a topic with LARGE partitions, one of a topic with 3, and one of a topic that is missing."""
    app = App("shop", tidelog_server.url)
    topics: list[Topic[Any]] = [app.topic(name, Order, partitions=LARGE) for name in ("orders", "missing")]
    topics.append(app.topic("small", Order, partitions=3))

    async def processor(order: Order) -> None: ...

    for name, topic in zip(("bill", "wait", "pack"), topics, strict=True):
        app.each(topic, ordering="partition", name=name)(processor)
    app.each(topics[0], ordering="none", name="mail")(processor)
    with tidelog_server.client() as client:
        for topic in (topics[0], topics[2]):
            run(client, topic.agree())
            topic.close_sync()
        for at in (0, SLICE - 1, SLICE, LARGE - 1):
            client.tmappend(f"orders:{at}", ["id"], [(number,) for number in range(at % 7 + 1)])
    return app


def read(server: Server, app: App, **options: Any) -> tuple[AppStatus, int]:
    """Return the status, and the largest number of calls that were sent together."""
    largest = 0
    with server.client() as client:

        def send(calls: Sequence[Call[Any]]) -> list[Any]:
            nonlocal largest
            largest = max(largest, len(calls))
            return client.together(*calls, raise_on_error=False)

        return drive(send, read_status(app, **options)), largest


def test_many_partitions_are_read_in_slices(tidelog_server: Server, shop: App) -> None:
    seen, largest = read(tidelog_server, shop)
    assert largest <= 3 * SLICE
    assert [len(each.partitions) for each in seen.processors] == [LARGE, 0, 3, LARGE]
    for processor in (seen.processors[0], seen.processors[3]):
        assert [each.partition for each in processor.partitions] == list(range(LARGE))
        lags = {each.partition: each.lag for each in processor.partitions if each.lag}
        assert lags == {at: at % 7 + 1 for at in (0, SLICE - 1, SLICE, LARGE - 1)}
    assert {each.omitted for each in seen.processors} == {0}


def test_processors_share_a_limit(tidelog_server: Server, shop: App) -> None:
    """The small topic is read in full."""
    seen, _ = read(tidelog_server, shop, limit=10)
    assert [len(each.partitions) for each in seen.processors] == [3, 0, 3, 4]
    assert [each.omitted for each in seen.processors] == [LARGE - 3, 0, 0, LARGE - 4]
    seen, _ = read(tidelog_server, shop, names=["bill"], limit=10)
    assert [(len(each.partitions), each.omitted) for each in seen.processors] == [(10, LARGE - 10)]
