"""The link under stress: silence, half-closed connections, slow and many replicas, huge batches."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from replication import frames
from replication.feed import AT_ONCE, ReplicaFeed
from replication.follower import LeaderFollower
from replication.frames import LinkError
from replication.link import ReplicationConnection
from respserver.testing import start_in_thread
from tests.replication.cluster import Cluster, Node, assert_same, connect, in_sync, wait_until
from tests.replication.proxy import Proxy
from tests.waiting import until
from tests.wire.rawclient import Raw


def through_proxy(servers: Cluster, **config: Any) -> tuple[Node, Node, Proxy]:
    """A leader with something in its log, its replica, and the proxy between them."""
    leader = servers.node(**config)
    leader("SET", "k", "v")
    proxy = servers.proxy(leader)
    replica = servers.node(of=proxy.port, **config)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    return leader, replica, proxy


def test_a_silent_link_is_noticed_by_both(servers: Cluster) -> None:
    leader, replica, proxy = through_proxy(servers, repl_timeout=2)
    proxy.down.hold()
    proxy.up.hold()
    began = time.monotonic()
    wait_until(lambda: not replica.link_up, "the replica gives up")
    wait_until(lambda: leader.info()["connected_slaves"] == 0, "the leader gives up")
    assert time.monotonic() - began < 8
    leader("SET", "k", "v")
    proxy.cut()
    proxy.calm()
    assert_same(leader, replica)
    assert leader.syncs[0] == 1


@pytest.mark.parametrize("by_leader", [True, False], ids=["by the leader", "by the replica"])
def test_a_half_closed_link_is_replaced(servers: Cluster, by_leader: bool) -> None:
    leader, replica, proxy = through_proxy(servers)
    made = proxy.connections
    proxy.half_close(leader=not by_leader)
    wait_until(lambda: proxy.connections > made and in_sync(leader, replica), "a new link")
    assert leader.syncs == (1, 1)


def test_a_slow_replica_costs_disk_and_not_memory(servers: Cluster) -> None:
    """What it has not taken is sent from the journal later; the leader goes on."""
    leader, replica, proxy = through_proxy(servers)
    proxy.down.hold()
    before = leader.info("memory")["mem_clients_slaves"]
    for _ in range(30):
        leader("TAPPEND", "s", "f", "x" * 1_000_000)
    assert leader.info("memory")["mem_clients_slaves"] - before < 10_000_000
    proxy.down.release()
    wait_until(lambda: in_sync(leader, replica), "in sync again")
    assert leader.syncs[0] == 1
    assert_same(leader, replica)


def test_a_replica_that_the_journal_outran_gets_a_copy(servers: Cluster) -> None:
    """A replica whose link stands still does not hold the journal for ever."""
    leader, replica, proxy = through_proxy(servers, repl_backlog_size="100kb", checkpoint_size="1mb")
    proxy.refuse()
    proxy.cut()

    def gone() -> bool:
        leader("TAPPEND", "s", "f", "x" * 200_000)
        leader("SAVE")
        return int(leader.info()["repl_backlog_first_byte_offset"]) > replica.offset

    wait_until(gone, "the journal is cut")
    proxy.accept()
    assert_same(leader, replica)
    assert leader.syncs[0] == 2


@pytest.mark.timeout(110)
def test_a_huge_transaction(servers: Cluster) -> None:
    leader, replica = servers.pair(repl_timeout=20)
    with Raw(leader.port) as raw:
        raw.sock.settimeout(60)
        raw.pipeline(("MULTI",), *[("SET", f"k{number}", "x" * 16_000_000) for number in range(3)])
        assert raw("EXEC") == [b"OK"] * 3
        assert raw("WAIT", 1, 60_000) == 1
    assert replica("STRLEN", "k2") == 16_000_000
    assert_same(leader, replica)
    assert leader.syncs == (1, 0)


def test_many_replicas(servers: Cluster) -> None:
    leader = servers.node()
    replicas = [servers.node(of=leader.port) for _ in range(6)]
    for number in range(50):
        leader("TAPPEND", "s", "n", number)
    assert_same(leader, *replicas)
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "n", "last")
        assert raw("WAIT", 6, 5000) == 6
    assert leader.info()["connected_slaves"] == 6


class Reluctant:
    """A transport whose buffer is full after ``room`` bytes. It then calls pause_writing(), as asyncio's do."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.got = b""
        self.feed: ReplicaFeed

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == AT_ONCE

    def set_protocol(self, feed: ReplicaFeed) -> None:
        self.feed = feed

    def resume_reading(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.got += data
        if 0 <= self.room < len(self.got):
            self.room = -1
            self.feed.pause_writing()

    def abort(self) -> None:
        pass


class Source:
    """A transport from which a link reads."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return False


def test_frames_without_content_fill_the_queue_as_well() -> None:
    """A copy's frames are taken one by one. Millions of signs of life, a byte each, must not wait for their turn."""
    link, source = ReplicationConnection(lambda _: None), Source()
    link.connection_made(source)  # type: ignore[arg-type]
    sent = 0
    while not source.paused and sent < 300_000:
        link.data_received(frames.encode(frames.ALIVE, 0, b"\0") * 1000)
        sent += 1000
    assert source.paused

    async def take() -> int:
        taken = 0
        while source.paused:
            await link.frame()
            taken += 1
        return taken

    assert asyncio.run(take()) < sent


def test_frames_that_are_held_while_the_queue_is_taken_keep_their_order() -> None:
    """A new CLIENT PAUSE may begin just then and hold them once more."""
    link, taken = ReplicationConnection(lambda _: None), list[int]()
    link.connection_made(Source())  # type: ignore[arg-type]
    for offset in range(3):
        link.data_received(frames.encode(frames.BATCH, offset, b"x"))
    paused = True

    def take(frame: frames.ReplicationFrame) -> None:
        if paused and taken:
            link.hold(frame)
        else:
            taken.append(frame[1])

    link.take_directly(take)
    assert (taken, link.holding) == ([0], True)
    link.data_received(frames.encode(frames.BATCH, 3, b"x"))
    paused = False
    link.take_directly(take)
    assert (taken, link.holding) == ([0, 1, 2, 3], False)


def test_a_sign_of_life_that_fills_the_buffer_does_not_stop_the_feed(tmp_path: Path) -> None:
    """A feed that has to pause just when it becomes live goes on when there is room again."""
    with start_in_thread(tmp_path) as running, connect(running.port) as client:
        client.set("k", "v")
        server = running.server
        length = len(b"+CONTINUE %b\r\n" % server.data.disk.history.id.encode())

        async def run() -> bool:
            feed = ReplicaFeed(server.replicas, "", 0, server.data.disk.offset, 0)
            transport = Reluctant(length)
            feed.wanted = True
            feed.begin(transport, delay=False)  # type: ignore[arg-type]
            for _ in range(10):
                await asyncio.sleep(0)
            assert transport.got[length] == frames.ALIVE
            assert not feed.live
            feed.resume_writing()
            for _ in range(10):
                await asyncio.sleep(0)
            return feed.live

        assert asyncio.run_coroutine_threadsafe(run(), running._loop).result(10)


class FullDisk:
    """The owner of a link whose end fails: it removes files, and the disk is broken."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    async def settled(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the disk is broken")

    def link_failed(self, error: Exception) -> None:
        raise AssertionError(error)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_a_link_that_is_stopped_ends_even_if_this_fails() -> None:
    """A server waits for this before it closes its files. It is not cancelled twice."""

    async def story() -> list[str]:
        owner = FullDisk()
        follower = LeaderFollower(owner, "127.0.0.1", 1)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.wait([task := follower.stop()], timeout=10)
        assert task.done()
        return owner.warned

    assert asyncio.run(story()) == ["Link to the leader 127.0.0.1:1: the disk is broken"]


class Unreachable:
    """The owner of a link whose attempts fail."""

    attempts = 0

    async def settled(self) -> None:
        self.attempts += 1
        raise LinkError("it is unreachable")

    def link_failed(self, error: Exception) -> None:
        """Nobody is notified."""

    def warn(self, text: str) -> None:
        """Nothing is logged."""


def test_a_follower_connects_at_once_when_its_leader_is_ready() -> None:
    """It would otherwise wait for half a minute or more. The attempt after that waits again."""

    async def story() -> None:
        owner = Unreachable()
        follower = LeaderFollower(owner, "127.0.0.1", 1, first_wait=60.0)  # type: ignore[arg-type]
        await until(lambda: owner.attempts == 1)
        assert follower.retry()
        await until(lambda: owner.attempts == 2, seconds=10)
        for _ in range(10):
            await asyncio.sleep(0)
        assert owner.attempts == 2
        await asyncio.wait([follower.stop()], timeout=10)

    asyncio.run(story())


@pytest.mark.interpreted
def test_only_an_old_attempt_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer: a packet may have been lost."""

    async def story() -> None:
        with start_in_thread() as running, socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]

            async def attempt() -> tuple[bool, bool]:
                link = running.server.link
                link.start("127.0.0.1", port)
                await until(lambda: link._follower is not None and link._follower.state == "connecting")
                recent = link.retry()
                monkeypatch.setattr("replication.follower.RECENT", 0.0)
                old = link.retry()
                link.stop()
                return recent, old

            future = asyncio.run_coroutine_threadsafe(attempt(), running._loop)
            assert await asyncio.wrap_future(future) == (True, False)

    asyncio.run(story())


def test_a_leader_whose_name_is_unknown(servers: Cluster) -> None:
    """The reason is told, once; a link that ends while the name is looked up leaves nothing behind."""
    node = servers.node()
    for number in range(5):
        node("REPLICAOF", f"no-such-host-{number}.invalid", 7000)
        if number % 2:
            name = f"Link to the leader no-such-host-{number}.invalid:7000: "
            wait_until(lambda name=name: node.logged(name), "the reason is told")  # type: ignore[misc]
        node("REPLICAOF", "NO", "ONE", "FORCE")
    node("REPLICAOF", "no-such-host.invalid", 7000)
    assert node("PING")
    node.stop()
    bad = [line for line in node.output if "never retrieved" in line or "Traceback" in line or "asyncio" in line]
    assert not bad
