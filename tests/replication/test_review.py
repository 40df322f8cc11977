"""Corners in which logs could have parted, or a server could have been left without a link."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from persistence.history import History
from persistence.incoming import Incoming
from replication import frames
from replication.feed import AT_ONCE, Feed
from replication.frames import BATCH, encode
from replication.handshake import request
from respserver.clients.connection import connection_of
from respserver.testing import start_in_thread
from storage import records
from tests.replication.cluster import Cluster, Node, assert_same, connect, in_sync, wait_until
from tests.replication.test_strange_leaders import FakeLeader, going_on


def blocked_history(node: Node, blocked: bool) -> None:
    """Whether the server can write down a new replication ID."""
    place = node.directory / "replication.new"
    if blocked:
        place.mkdir()
    else:
        place.rmdir()


def test_failover_there_and_back_without_a_write(servers: Cluster) -> None:
    """Nothing was logged under the present ID: the replica must be asked by it all the same."""
    first, second = servers.pair()
    first("FAILOVER")
    wait_until(lambda: in_sync(second, first), "roles are swapped")
    second("FAILOVER", "TIMEOUT", 5000)
    wait_until(lambda: in_sync(first, second), "and swapped again")
    assert first.role == "master"
    assert first("SET", "k", "v")
    assert_same(first, second)
    assert (first.syncs[0], second.syncs[0]) == (1, 0)


def test_logs_that_differ_before_their_last_batch(servers: Cluster) -> None:
    """Of the same ID, and alike at their ends: restored from a backup, or led by configuration."""
    leader, replica = servers.pair()
    assert_same(leader, replica)
    replica.stop()
    replica.config.pop("replicaof")
    replica.start()
    replica("SET", "k", "x")
    leader("SET", "k", "y")
    for node in (leader, replica):
        for _ in range(3):
            node("SET", "same", "everywhere")
    replica.follow(leader.port)
    assert_same(leader, replica)
    assert replica("GET", "k") == b"y"


def test_a_leader_from_a_backup_that_ends_alike(servers: Cluster) -> None:
    """Its log went on from an older state, and its last batches are those that the replica has at the same place."""
    leader, replica = servers.pair()
    leader.stop()
    backup = leader.directory.with_name("backup")
    shutil.copytree(leader.directory, backup)
    leader.start()
    wait_until(lambda: in_sync(leader, replica), "in sync")
    for node, value in ((replica, "y"), (leader, "x")):
        if node is leader:
            replica.freeze()
            leader.kill()
            shutil.rmtree(leader.directory)
            shutil.copytree(backup, leader.directory)
            leader.start()
        leader("SET", "k", value)
        for _ in range(3):
            leader("SET", "same", "everywhere")
        if node is replica:
            wait_until(lambda: in_sync(leader, replica), "in sync")
    replica.thaw()
    wait_until(lambda: leader.syncs != (0, 0), "it comes back")  # until then it looks as if it were in sync
    assert_same(leader, replica)
    assert replica("GET", "k") == b"x"


def test_what_an_old_id_is_good_for_ends_where_the_log_ends() -> None:
    """The machine went down, and the end of the log with it: what is logged there now is another history."""
    history = History("a" * 40)
    history.shift(1000)
    history.shift(900)
    assert history.covers("a" * 40, 900, 2000)
    assert not history.covers("a" * 40, 950, 2000)


def test_a_replica_that_comes_while_the_role_changes(servers: Cluster) -> None:
    """It asks in the very tick in which the server becomes a leader: it is sent away, not left without an answer."""
    leader = servers.node()
    with (
        start_in_thread(replicaof=["127.0.0.1", str(leader.port)]) as running,
        socket.create_connection(("127.0.0.1", running.port), 10) as asks,
    ):
        server = running.server
        wait_until(lambda: server.link.up, "it follows")
        asks.sendall(request("REPLCONF", "tidelog", 1))
        assert asks.recv(100) == b"+OK\r\n"

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


def test_a_failover_that_fails_on_a_full_disk(servers: Cluster) -> None:
    """The target refuses, and the old leader can't take a new ID: it goes on trying to follow."""
    leader, replica = servers.pair()
    replica("CONFIG", "SET", "requirepass", "secret")
    blocked_history(leader, True)
    leader("FAILOVER")
    wait_until(lambda: leader.logged("FAILOVER is given up"), "it is given up")
    blocked_history(leader, False)
    leader("CONFIG", "SET", "masterauth", "secret")
    with replica.redis.client() as client:
        client.execute_command("AUTH", "secret")
        client.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: leader.link_up, "it follows")


def test_an_id_that_could_not_be_written_down(servers: Cluster) -> None:
    """A replica takes its leader's new ID only when it is on disk."""
    leader, replica = servers.pair()
    last = servers.node(of=replica.port)
    assert_same(leader, replica, last)
    blocked_history(last, True)
    replica.lead()
    replica("SET", "k", "v")
    wait_until(lambda: last.logged("replication.new"), "it can't be written")
    time.sleep(0.5)
    assert not last.link_up
    blocked_history(last, False)
    assert_same(replica, last)
    found = History.load(last.directory, "0" * 40)
    assert found.id == replica.info()["master_replid"]


