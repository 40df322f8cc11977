"""Workers whose partitions are on two server groups: one lease for each group, and each group is independent."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.workers.workerkit import Order, orders, started, working
from tests.waiting import eventually, until
from tidelog import Client
from tidelog.client.steps import run
from tidelog.topics import Topic
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.slots import hash_tag, slot_of
from tidelog.workers import App, DeadLetter, Event, Park, Worker, keys
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.clusterlines import RoutedChannel
from tidelog.workers.declare.errors import AppError
from tidelog.workers.operate import control, deletion, status

PARTITIONS = 8
KEYS = [f"key-{number}" for number in range(40)]


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    for node in groups.nodes:
        node.say("FLUSHALL")
    with Client(groups.url(3)) as made:
        yield made


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop."""

    @functools.wraps(test)
    def run_it(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run_it


class Seen:
    """What an app has processed."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = defaultdict(list)

    def add(self, order: Order) -> None:
        self.by_key[order.key].append(order.id)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_key.values()))

    @property
    def ids(self) -> set[int]:
        """Each record once."""
        return {each for ids in self.by_key.values() for each in ids}

    def check(self, count: int) -> None:
        """Every record is there, and those of a key are in order. Records may be repeated, also in order."""
        first: dict[str, list[int]] = {key: list(dict.fromkeys(ids)) for key, ids in self.by_key.items()}
        assert sorted(each for ids in first.values() for each in ids) == [*range(count)]
        assert all(ids == sorted(ids) for ids in first.values())


def shop(groups: Groups, name: str = "shop", **options: Any) -> tuple[App, Topic[Any], Seen]:
    app = App(name, groups.url(3), **{"lease": 3.0, "grace": 5.0, **options})
    topic, seen = orders(app, PARTITIONS), Seen()

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.add(order)

    return app, topic, seen


def records(start: int, count: int) -> list[Order]:
    return [Order(number, KEYS[number % len(KEYS)]) for number in range(start, start + count)]


def test_both_groups_have_partitions() -> None:
    assert len({slot_of(f"orders:{at}") // 8192 for at in range(PARTITIONS)}) == 2


@in_loop
async def test_the_partitions_of_both_groups(groups: Groups, client: Client) -> None:
    app, topic, seen = shop(groups)
    async with working(app, "w1") as worker:
        await topic.send_many(records(0, 400))
        await until(lambda: worker.stats["bill"].acknowledged == 400)
        seen.check(400)
        assert seen.count == 400
        for at in range(PARTITIONS):  # each claim is in the slot of its partition, and names the lease of its group
            node = groups.nodes[slot_of(f"orders:{at}") // 8192]
            lease, value, _ = node.say("GET", f"app:shop:owner:bill:{{orders:{at}}}").decode().split("|")
            assert node.say("GET", lease).decode() == value
        found = await asyncio.to_thread(run, client, status.read_status(app))
        assert {each.owner for each in found.processors[0].partitions} == {"w1"}
        assert sum(each.finished for each in found.processors[0].partitions) == 400
    assert not [key for node in groups.nodes for key in node.say("KEYS", "app:shop:lease:*")]
    assert len((await asyncio.to_thread(deletion.delete, client, "shop")).groups) == PARTITIONS
    assert [key for node in groups.nodes for key in node.say("KEYS", "app:shop:*")] == [b"app:shop:epoch"]
    await topic.close()


@in_loop
async def test_two_workers_share_and_one_takes_over(groups: Groups, client: Client) -> None:
    (one, topic, seen), (two, _, others) = shop(groups), shop(groups)
    async with working(one, "w1") as first:
        async with working(two, "w2") as second:
            shared = [worker.executors["bill"] for worker in (first, second)]
            await until(lambda: [len(each.partitions) for each in shared] == [4, 4])
            await topic.send_many(records(0, 400))
            await until(lambda: seen.count + others.count == 400)
        await until(lambda: len(first.executors["bill"].partitions) == PARTITIONS)
        await topic.send_many(records(400, 400))
        await until(lambda: first.stats["bill"].acknowledged + second.stats["bill"].acknowledged == 800)
    both = Seen()
    for key in KEYS:
        both.by_key[key] = others.by_key[key] + seen.by_key[key]
    assert both.count == 800
    for part in (seen, others):
        assert all(ids == sorted(ids) for ids in part.by_key.values())
    await topic.close()


def copying(groups: Groups, sends: bool, partitions: int = PARTITIONS) -> tuple[App, Topic[Any], Topic[Any]]:
    """An app that copies orders in transactions. ``sends``: it declares that."""
    app = App("shop", groups.url(3), lease=3.0, grace=5.0)
    source = orders(app, PARTITIONS)
    out = app.topic("out", Order, partition_by="key", partitions=partitions)

    @app.each(source, transactional=True, on_error=[DeadLetter()], sends=[out] if sends else None)
    async def copy(event: Event[Order]) -> None:
        await event.send(out, event.record)

    return app, source, out


@pytest.fixture
def together(groups: Groups) -> Iterator[None]:
    """Each partition of both topics is on one group. At the end, the slots are divided as before."""
    for node in groups.nodes:
        node.say("FLUSHALL")
    moved = [
        (slot_of(f"out:{at}"), groups.owner(f"out:{at}"), groups.owner(f"orders:{at}")) for at in range(PARTITIONS)
    ]
    for slot, at, to in moved:
        if at != to:
            groups.assign(str(slot), to=to, at=at)
    yield
    for node in groups.nodes:
        node.say("FLUSHALL")
    for slot, to, at in moved:
        if at != to:
            groups.assign(str(slot), to=to, at=at)


@in_loop
async def test_transactions_of_partitions_that_are_together(together: None, groups: Groups, client: Client) -> None:
    app, source, out = copying(groups, sends=True)
    async with working(app) as worker:
        await source.send_many(records(0, 400))
        await until(lambda: worker.stats["copy"].acknowledged == 400)
    copied = [int(entry["id"]) for at in range(PARTITIONS) for page in client.pages(f"out:{at}") for entry in page]
    assert sorted(copied) == [*range(400)]
    await source.close()
    await out.close()


@pytest.mark.parametrize(
    ("sends", "partitions", "error"),
    [
        (False, PARTITIONS, r"declare all topics to which it sends, sends=\[\.\.\.\]"),
        (
            True,
            PARTITIONS,
            r"orders:\d and out:\d are on different groups .* same partition key and number of partitions",
        ),
        (True, 2, r"'orders' has 8 partitions and 'out' has 2: declare both with the same number"),
    ],
)
@in_loop
async def test_a_transactional_processor_that_is_rejected_at_the_start(
    sends: bool, partitions: int, error: str, groups: Groups, client: Client
) -> None:
    app, source, out = copying(groups, partitions=partitions, sends=sends)
    await source.send_many(records(0, 40))
    with pytest.raises(AppError, match=error):
        await Worker(app).run(signals=False)
    assert not client.redis.exists("orders.dead:0")
    assert not any(client.tgroup_list(f"orders:{at}") for at in range(PARTITIONS))
    await source.close()
    await out.close()


@pytest.mark.parametrize("declared", [True, False])
@in_loop
async def test_a_transaction_with_another_group_ends_the_worker(declared: bool, groups: Groups, client: Client) -> None:
    """Only the first record of a processor shows that the function sends to another topic."""
    app = App("shop", groups.url(3), lease=3.0, grace=5.0)
    source, other = orders(app, PARTITIONS), app.topic("other", Order, partition_by="id", partitions=PARTITIONS)

    @app.each(source, transactional=True, sends=[source] if declared else [], on_error=[DeadLetter()])
    async def copy(event: Event[Order]) -> None:
        await event.send(source if declared else other, Order(event.record.id, f"key-{event.record.id + 1}"))

    await source.send_many(records(0, 40))
    error = (
        r"orders:\d and orders:\d are on different groups" if declared else "topic 'other', which is not in .* sends"
    )
    with pytest.raises(AppError, match=error):
        await Worker(app).run(signals=False)
    assert not client.redis.exists("orders.dead:0")
    await source.close()
    await other.close()


@in_loop
async def test_dead_letters_of_both_groups(groups: Groups, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop", groups.url(3), lease=3.0, grace=5.0)
    topic = orders(app, PARTITIONS)

    @app.each(topic, on_error=[DeadLetter()])
    async def bill(order: Order) -> None:
        raise ValueError(order.id)

    lost, send = [0], RoutedChannel._send

    async def losing(self: Any, calls: Any) -> Any:
        """Lose the reply to each other dead letter."""
        replies = await send(self, calls)
        if calls and calls[0].args[0] == "XADD":
            lost[0] += 1
            if lost[0] % 2:
                self.close("lost")
                raise LostError("lost")
        return replies

    monkeypatch.setattr(RoutedChannel, "_send", losing)
    async with working(app) as worker:
        await topic.send_many(records(0, 80))
        await until(lambda: worker.stats["bill"].acknowledged == 80)
    assert lost[0] > 10
    letters = client.trange("orders.dead:0", "-", "+")
    assert sorted(int(dict(each.pairs)[b"id"]) for each in letters) == [*range(80)]
    await topic.close()


@in_loop
async def test_parked_keys_are_in_the_slots_of_their_partitions(groups: Groups, client: Client) -> None:
    """A key that was parked under a name without a hash tag is not processed, either, until it is resumed."""
    app = App("shop", groups.url(3), lease=3.0, grace=5.0)
    topic, seen, broken = orders(app, PARTITIONS), Seen(), True

    @app.each(topic, ordering="key", on_error=[Park()])
    async def bill(order: Order) -> None:
        if order.key == KEYS[1] and broken:
            raise ValueError("broken")
        seen.add(order)

    before, failing = topic.partition(Order(0, KEYS[0])), topic.partition(Order(0, KEYS[1]))
    run(client, pauses.add(pauses.parked_key("shop", "bill", before), KEYS[0], {"id": "", "error": "", "time": 1}))
    async with working(app) as worker:
        await topic.send_many(records(0, 400))
        await until(lambda: worker.stats["bill"].parked == 20 and seen.count == 380)
        assert not seen.by_key.keys() & {*KEYS[:2]}
        found = await asyncio.to_thread(run, client, status.read_status(app))
        assert {key for each in found.processors[0].partitions for key in each.parked} == {*KEYS[:2]}
        found_keys = {f"app:shop:parked:bill:{{orders:{at}}}".encode(): at for at in (before, failing)}
        assert {*client.redis.keys("app:shop:parked:*")} == found_keys.keys()
        assert all(slot_of(key) == slot_of(f"orders:{at}") for key, at in found_keys.items())
        broken = False
        await asyncio.to_thread(run, client, control.resume(app, "bill"))
        await until(lambda: seen.count == 400)
        await asyncio.to_thread(run, client, control.pause(app, "bill", key=KEYS[2]))
        assert len(client.redis.keys("app:shop:parked:bill:{*")) == 1
    seen.check(400)
    await topic.close()


def test_the_numbers_of_starts_are_in_the_slot_of_their_partition() -> None:
    assert slot_of(keys.starts("shop", "bill", 3, "5.0", hash_tag("orders:3"))) == slot_of("orders:3")


@in_loop
async def test_partitions_without_owners(groups: Groups, client: Client) -> None:
    app = App("shop", groups.url(3), lease=3.0, grace=5.0)
    topic, seen = orders(app, PARTITIONS), Seen()

    @app.each(topic, ordering="none", concurrency=8)
    async def bill(order: Order) -> None:
        seen.add(order)

    async with working(app) as worker:
        await topic.send_many(records(0, 400))
        await until(lambda: worker.stats["bill"].acknowledged == 400)
    assert (seen.ids, seen.count) == ({*range(400)}, 400)
    await topic.close()


@asynccontextmanager
async def sending(topic: Topic[Any], sent: list[int]) -> AsyncIterator[None]:
    """Send records all the time, and count them."""
    stopping = asyncio.Event()

    async def send() -> None:
        producer = topic.producer("sender")
        while not stopping.is_set():
            await producer.send_many(records(sent[0], 40))
            sent[0] += 40
            await asyncio.sleep(0.02)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        stopping.set()
        await task


@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.long), "freeze"])
@in_loop
async def test_a_leader_that_fails(how: str) -> None:
    """The partitions of the other group continue meanwhile, and nothing is lost or out of order."""
    with cluster() as servers:
        groups = Groups(servers, members=2, group_lease=2000)
        app, topic, seen = shop(groups)
        async with working(app):
            sent = [0]
            async with sending(topic, sent):
                await until(lambda: seen.count >= 200)
                leader = groups.leader(2)
                (leader.kill if how == "kill" else leader.freeze)()
                before = seen.count
                replica = next(node for node in groups.groups[1].nodes if node is not leader)
                await until(lambda: groups.groups[1].leader(replica) is not None)
                mark = sent[0]
                await until(lambda: sent[0] >= mark + 400 and seen.count > before)
            await until(lambda: len(seen.ids) == sent[0])
            seen.check(sent[0])
            if how == "freeze":
                leader.thaw()
        await topic.close()


SHOP = """
import msgspec
from tidelog.client import Client
from tidelog.workers import App

class Order(msgspec.Struct):
    id: int
    key: str = "k"

app = App("shop", URL, lease=2.0, grace=5.0)
orders = app.topic("orders", Order, partition_by="key", partitions=64)
told = Client(URL)

@app.each(orders)
async def bill(order: Order) -> None:
    told.tappend("told", {"id": order.id, "key": order.key})
"""


class Told(Seen):
    """What worker processes have appended to the stream ``told``."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._last = "0"

    def read(self) -> Told:
        """Add the entries since the last call."""
        while entries := self._client.trange("told", f"({self._last}", "+", 1000):
            for entry in entries:
                self.add(Order(int(entry["id"]), entry["key"].decode()))
            self._last = str(entries[-1].id)
        return self


def test_worker_processes_that_are_killed_and_suspended_while_slots_move(
    groups: Groups, client: Client, tmp_path: Path
) -> None:
    topic: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=64, url=groups.url(3))
    count, seen = 0, Told(client)

    def send(number: int = 200) -> None:
        nonlocal count
        topic.sync.send_many(records(count, number))
        count += number

    def processed() -> bool:
        return len(seen.read().ids) == count

    def move(to: str) -> None:
        """Move some partitions with events, their claims, and the leases to another group, while records are sent."""
        at = "1" if to == "2" else "2"
        moving = threading.Thread(target=groups.move, args=moved, kwargs={"to": to, "at": at})
        moving.start()
        while moving.is_alive():
            send(10)
            moving.join(0.02)

    moved = [str(slot) for number in range(64) if (slot := slot_of(f"orders:{number}")) < 8192][:8]
    send()
    url = groups.url(3)
    with ExitStack() as stack:
        workers = [stack.enter_context(started(url, tmp_path, SHOP)) for _ in range(3)]
        eventually(processed, "the workers have begun")
        move("2")
        eventually(processed, "the workers follow the slots")
        workers[0].kill()
        send()
        eventually(processed, "the others have taken over")
        workers[1].pause()
        move("1")
        eventually(processed, "the last one has taken over")
        workers[1].signal(signal.SIGCONT)
        send()
        eventually(processed, "both continue")
        seen.check(count)
        for worker in workers[1:]:
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.log
    eventually(lambda: not client.redis.keys("app:shop:lease:*"), "the leases are released, or have expired")
    topic.sync.close()


