"""What a leader answers to replicas, and to clients that pretend to be one, over raw sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

import pytest

from replication.frames import ALIVE, BATCH, COPY, DONE, PIECE, FrameDecoder, ReplicationFrame
from replication.handshake import request
from respserver.clients.connection import connection_of
from respserver.testing import start_in_thread
from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until
from tests.wire.rawclient import Raw, pack

Word = bytes | str | int
OTHER_ID = "a" * 40


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with cluster() as made:
        leader = made.node()
        leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(10))
        leader("SAVE")
        yield made


@pytest.fixture
def leader(shared: Cluster) -> Node:
    return shared.nodes[0]


class Replica:
    """A replica's end of the link, by hand."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.decoder = FrameDecoder()
        self.frames: list[ReplicationFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, *words: Word) -> bytes:
        """Send a command; returns the line that answers it. Frames after it are kept."""
        self.sock.sendall(pack(*words))
        data = b""
        while b"\r\n" not in data:
            more = self.sock.recv(1 << 16)
            assert more, "the leader closed the connection"
            data += more
        line, _, rest = data.partition(b"\r\n")
        self.frames += self.decoder.feed(rest)
        return line

    def introduce(self) -> None:
        assert self.ask("REPLCONF", "tidelog", 1).startswith(b"+OK ")
        assert self.ask("REPLCONF", "listening-port", 1) == b"+OK"

    def frame(self, *kinds: int) -> ReplicationFrame:
        """The next frame of one of these kinds."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame.kind in kinds:
                    return frame
            data = self.sock.recv(1 << 16)
            assert data, "the leader closed the connection"
            self.frames += self.decoder.feed(data)

    def closed(self) -> bool:
        """Whether the leader closes the connection."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (("REPLCONF", "listening-port", "x"), b"-ERR"),
        (("REPLCONF", "listening-port"), b"-ERR"),
        (("REPLCONF", "no-such-thing", 1), b"-ERR"),
        (("REPLCONF", "tidelog", 999), b"-ERR"),
        (("REPLCONF", "history", 1), b"-ERR"),
        (("REPLCONF", "history", "x:y"), b"-ERR"),
        (("REPLCONF", "history", "5"), b"-ERR"),
        (("REPLCONF", "history", "-5:1"), b"-ERR"),
        (("REPLCONF", "history", "5:-1"), b"-ERR"),
        (("PSYNC",), b"-ERR wrong number of arguments"),
        (("PSYNC", "?"), b"-ERR wrong number of arguments"),
        (("PSYNC", "?", "x"), b"-ERR"),
        (("PSYNC", "A" * 40, 0), b"-ERR PSYNC replicationid"),
        (("PSYNC", "a" * 41, 0), b"-ERR PSYNC replicationid"),
        (("PSYNC", "a" * 40 + "\n", 0), b"-ERR PSYNC replicationid"),
        (("PSYNC", "?", -1), b"-ERR"),  # has not said that it is a tidelog server
        (("PSYNC", OTHER_ID, 0, "NOW"), b"-ERR"),
        (("PSYNC", OTHER_ID, 0, "FAILOVER"), b"-ERR"),
        (("SYNC",), b"-ERR SYNC is not supported"),
    ],
)
def test_errors(words: tuple[Word, ...], start: bytes, leader: Node) -> None:
    with Replica(leader.port) as replica:
        line = replica.ask(*words)
        assert line.startswith(start), line
        assert replica.ask("PING") == b"+PONG"  # and it is still an ordinary client
    assert leader.info()["connected_slaves"] == 0


def test_only_a_replica_can_be_handed_over_to(servers: Cluster) -> None:
    leader, replica = servers.pair()
    with Replica(replica.port) as client:
        replid = leader.info()["master_replid"]
        assert client.ask("PSYNC", replid, 0, "FAILOVER").startswith(b"-ERR replicas of this server are tidelog")
        client.introduce()
        assert client.ask("PSYNC", replid, "x", "FAILOVER").startswith(b"-ERR")
    assert replica.role == "slave"
    assert in_sync(leader, replica)


