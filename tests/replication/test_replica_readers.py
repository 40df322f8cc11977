"""The readers of a replica see nothing that its leader has not released (replica-acks)."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from replication.frames import ALIVE, ALIVE_BODY, BATCH, CONFIRM, EACH, MESSAGE, encode, message
from storage.model import records
from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until
from tests.replication.fakeleader import FakeLeader, going_on
from tests.replication.test_psync import Replica
from tests.wire.rawclient import Raw


class Withholding(FakeLeader):
    """A leader with replica-acks that sends what the test says."""

    def __init__(self) -> None:
        self.steps: queue.Queue[bytes] = queue.Queue()
        self.offset = -1  # end of what was sent
        super().__init__(self._sent)

    def _sent(self, offset: int) -> Iterator[bytes]:
        self.offset = max(offset, self.offset)
        yield going_on(encode(ALIVE, offset, ALIVE_BODY.pack(EACH)))
        while part := self.steps.get():
            yield part

    def _answer(self, sock: socket.socket, argv: list[bytes]) -> None:
        """Send the steps from another thread, so that acknowledgements are read meanwhile."""
        if argv[0] == b"PSYNC":
            threading.Thread(target=self._send_steps, args=(sock, argv), daemon=True).start()
        else:
            super()._answer(sock, argv)

    def _send_steps(self, sock: socket.socket, argv: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            super()._answer(sock, argv)

    def write(self, key: bytes, value: bytes) -> None:
        batch = records.set_string(key, value, 0)
        self.steps.put(encode(BATCH, self.offset, batch))
        self.offset += len(batch)

    def confirm(self, offset: int | None = None) -> None:
        self.steps.put(encode(CONFIRM, self.offset if offset is None else offset))

    def close(self) -> None:
        self.steps.put(b"")
        super().close()

    def __enter__(self) -> Self:
        return self


def withheld(node: Node) -> int:
    return int(node.info().get("withheld_clients", 0))


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    with cluster() as made:
        yield made.node(repl_timeout=60)


@pytest.fixture
def follower(shared: Node) -> Iterator[tuple[Node, Withholding]]:
    """A replica with default settings that has followed a leader with replica-acks up to the write of ``k``, which is
    not confirmed."""
    node = shared
    node.lead(force=True)
    node("SET", "before", "1")
    with Withholding() as leader:
        node.follow(leader.port)
        wait_until(lambda: leader.offset >= 0, "it follows")
        leader.confirm()
        leader.write(b"k", b"v")
        wait_until(lambda: node.offset == leader.offset, "it has the write")
        yield node, leader


def test_a_read_waits_until_the_leader_has_confirmed(follower: tuple[Node, Withholding]) -> None:
    node, leader = follower
    with Raw(node.port) as first, Raw(node.port) as second, Raw(node.port) as idle:
        first.send("GET", "k")
        wait_until(lambda: withheld(node) == 1, "the reply is withheld")
        end = leader.offset
        leader.write(b"k", b"w")
        wait_until(lambda: node.offset == leader.offset, "it has the next write")
        second.send("GET", "k")
        wait_until(lambda: withheld(node) == 2, "the second reply is withheld")
        assert idle("PING") == b"PONG"
        leader.confirm(end)
        assert first.read() == b"v"
        assert second.nothing_yet()
        assert node.info()["replica_acks_offset"] == end
        leader.confirm()
        assert second.read() == b"w"
        assert second("GET", "before") == b"1"


def test_blocked_readers_and_subscribers_wait(follower: tuple[Node, Withholding]) -> None:
    node, leader = follower
    with Raw(node.port) as subscriber, Raw(node.port) as cache:
        leader.confirm()
        subscriber("SUBSCRIBE", "news")
        cache("HELLO", 3)
        cache("CLIENT", "TRACKING", "ON")
        assert cache("GET", "k") == b"v"
        leader.write(b"k", b"w")
        leader.steps.put(message(b"news", b"k is w"))
        wait_until(lambda: withheld(node) == 2, "the message and the invalidation are withheld")
        assert subscriber.nothing_yet()
        assert cache.nothing_yet()
        leader.confirm()
        assert subscriber.read() == [b"message", b"news", b"k is w"]
        assert cache.read()[1] == [b"k"]


def test_a_leader_without_replica_acks_releases_everything(follower: tuple[Node, Withholding]) -> None:
    node, leader = follower
    with Raw(node.port) as reader:
        reader.send("GET", "k")
        wait_until(lambda: withheld(node) == 1, "the reply is withheld")
        leader.steps.put(encode(ALIVE, leader.offset, ALIVE_BODY.pack(0)))
        assert reader.read() == b"v"
        leader.write(b"k", b"w")
        wait_until(lambda: reader("GET", "k") == b"w", "it reads on")


def test_a_promoted_replica_releases_everything(follower: tuple[Node, Withholding]) -> None:
    """Its own log is now what counts, and its replica-acks is 0."""
    node, _ = follower
    with Raw(node.port) as reader:
        reader.send("GET", "k")
        wait_until(lambda: withheld(node) == 1, "the reply is withheld")
        node.lead(force=True)
        assert reader.read() == b"v"
        assert reader("SET", "k", "w") == b"OK"


def test_a_copy_closes_the_readers_that_wait(follower: tuple[Node, Withholding], servers: Cluster) -> None:
    """What they read is not in the copy, whose log offset may be as high."""
    node, _ = follower
    other = servers.node()
    other("SET", "other", "1")
    with Raw(node.port) as reader:
        reader.send("GET", "k")
        wait_until(lambda: withheld(node) == 1, "the reply is withheld")
        node.follow(other.port, force=True)
        with pytest.raises((EOFError, ConnectionError)):
            reader.read()
    wait_until(lambda: in_sync(other, node), "the copy is in use")


def test_a_restarted_replica_waits_for_its_leader(follower: tuple[Node, Withholding]) -> None:
    """It does not know what is confirmed; its own replica-acks says that leaders withhold replies."""
    node, leader = follower
    leader.close()
    node.kill()
    node.config["replica-acks"] = 1
    node.start()
    node.config.pop("replica-acks")
    with Raw(node.port) as reader:
        reader.send("GET", "k")
        wait_until(lambda: withheld(node) == 1, "the reply is withheld")
        with Withholding() as again:
            node.follow(again.port)
            wait_until(lambda: again.offset >= 0, "it follows")
            again.confirm()
            assert reader.read() == b"v"


def test_each_batch_is_acknowledged_at_once(servers: Cluster) -> None:
    """Not only with the periodic acknowledgement, a second later: the periodic work may run between a batch and its
    tick. It runs 500 times a second here."""
    node = servers.node(hz=500, repl_timeout=60)
    node("SET", "before", "1")
    with Withholding() as leader:
        node.follow(leader.port)
        wait_until(lambda: leader.offset >= 0, "it follows")
        end = time.monotonic() + 20
        for number in range(100):
            leader.write(b"k", b"%d" % number)
            wanted = b"%d" % leader.offset
            while leader.requests[-1][-1:] != [wanted]:
                assert time.monotonic() < end, f"{number} batches are acknowledged in 20 seconds"
                time.sleep(0.0002)


def test_a_real_leader_confirms_soon(servers: Cluster) -> None:
    """Not only with its next batch or keepalive."""
    leader, first = servers.pair(repl_timeout=60, repl_ping_replica_period=60)
    second = servers.node(of=leader.port, repl_timeout=60)
    wait_until(lambda: in_sync(leader, first, second), "in sync")
    for node in (leader, first, second):
        node("CONFIG", "SET", "replica-acks", 2)
    assert leader("SET", "before", "1")
    with Raw(leader.port) as writer, Raw(first.port) as reader:
        assert reader("GET", "before") == b"1"
        second.freeze()
        writer.send("SET", "k", "v")
        wait_until(lambda: first.offset == leader.offset, "one replica has the write")
        reader.send("GET", "k")
        wait_until(lambda: withheld(first) == 1, "its reader waits")
        assert reader.nothing_yet()
        second.thaw()
        assert writer.read() == b"OK"
        assert reader.read() == b"v"


def test_messages_follow_the_changes_of_their_transaction(servers: Cluster) -> None:
    leader = servers.node(replica_acks=0)
    with Replica(leader.port) as replica, Raw(leader.port) as raw:
        replica.introduce()
        replica.ask("PSYNC", leader.info()["master_replid"], leader.offset)
        wait_until(lambda: leader.info()["connected_slaves"] == 1, "it is connected")
        leader("CONFIG", "SET", "replica-acks", 1)
        assert replica.frame(ALIVE).payload == b"\x03"
        raw.pipeline(("MULTI",), ("SET", "k", "v"), ("PUBLISH", "news", "k is v"))
        raw.send("EXEC")
        assert [replica.frame(BATCH, MESSAGE).kind for _ in range(2)] == [BATCH, MESSAGE]
