"""A producer whose partitions are on two server groups: each batch is appended once, whatever fails in between."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import redis
from click.testing import CliRunner

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.waiting import eventually
from tidelog import Client
from tidelog.cli.program import main
from tidelog.topics import Topic, admin, producer
from tidelog.topics.settings import TopicError
from tidelog.transport.backoff import Backoff
from tidelog.transport.errors import ConflictError, StaleEpochError
from tidelog.transport.slots import slot_of


class Order(msgspec.Struct):
    id: int


PARTITIONS = 4


@pytest.fixture
def url(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(producer, "BACKOFF", Backoff(first=0.0, most=0.0))
    return f"redis://127.0.0.1:{groups.nodes[0].port},127.0.0.1:{groups.nodes[1].port}"


class Deaf(Client):
    """Loses the reply to a call, after a number of requests with it. ``before``: the call isn't even sent."""

    word = ""
    skip = 0
    before = False

    def together(self, *calls: Any, raise_on_error: bool = True) -> list[Any]:
        hit = bool(self.word) and any(call.args[0] == self.word for call in calls)
        if hit and self.skip:
            self.skip -= 1
            hit = False
        if hit:
            self.word = ""
            if self.before:
                calls = calls[:1]  # only one partition is published
        replies = super().together(*calls, raise_on_error=raise_on_error)
        if hit:
            raise redis.ConnectionError("lost")
        return replies


def topic_of(name: str, client: Client, **options: Any) -> Topic[Order]:
    topic: Topic[Order] = Topic(name, Order, **{"partition_by": "id", "partitions": PARTITIONS, **options})
    topic.use(sync=client)
    return topic


def batch(first: int, count: int = 40) -> list[Order]:
    return [Order(n) for n in range(first, first + count)]


def sent(client: Client, name: str, partitions: int = PARTITIONS) -> list[int]:
    """The IDs of all records, sorted, with duplicates."""
    return sorted(
        int(entry.pairs[0][1]) for at in range(partitions) for entry in client.trange(f"{name}:{at}", "-", "+")
    )