def test_a_password_is_asked_for_first(servers: Cluster) -> None:
    node = servers.node(requirepass="secret")
    with Replica(node.port) as replica:
        for words in (("PING",), ("REPLCONF", "tidelog", 1), ("PSYNC", "?", -1)):
            assert replica.ask(*words).startswith(b"-NOAUTH")


def test_a_full_copy(leader: Node) -> None:
    with Replica(leader.port) as replica:
        replica.introduce()
        word, replid, offset = replica.ask("PSYNC", "?", -1).split()
        assert word == b"+FULLRESYNC"
        assert replid.decode() == leader.info()["master_replid"]
        assert replica.frame(COPY, BATCH).kind == COPY
        assert replica.frame(PIECE, DONE).kind == PIECE
        assert replica.frame(DONE).offset == int(offset)
        leader("SET", "k", "v")
        batch = replica.frame(BATCH)
        assert batch.offset == int(offset)


def test_a_continuation(leader: Node) -> None:
    replid, offset = leader.info()["master_replid"], leader.offset
    with Replica(leader.port) as replica:
        replica.introduce()
        assert replica.ask("PSYNC", replid, offset) == b"+CONTINUE %b" % replid.encode()
        leader("SET", "k", "v")
        batch = replica.frame(BATCH)
        assert batch.offset == offset
        assert offset + len(batch.payload) == leader.offset
        assert replica.frame(ALIVE).offset >= offset


def test_a_replica_that_reads_late_gets_every_byte(leader: Node) -> None:
    """Its socket takes part of a batch, and none of some: the others go out from where the socket, the buffer behind it
    and the log have them."""
    replid, start = leader.info()["master_replid"], leader.offset
    with Replica(leader.port) as replica:
        replica.introduce()
        replica.ask("PSYNC", replid, start)
        replica.frame(ALIVE)
        for size in (1, 100_000, 2_000_000, 3, 5_000_000, 700_000, 1):
            leader("SET", "k", bytes([size % 251]) * size)
        at = start
        while at < leader.offset:
            batch = replica.frame(BATCH)  # whose checksums are right
            assert batch.offset == at
            at += len(batch.payload)
    leader("DEL", "k")


@pytest.mark.parametrize("what", ["another history", "from the future"])
def test_no_continuation(what: str, leader: Node) -> None:
    replid, offset = leader.info()["master_replid"], leader.offset
    before = leader.info("stats")["sync_partial_err"]
    with Replica(leader.port) as replica:
        replica.introduce()
        asked = (OTHER_ID, offset) if what == "another history" else (replid, offset + 1000)
        assert replica.ask("PSYNC", *asked).startswith(b"+FULLRESYNC")
    assert leader.info("stats")["sync_partial_err"] == before + 1


def test_an_offset_within_a_record_gets_a_copy(leader: Node) -> None:
    """No replica should have such an offset. It gets a copy, not a link that breaks again and again."""
    leader("SET", "k", "a long enough value")
    with Replica(leader.port) as replica:
        replica.introduce()
        line = replica.ask("PSYNC", leader.info()["master_replid"], leader.offset - 3)
        assert line.startswith(b"+FULLRESYNC")
    assert leader("SET", "k", "v")


def test_another_log_under_the_same_id_gets_a_copy(leader: Node) -> None:
    """The crc of its log's end is not that of this leader's log at the same offset."""
    end = leader.offset
    leader("SET", "k", "v")
    with Replica(leader.port) as replica:
        replica.introduce()
        assert replica.ask("REPLCONF", "history", f"{end}:12345") == b"+OK"
        assert replica.ask("PSYNC", leader.info()["master_replid"], leader.offset).startswith(b"+FULLRESYNC")


