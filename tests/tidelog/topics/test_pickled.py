"""Topics in other processes: pickled by multiprocessing, by joblib, by Spark."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from dataclasses import make_dataclass
from typing import Any

import pytest

from tests.tidelog.topics.pickledshop import Order, by_item, send
from tidelog import Access, AsyncClient, Client
from tidelog.testing import Server
from tidelog.topics import SyncTopic, Topic, TopicError

cloudpickle: Any = pytest.importorskip("pyspark.cloudpickle", reason="no pyspark here")

PICKLERS = [pickle, cloudpickle]


def declared(topic: Topic[Any]) -> Any:
    return topic.name, topic.declared, topic.url, topic.access, topic.codec.name, topic.codec.shape.type


@pytest.mark.parametrize("pickler", PICKLERS)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"partition_by": "id", "partitions": 4}, {"partition_by": by_item, "codec": "json+zstd"},
        {"partition_size": 10, "max_age": 1.5, "overflow": "drop"}, {"partition_size": 10, "hard_limit": 20},
        {"url": "redis://h"}, {"access": Access(("rediss://h",), password="x", ca_file="/ca")},
    ],
)  # fmt: skip
def test_it_is_declared_there_as_here(pickler: Any, options: dict[str, Any]) -> None:
    topic: Topic[Order] = Topic("orders", Order, **options)
    again = pickler.loads(pickler.dumps(topic))
    assert isinstance(again, Topic)
    assert declared(again) == declared(topic)
    assert again.key(Order(7, "tea")) == topic.key(Order(7, "tea"))


def test_types_and_functions_of_a_script_go_with_cloudpickle() -> None:
    """Spark pickles what a script or a notebook defines by value, with what msgspec has put there."""
    line: Any = make_dataclass("Line", [("item", str)])
    kind: Any = make_dataclass("Local", [("a", int), ("lines", list[line])])
    for made in (kind, line):
        made.__module__ = "__main__"
    topic: Topic[Any] = Topic("orders", kind, partition_by=lambda record: record.a % 3, partitions=4)
    assert cloudpickle.loads(cloudpickle.dumps(kind))(5, []).a == 5  # the function that sends has it too
    entry = topic.codec.encode(kind(5, [line("tea")]))
    again = cloudpickle.loads(cloudpickle.dumps(topic))
    assert again.key(again.codec.shape.type(5, [])) == 2
    assert again.codec.record(entry[1][0]).lines[0].item == "tea"
    assert topic.codec.encode(kind(5, [line("tea")])) == entry
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(topic)


def test_with_open_connections_and_what_the_server_said(tidelog_server: Server) -> None:
    topic: Topic[Order] = Topic("orders", Order, partition_by="id", url=tidelog_server.url)
    topic.sync.send(Order(1, "tea"))

    async def there() -> bytes:
        await topic.send(Order(2, "tea"))
        made = pickle.dumps(topic)
        await topic.close()
        return made

    again: Topic[Order] = pickle.loads(asyncio.run(there()))
    assert again.partitions == 16  # nobody has to ask again to know the partition of a record
    assert again.partition(Order(1, "tea")) == topic.partition(Order(1, "tea"))
    assert not again.agreed
    sync: SyncTopic[Order] = pickle.loads(pickle.dumps(topic.sync))
    assert sync.topic.name == "orders"
    sync.send(Order(3, "tea"))
    sync.close()
    topic.sync.close()


def test_clients_that_were_given_do_not_go_with_it(tidelog_server: Server) -> None:
    topic: Topic[Order] = Topic("orders", Order)
    with tidelog_server.client() as client:
        topic.use(AsyncClient(tidelog_server.url), client)
        again: Topic[Order] = pickle.loads(pickle.dumps(topic))
        with pytest.raises(TopicError, match="has no server"):
            again.sync.send(Order(1, "tea"))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_another_process_sends(tidelog_server: Server, method: str) -> None:
    topic: Topic[Order] = Topic(
        "orders", Order, partition_by=by_item, partitions=3, access=Access((tidelog_server.url,))
    )
    topic.sync.send(Order(0, "tea"))
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(send, [(topic, 10), (topic, 20)])
    assert found == [topic.partition(Order(0, "milk"))] * 2
    topic.sync.close()
    with Client(tidelog_server.url) as client:
        assert sum(client.tlen(f"orders:{at}") for at in range(3)) == 5