def test_both_groups_have_partitions() -> None:
    assert len({slot_of(f"divided:{at}") // 8192 for at in range(PARTITIONS)}) == 2


def test_batches_and_their_numbers(url: str) -> None:
    with Client(url) as client:
        sender = topic_of("divided", client).sync.producer("p")
        assert sender.last() == 0
        assert sender.send_many(batch(0), 5) == (True, 40)
        assert sender.send_many(batch(40)) == (True, 40)
        assert sender.send_many(batch(40), 6) == (False, 0)
        assert sender.send_many(batch(0), 3) == (False, 0)
        assert sender.send_many([]) == (False, 0)
        assert sender.last() == 6
        again = topic_of("divided", client).sync.producer("p")
        assert (again.last(), again.send_many(batch(40), 6)) == (6, (False, 0))
        assert sent(client, "divided") == [*range(80)]


def test_async_producer(url: str) -> None:
    async def run() -> None:
        topic: Topic[Order] = Topic("divided-async", Order, partition_by="id", partitions=PARTITIONS, url=url)
        sender = topic.producer("p")
        assert await sender.send_many(batch(0)) == (True, 40)
        assert await sender.send_many(batch(40, 20_000)) == (True, 20_000)
        assert await sender.last() == 2
        await topic.close()

    asyncio.run(run())
    with Client(url) as client:
        assert sent(client, "divided-async") == [*range(20_040)]


@pytest.mark.parametrize(
    ("word", "skip", "before"),
    [("SET", 0, False), ("TSTAGE", 0, False), ("TPUBLISH", 0, False), ("TPUBLISH", 0, True), ("SET", 1, False)],
    ids=["begin", "stage", "publish", "publish-part", "finish"],
)
@pytest.mark.parametrize("crash", [False, True])
def test_a_lost_reply_at_each_step(url: str, word: str, skip: int, before: bool, crash: bool) -> None:
    """``crash``: another process sends the batch again, as after the end of the first one."""
    name = f"lost-{word}-{skip}-{before}-{crash}"
    with Deaf(url) as client:
        sender = topic_of(name, client).sync.producer("p")
        assert sender.send_many(batch(0)) == (True, 40)
        client.word, client.skip, client.before = word, skip, before
        if crash:
            fail(topic_of(name, client), batch(40), 2)
            sender = topic_of(name, client).sync.producer("p")
            assert sender.last() in (1, 2)
            sender.send_many(batch(40), 2)
        else:
            assert sender.send_many(batch(40), 2) == (True, 40)
        assert not client.word
        assert sender.send_many(batch(80), 3) == (True, 40)
        assert sender.last() == 3
        assert sent(client, name) == [*range(120)]


def unfinished(client: Deaf, topic: Topic[Order], number: int | None = None) -> None:
    """Publish one partition of a batch."""
    client.word, client.skip, client.before = "TPUBLISH", 0, True
    fail(topic, batch(0), number)


def fail(topic: Topic[Order], records: list[Order], number: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "PATIENCE", 0.0)
        sender = topic.sync.producer("p")
        with pytest.raises(redis.ConnectionError):
            sender.send_many(records, number)


def test_records_without_keys_have_their_partitions_by_position(url: str) -> None:
    with Deaf(url) as client:
        unfinished(client, topic_of("unkeyed", client, partition_by=None), 1)
        assert 0 < len(sent(client, "unkeyed")) < 40
        topic = topic_of("unkeyed", client, partition_by=None)
        topic.sync.send(Order(1000))  # other records do not change the position
        assert topic.sync.producer("p").send_many(batch(0), 1) == (True, 40)
        assert sent(client, "unkeyed") == [*range(40), 1000]


def test_a_topic_that_has_grown_since_the_batch_was_begun(url: str) -> None:
    with Deaf(url) as client:
        unfinished(client, topic_of("grown", client), 1)
        admin.grow(client, "grown", 2 * PARTITIONS)
        sender = topic_of("grown", client, partitions=None).sync.producer("p")
        assert sender.send_many(batch(0), 1) == (True, 40)
        assert sent(client, "grown", 2 * PARTITIONS) == [*range(40)]
        assert sender.send_many(batch(40), 2) == (True, 40)
        assert sent(client, "grown", 2 * PARTITIONS) == [*range(80)]
        assert client.tlen(f"grown:{PARTITIONS}") > 0


def test_other_records_under_the_number_of_an_unfinished_batch(url: str) -> None:
    with Deaf(url) as client:
        unfinished(client, topic_of("other", client), 2)
        sender = topic_of("other", client).sync.producer("p")
        some = sent(client, "other")
        with pytest.raises(ConflictError, match="batch 2 was begun with other records"):
            sender.send_many(batch(500), 2)
        with pytest.raises(StaleEpochError, match="batch 2 was begun"):
            sender.send_many(batch(500), 1)
        assert sent(client, "other") == some
        assert sender.send_many(batch(500)) == (True, 40)  # without a number: the next one
        assert sender.last() == 3
        assert sent(client, "other") == sorted([*some, *range(500, 540)])


def test_the_same_records_without_a_number_continue_an_unfinished_batch(url: str) -> None:
    with Deaf(url) as client:
        unfinished(client, topic_of("same", client))
        sender = topic_of("same", client).sync.producer("p")
        assert sender.send_many(batch(0)) == (True, 40)
        assert (sender.last(), sent(client, "same")) == (1, [*range(40)])


def test_a_record_that_is_something_else(url: str) -> None:
    with Client(url) as client:
        sender = topic_of("damaged", client).sync.producer("p")
        sender.send_many(batch(0))
        client.redis.set(f"{sender.fence} batch", "[]")
        with pytest.raises(TopicError, match="does not have the last batch of a producer"):
            sender.send_many(batch(40))


def test_the_places_of_partitions(groups: Groups, url: str) -> None:
    with Client(url) as client:
        settings = topic_of("placed", client).sync.ready()
        wanted = [slot_of(f"placed:{at}") // 8192 for at in range(PARTITIONS)]
        assert [(place.group, place.leader) for place in admin.places(client, "placed", settings)] == [
            (str(at + 1), f"127.0.0.1:{groups.nodes[at].port}") for at in wanted
        ]
        shown = CliRunner().invoke(main, ["topics", "show", "placed", "--url", url])
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    rows = {words[0]: words[1:3] for words in lines if words}
    assert rows["placed:0"] == [str(wanted[0] + 1), f"127.0.0.1:{groups.nodes[wanted[0]].port}"]


def test_a_cluster_that_gets_another_group() -> None:
    """Batches of one group are published in one step. Later ones are divided, and their numbers continue."""
    with cluster() as servers:
        groups = Groups(servers, groups=1)
        with Client(f"redis://127.0.0.1:{groups.nodes[0].port}") as client:
            sender = topic_of("spread", client).sync.producer("p")
            assert sender.send_many(batch(0)) == (True, 40)
            assert client.tfence(sender.fence) == 1
            client.redis.delete(*[f"spread:{at}" for at in range(PARTITIONS)])
            groups.add()
            for at in (1, 3):
                groups.assign(str(slot_of(f"spread:{at}")), to="2")
            assert sender.send_many(batch(0), 1) == (False, 0)
            assert sender.send_many(batch(40), 2) == (True, 40)
            fresh = topic_of("spread", client).sync.producer("p")
            assert (fresh.last(), client.tfence(sender.fence)) == (2, 1)
            assert fresh.send_many(batch(40), 2) == (False, 0)
            eventually(lambda: sent(client, "spread") == [*range(40, 80)], "each record once")