@pytest.mark.parametrize(
    "words",
    [
        ("ACK", -5, "FACK", 0), ("ACK", -5, "FACK", -6), ("ACK", -5), ("ACK", 0, "FACK", -1), ("ACK", 0, "FACK", 1),
        ("ACK", 1 << 62, "FACK", 0), ("ACK", 1 << 62), ("ACK", 1 << 64), ("ACK", "9" * 5000), ("ACK", "x"),
        ("ACK", "+1"), ("ACK", " 1"), ("ACK", "1_0"), ("ACK", ""),
    ],
    ids=str,
)  # fmt: skip
def test_an_impossible_acknowledgement_ends_the_link(words: tuple[Word, ...], leader: Node) -> None:
    with Replica(leader.port) as replica:
        replica.introduce()
        replica.ask("PSYNC", leader.info()["master_replid"], leader.offset)
        wait_until(lambda: leader.info()["connected_slaves"] == 1, "it is a replica")
        before = len(leader.output)
        replica.sock.sendall(pack("REPLCONF", *words))
        wait_until(lambda: any("it acknowledged" in line for line in leader.output[before:]), "it is sent away")
        assert replica.closed()


def test_an_acknowledgement_does_not_go_back(leader: Node) -> None:
    with Replica(leader.port) as replica, Raw(leader.port) as first, Raw(leader.port) as second:
        replica.introduce()
        replica.ask("PSYNC", leader.info()["master_replid"], leader.offset)
        first("SET", "k", "v")
        middle = leader.offset
        second("SET", "k", "w")
        end = leader.offset
        replica.frame(BATCH)
        for has, on_disk in ((middle, middle), (0, 0), (end, 0)):
            replica.sock.sendall(pack("REPLCONF", "ACK", has, "FACK", on_disk))
        wait_until(lambda: leader.info()["slave0"]["offset"] == end, "the last one is noted")
        assert first("WAITAOF", 0, 1, 10)[1] == 1
        assert second("WAITAOF", 0, 1, 10)[1] == 0


def test_junk_from_a_replica_ends_the_link(leader: Node) -> None:
    with Replica(leader.port) as replica:
        replica.introduce()
        replica.ask("PSYNC", leader.info()["master_replid"], leader.offset)
        replica.sock.sendall(b"*1\r\n$x\r\n" + b"\0" * 100_000)
        wait_until(lambda: leader.info()["connected_slaves"] == 0, "it is sent away")
    assert leader("SET", "k", "v")


def test_psync_is_refused_in_a_transaction(leader: Node) -> None:
    with Raw(leader.port) as raw:
        raw("MULTI")
        assert raw("PSYNC", "?", -1).startswith("ERR")
        assert raw("EXEC").startswith("EXECABORT")


def test_many_come_and_go(leader: Node) -> None:
    for _ in range(30):
        with Replica(leader.port) as replica:
            replica.introduce()
            replica.ask("PSYNC", "?", -1)
    wait_until(lambda: leader.info()["connected_slaves"] == 0, "all are gone")
    assert leader("SET", "k", "v")


def test_a_leader_that_can_start_no_thread_says_so_and_closes(
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A replica that hears signs of life, and never the copy, would wait for ever."""

    def no_thread(self: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    with start_in_thread() as leader, Replica(leader.port) as replica:
        with monkeypatch.context() as starved:
            starved.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
            replica.introduce()
            replica.sock.sendall(pack("PSYNC", "?", -1))
            assert replica.closed()
        with Replica(leader.port) as again:
            again.introduce()
            assert again.ask("PSYNC", "?", -1).startswith(b"+FULLRESYNC")
            assert again.frame(DONE)


def test_a_replica_that_asks_while_the_role_changes(servers: Cluster) -> None:
    """It asks in the tick in which the server becomes a leader: the connection is closed, not left unanswered."""
    leader = servers.node()
    with (
        start_in_thread(replicaof=["127.0.0.1", str(leader.port)]) as running,
        socket.create_connection(("127.0.0.1", running.port), 10) as asks,
    ):
        server = running.server
        wait_until(lambda: server.link.up, "it follows")
        asks.sendall(request("REPLCONF", "tidelog", 1))
        assert asks.recv(100).startswith(b"+OK ")

        def both() -> None:
            (session,) = [session for session in server.clients if session.replica is None]
            conn = connection_of(session)
            assert conn is not None
            conn.data_received(request("PSYNC", "?", -1))
            assert server.replicas.feeds
            server.roles.lead()

        running.call(both)
        asks.settimeout(5)
        with suppress(ConnectionResetError):
            assert asks.recv(100) == b""
        assert not server.replicas.feeds
