"""Records that are sent later: what a send leaves on the server, and what a mover does with it, over one connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually
from tidelog import Client, StreamId
from tidelog.client import steps
from tidelog.coordination import Claim, Lease
from tidelog.coordination.claims import reclaim, release, take
from tidelog.testing import Server
from tidelog.topics import CodecError, Topic, TopicError, TopicFullError, admin, partition_of
from tidelog.topics.delayed import mover_of, read
from tidelog.topics.delayeddelivery import PAGE, SLACK, DelayedDelivery, DeliveryRound
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.transport.connection import BlockingConnection

STREAM = "orders:delayed"


class Order(msgspec.Struct):
    id: int
    item: str = "tea"


def orders(server: Server, **options: Any) -> Topic[Order]:
    return Topic("orders", Order, **{"partition_by": "id", "partitions": 4, "url": server.url, **options})


class Moving:
    """A mover with a lease, a claim and a connection of its own."""

    def __init__(self, server: Server, owner: str = "w1") -> None:
        self.wire = BlockingConnection(Access((server.url,)), server.url, owner)
        self.lease = Lease(f"lease:{owner}", owner, 60, "epoch")
        assert self.run(self.lease.acquire())
        (claim,) = self.run(take(self.lease, [(mover_of("orders"), 0)])).claims
        self.claim: Claim = claim
        self.mover = DelayedDelivery("orders", claim)
        self.run(self.mover.begin())

    def run(self, operation: steps.Steps[Any]) -> Any:
        return steps.drive(self.send, operation)

    def send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self.wire.run(*calls)

    def turn(self) -> DeliveryRound | None:
        done: DeliveryRound | None = self.run(self.mover.turn())
        return done

    def until_moved(self, number: int) -> None:
        """Turns until so many records were moved."""
        deadline = time.monotonic() + 60
        while number:
            done = self.turn()
            assert done is not None
            number -= done.moved
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert number == 0

    def reconnect(self, server: Server) -> None:
        self.wire.close()
        self.wire = BlockingConnection(Access((server.url,)), server.url, "again")

    def end(self) -> None:
        """Release the claim."""
        self.run(release([self.claim]))
        self.wire.close()


@pytest.fixture
def moving(tidelog_server: Server, client: Client) -> Iterator[Moving]:
    moving = Moving(tidelog_server)
    yield moving
    moving.wire.close()


def finish(
    moving: Moving, operation: steps.Steps[DeliveryRound | None], made: Sequence[Call[Any]]
) -> DeliveryRound | None:
    """Go on with an operation whose next calls are these."""
    try:
        while True:
            made = operation.send(moving.send(made))
    except StopIteration as end:
        done: DeliveryRound | None = end.value
        return done


def arrived(client: Client, topic: Topic[Any], partitions: int = 4) -> list[list[int]]:
    """The ids of the records in each partition."""
    return [[topic.decode(entry, at).id for entry in client.trange(f"{topic.name}:{at}")] for at in range(partitions)]


class TestSending:
    def test_what_waits_is_the_record_behind_its_time_and_key(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server)
        first = topic.sync.send(Order(7), delay=1.5)
        topic.sync.send(Order(8), delay=timedelta(minutes=2))
        topic.sync.send(Order(9), at=datetime(2040, 1, 1, tzinfo=UTC))
        entries = client.trange(STREAM)
        assert entries[0].id == first
        record = [(b"id", b"7"), (b"item", b"tea")]
        assert entries[0].pairs == [(b"delayed:due", b"+1500"), (b"delayed:key", b"7"), *record]
        dues = [waiting.due for waiting in map(read, entries) if waiting is not None]
        assert dues == [first.ms + 1500, entries[1].id.ms + 120_000, 2_208_988_800_000]
        assert arrived(client, topic) == [[], [], [], []]
        assert admin.waiting(client, "orders") == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"delay": 1, "at": datetime.now(UTC)}, "delay and at exclude each other"),
            ({"delay": -1}, "delay is from 0 seconds"),
            ({"delay": float("nan")}, "delay is from 0 seconds"),
            ({"delay": timedelta(days=40_000)}, "to 100 years"),
            ({"delay": True}, "delay is seconds or a timedelta: True"),
            ({"delay": "5"}, "delay is seconds or a timedelta: '5'"),
            ({"at": datetime(2040, 1, 1)}, "at is a datetime with its zone"),  # noqa: DTZ001
            ({"at": 5}, "at is a datetime with its zone"),
        ],
    )
    def test_a_delay_that_makes_no_sense(
        self, tidelog_server: Server, client: Client, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(TopicError, match=f"topic 'orders': .*{message}"):
            orders(tidelog_server).sync.send(Order(7), **options)
        assert client.redis.keys("*") == []

    def test_records_are_checked_when_they_are_sent(self, tidelog_server: Server, client: Client) -> None:
        with pytest.raises(CodecError):
            orders(tidelog_server).sync.send(Order("x"), delay=1)  # type: ignore[arg-type]
        assert client.tlen(STREAM) == 0

    def test_the_hard_limit_holds(self, tidelog_server: Server, client: Client) -> None:
        topic = orders(tidelog_server, hard_limit=2)
        at = partition_of(7, 4)
        for _ in range(2):
            topic.sync.send(Order(7))
        with pytest.raises(TopicFullError, match=f"partition {at} holds 2"):
            topic.sync.send(Order(7), delay=1)
        with pytest.raises(TopicFullError, match=f"partition {at} holds 2"):
            topic.sync.send_many([Order(8), Order(7)], delay=1)
        assert client.tlen(STREAM) == 0
        client.ttrim(f"orders:{at}", count=0)
        topic.sync.send(Order(7), delay=1)
        assert client.tlen(STREAM) == 1

    def test_from_asyncio(self, tidelog_server: Server, client: Client) -> None:
        async def send() -> StreamId:
            topic = orders(tidelog_server)
            try:
                assert await topic.send_many([Order(8), Order(9)], delay=5) == 2
                return await topic.send(Order(7), delay=0)
            finally:
                await topic.close()

        sent = asyncio.run(send())
        *many, one = client.trange(STREAM)
        assert one.id == sent
        assert [entry.get(b"id") for entry in many] == [b"8", b"9"]
        assert {entry.get(b"delayed:due") for entry in many} == {b"+5000"}

    @pytest.mark.parametrize("name", ["topic", "topic:orders", "app", "app:shop:owner:bill"])
    def test_names_whose_streams_would_be_other_things(self, name: str) -> None:
        with pytest.raises(TopicError, match="is not 'topic' or 'app'"):
            Topic(name, Order)


class TestMoving:
    def test_each_record_is_moved_once_when_its_time_has_come(
        self, tidelog_server: Server, client: Client, moving: Moving
    ) -> None:
        topic = orders(tidelog_server)
        for number in range(100):
            topic.sync.send(Order(number), delay=number % 3 / 10)
        topic.sync.send(Order(1000), delay=3600)
        moving.until_moved(100)
        found = arrived(client, topic)
        assert sorted(n for part in found for n in part) == list(range(100))
        assert all(partition_of(n, 4) == at for at, part in enumerate(found) for n in part)
        assert moving.turn() == DeliveryRound(0, 0)
        assert admin.waiting(client, "orders") == 1
        waited = {}
        for entry in client.trange(STREAM):
            waiting = read(entry)
            assert waiting is not None
            waited[waiting.flat] = waiting.due
        for at in range(4):
            for entry in client.trange(f"orders:{at}"):
                assert entry.id.ms >= waited[entry.flat]

    def test_the_key_decides_when_it_is_moved(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        topic = orders(tidelog_server)
        for number in range(100):
            topic.sync.send(Order(number), delay=0)
        admin.grow(client, "orders", 8)
        moving.until_moved(100)
        found = arrived(client, topic, 8)
        assert all(partition_of(n, 8) == at for at, part in enumerate(found) for n in part)
        assert all(found)

    def test_without_keys_partitions_take_turns(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        topic = orders(tidelog_server, partition_by=None)
        for number in range(40):
            topic.sync.send(Order(number), delay=0)
        moving.until_moved(40)
        assert [len(part) for part in arrived(client, topic)] == [10, 10, 10, 10]

    def test_records_of_a_batch_are_moved_in_the_order_of_their_times(
        self, tidelog_server: Server, client: Client, moving: Moving
    ) -> None:
        topic = orders(tidelog_server, partitions=1)
        began = time.time()
        for number in range(50):
            topic.sync.send(Order(number), at=datetime.fromtimestamp(began - number, UTC))
        moving.until_moved(50)
        assert arrived(client, topic, 1) == [list(range(50))[::-1]]

    def test_a_claim_that_was_taken_over_moves_nothing(self, tidelog_server: Server, client: Client) -> None:
        """At each step of a turn: another has the claim, then the first one goes on."""
        topic = orders(tidelog_server)
        topic.sync.ready()
        for trip in range(3):
            one = Moving(tidelog_server, f"one{trip}")
            topic.sync.send(Order(trip), delay=0)
            operation = one.mover.turn()
            made = next(operation)
            for _ in range(trip):
                made = operation.send(one.send(made))
            with tidelog_server.client() as other:
                steps.run(other, release([one.claim]))
            one.claim.lost = False  # as a worker that has not noticed yet
            successor = Moving(tidelog_server, f"other{trip}")
            assert finish(one, operation, made) is None
            assert one.claim.lost
            assert sum(map(len, arrived(client, topic))) == trip
            successor.until_moved(1)
            successor.end()
            one.wire.close()

    def test_a_lost_reply_moves_nothing_twice(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        topic = orders(tidelog_server)
        for trip in range(3):
            topic.sync.send(Order(trip), delay=0)
            operation = moving.mover.turn()
            made = next(operation)
            for _ in range(trip):
                made = operation.send(moving.send(made))
            moving.send(made)
            with pytest.raises(ConnectionError):
                operation.throw(ConnectionError("lost"))
            moving.reconnect(tidelog_server)
            assert moving.run(reclaim(moving.lease, moving.claim))
            if trip < 2:
                moving.until_moved(1)
            assert sorted(n for part in arrived(client, topic) for n in part) == list(range(trip + 1))
        assert moving.turn() == DeliveryRound(0, 0)
        assert admin.waiting(client, "orders") == 0

    def test_a_full_partition_makes_its_records_wait(
        self, tidelog_server: Server, client: Client, moving: Moving
    ) -> None:
        topic = orders(tidelog_server, hard_limit=3, partitions=1)
        for number in range(5):
            topic.sync.send(Order(number), delay=0)
        moving.until_moved(3)
        assert arrived(client, topic, 1) == [[0, 1, 2]]
        assert moving.turn() == DeliveryRound(0, 0)
        client.ttrim("orders:0", count=0)
        moving.until_moved(2)
        assert sorted(arrived(client, topic, 1)[0]) == [3, 4]

    def test_what_drops_drops(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        topic = orders(tidelog_server, partition_size=3, overflow="drop", partitions=1)
        for number in range(5):
            topic.sync.send(Order(number), delay=0)
        moving.until_moved(5)
        eventually(lambda: arrived(client, topic, 1) == [[2, 3, 4]])

    def test_what_is_no_record_stays(
        self, tidelog_server: Server, client: Client, moving: Moving, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = orders(tidelog_server)
        topic.sync.ready()
        for fields in ({"a": "b"}, {"delayed:due": "x", "delayed:key": "1", "id": "1"}):
            client.tappend(STREAM, fields)
        topic.sync.send(Order(7), delay=0)
        moving.until_moved(1)
        assert caplog.text.count("is not a delayed record; it remains there") == 2
        assert [each.deliveries for each in client.tpending_range(STREAM, "mover")] == [1, 1]

    def test_a_target_that_is_no_stream_loses_nothing(
        self, tidelog_server: Server, client: Client, moving: Moving, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = orders(tidelog_server, partitions=1)
        topic.sync.send(Order(7), delay=0)
        client.redis.set("orders:0", "text")
        assert moving.turn() == DeliveryRound(1, 0)
        assert "records can't be moved to orders:0: WRONGTYPE" in caplog.text
        client.redis.delete("orders:0")
        moving.until_moved(1)
        assert arrived(client, topic, 1) == [[7]]

    def test_what_could_not_be_appended_waits_on(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        """The server carries out the rest of a transaction behind a command that failed: the acknowledgement too."""
        topic = orders(tidelog_server, partitions=1)
        topic.sync.send(Order(7), delay=0)
        operation = moving.mover.turn()
        made = next(operation)
        while made[0].args[0] != "MULTI":
            made = operation.send(moving.send(made))
        client.redis.set("orders:0", "text")
        assert finish(moving, operation, made) == DeliveryRound(1, 0)
        assert admin.waiting(client, "orders") == 1
        client.redis.delete("orders:0")
        moving.until_moved(1)
        assert arrived(client, topic, 1) == [[7]]

    def test_a_topic_is_deleted_with_what_waits(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        topic = orders(tidelog_server)
        topic.sync.send(Order(7), delay=3600)
        assert moving.turn() == DeliveryRound(1, 0)
        admin.delete(client, "orders")
        assert client.redis.keys("orders*") == []
        assert moving.turn() is None  # the claim is gone too

    def test_entries_that_were_moved_go(self, tidelog_server: Server, client: Client, moving: Moving) -> None:
        topic = orders(tidelog_server)
        for number in range(10):
            topic.sync.send(Order(number), delay=0)
        moving.until_moved(10)
        assert moving.run(moving.mover.tidy()) is False
        assert client.tlen(STREAM) == 0

    def test_one_that_waits_for_long_does_not_keep_all_others(
        self, tidelog_server: Server, client: Client, moving: Moving
    ) -> None:
        topic = orders(tidelog_server)
        topic.sync.send(Order(7), delay=3600)
        topic.sync.send(Order(8), at=datetime(2040, 1, 1, tzinfo=UTC))
        before = [waiting.due for waiting in map(read, client.trange(STREAM)) if waiting is not None]
        number = SLACK + PAGE
        rows = [("+0", str(n), str(n), "tea") for n in range(number)]
        client.tmappend(STREAM, ["delayed:due", "delayed:key", "id", "item"], rows)
        moving.until_moved(number)
        assert moving.run(moving.mover.tidy()) is True
        assert moving.turn() == DeliveryRound(2, 0)
        assert moving.run(moving.mover.tidy()) is False
        left = [waiting for waiting in map(read, client.trange(STREAM)) if waiting is not None]
        assert [waiting.due for waiting in left] == before
        assert [waiting.flat[1] for waiting in left] == [b"7", b"8"]
        assert client.tlen(STREAM) == 2
        assert admin.waiting(client, "orders") == 2

    def test_what_was_evicted_is_waited_for_no_longer(
        self, tidelog_server: Server, client: Client, moving: Moving
    ) -> None:
        orders(tidelog_server).sync.send(Order(7), delay=3600)
        assert moving.turn() == DeliveryRound(1, 0)
        client.ttrim(STREAM, count=0)
        rows = [("+3600000", str(n), str(n), "tea") for n in range(3)]
        client.tmappend(STREAM, ["delayed:due", "delayed:key", "id", "item"], rows)
        assert moving.turn() == DeliveryRound(3, 0)
        client.ttrim(STREAM, count=0)
        assert moving.run(moving.mover.renew()) == 4
        assert admin.waiting(client, "orders") == 0
        assert client.tlen(STREAM) == 0