@in_loop
async def test_slots_that_are_assigned_while_a_worker_runs(groups: Groups, client: Client) -> None:
    """The partition is deleted before its slot is assigned. Its records go on in the other group."""
    app, topic, seen = shop(groups)
    moving = next(at for at in range(PARTITIONS) if slot_of(f"orders:{at}") < 8192)
    slot = str(slot_of(f"orders:{moving}"))
    async with working(app) as worker:
        await topic.send_many(records(0, 400))
        await until(lambda: worker.stats["bill"].acknowledged == 400)
        deadline = time.monotonic() + 60
        while True:  # the worker writes the claim, and creates the group, until the slot is assigned
            client.redis.delete(f"orders:{moving}", f"app:shop:owner:bill:{{orders:{moving}}}")
            reply = groups.leader(1).say("TCLUSTER", "ASSIGN", slot, "TO", "2")
            if reply == b"OK":
                break
            assert time.monotonic() < deadline, reply
        groups.agree()
        await topic.send_many(records(400, 400))
        await until(lambda: len(seen.ids) == 800)
        seen.check(800)
        await until(lambda: groups.leader(2).say("GET", f"app:shop:owner:bill:{{orders:{moving}}}"))
    client.redis.delete(*[f"orders:{at}" for at in range(PARTITIONS)])
    for node in groups.nodes:
        node.say("FLUSHALL")
    eventually(lambda: groups.leader(2).say("TCLUSTER", "ASSIGN", slot, "TO", "1") == b"OK", "the slot is back")
    groups.agree()
    await topic.close()