def test_an_offset_within_a_record_gets_a_copy(servers: Cluster) -> None:
    """Not a link that breaks, again and again."""
    leader = servers.node()
    leader("SET", "k", "a long enough value")
    with socket.create_connection(("127.0.0.1", leader.port), 10) as asks:
        asks.sendall(request("REPLCONF", "tidelog", 1))
        assert asks.recv(100) == b"+OK\r\n"
        asks.sendall(request("PSYNC", leader.info()["master_replid"], leader.offset - 3))
        assert asks.recv(1000).startswith(b"+FULLRESYNC")


def test_siblings_go_on_at_the_new_leader(servers: Cluster) -> None:
    """It kept what they may lack while it was a replica, and lets go of it no sooner than any leader."""
    leader, replica = servers.pair()
    sibling = servers.node(of=leader.port)
    assert_same(leader, replica, sibling)
    sibling.kill()
    leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(100))
    assert_same(leader, replica)
    replica("SAVE")
    replica.lead()
    replica("SET", "k", "v")
    time.sleep(0.5)  # time to let go of it
    sibling.config["replicaof"] = f"127.0.0.1 {replica.port}"
    sibling.start()
    assert_same(replica, sibling)
    assert replica.syncs == (0, 1)


def test_a_copy_waits_for_the_end_of_another(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was called off is still being written when the next leader is to be followed."""
    first, second = servers.node(), servers.node()
    for node in (first, second):
        node("SET", "k", node.port)
        node("SAVE")
    entered, go_on = threading.Event(), threading.Event()
    add = Incoming.add

    def slow(self: Incoming, payload: bytes) -> None:
        if not entered.is_set():
            entered.set()
            go_on.wait(2)
        else:
            go_on.set()
            time.sleep(0.3)  # the first one ends, if it hasn't
        add(self, payload)

    monkeypatch.setattr(Incoming, "add", slow)
    with start_in_thread() as follower, connect(follower.port) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", first.port)
        assert entered.wait(20)
        client.execute_command("REPLICAOF", "127.0.0.1", second.port)
        wait_until(lambda: client.get("k") == b"%d" % second.port, "the second leader's data")
        assert second.syncs == (1, 0)


class Reluctant:
    """A transport whose buffer is full when it has been given so many bytes; then its protocol is told so."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.got = b""
        self.feed: Feed

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == AT_ONCE

    def set_protocol(self, feed: Feed) -> None:
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


def test_the_last_room_is_taken_by_a_sign_of_life(tmp_path: Path) -> None:
    """A feed that has to stop just where it would be live goes on when there is room."""
    with start_in_thread(tmp_path) as running, connect(running.port) as client:
        client.set("k", "v")
        server = running.server
        length = len(b"+CONTINUE %b\r\n" % server.data.disk.history.id.encode())

        async def run() -> bool:
            feed = Feed(server.replicas, "", 0, server.data.disk.offset, 0)
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


def test_no_reload_while_a_copy_arrives(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory can't be opened anew while a copy is being written into it."""
    leader = servers.node()
    leader("SET", "k", "v")
    leader("SAVE")
    entered, go_on = threading.Event(), threading.Event()
    add = Incoming.add

    def slow(self: Incoming, payload: bytes) -> None:
        entered.set()
        assert go_on.wait(20)
        add(self, payload)

    monkeypatch.setattr(Incoming, "add", slow)
    with start_in_thread(enable_debug_command="yes") as follower, connect(follower.port) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", leader.port)
        assert entered.wait(20)
        with pytest.raises(redis.ResponseError, match="copy"):
            client.execute_command("DEBUG", "RELOAD")
        go_on.set()
        wait_until(lambda: client.get("k") == b"v", "the leader's data")
        assert leader.syncs == (1, 0)


def test_what_was_logged_must_be_what_came(servers: Cluster) -> None:
    """A record that has no effect here, as it can't have had at a sound leader: not taken for the end of the log."""
    node = servers.node()
    node("SET", "k", "v")
    asked: list[int] = []

    def script(offset: int) -> bytes:
        asked.append(offset)
        return going_on(encode(BATCH, offset, records.expire(b"k", 0))) if len(asked) == 1 else b"-ERR no\r\n"

    fake = FakeLeader(script, close=False)
    try:
        node.follow(fake.port)
        wait_until(lambda: len(asked) >= 2, "it asks again")
    finally:
        fake.close()
    assert asked[1] == -1
    assert node("GET", "k") == b"v"


def test_failover_passes_by_whom_nobody_can_reach(servers: Cluster) -> None:
    """A link that never said where it listens, as that of a tool that makes copies."""
    leader = servers.node()
    leader("SET", "k", "v")
    replid, offset = leader.info()["master_replid"], leader.offset
    with socket.create_connection(("127.0.0.1", leader.port), 10) as tool:
        tool.sendall(request("REPLCONF", "tidelog", 1))
        assert tool.recv(100) == b"+OK\r\n"
        tool.sendall(request("PSYNC", replid, offset))
        assert tool.recv(1000).startswith(b"+CONTINUE")
        leader("FAILOVER", "TIMEOUT", 500)
        tool.sendall(request("REPLCONF", "ACK", offset, "FACK", offset))
        wait_until(lambda: leader.info()["master_failover_state"] == "no-failover", "it is given up", 5)
    assert leader.role == "master"
