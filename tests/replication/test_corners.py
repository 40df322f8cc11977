"""Corners: offsets within batches, logs that parted, slow and large copies, what clients do while data is replaced."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from persistence import history
from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.replication.proxy import Proxy
from tests.wire.rawclient import Raw, pack


def star(servers: Cluster) -> tuple[Node, Node, Proxy, Node, Proxy]:
    """A leader and two replicas, each behind a proxy."""
    leader = servers.node()
    leader("SET", "k", "v")
    made: list[tuple[Node, Proxy]] = []
    for _ in range(2):
        proxy = servers.proxy(leader)
        made.append((servers.node(of=proxy.port), proxy))
    (b, to_b), (c, to_c) = made
    wait_until(lambda: in_sync(leader, b, c), "in sync")
    return leader, b, to_b, c, to_c


# -- offsets -----------------------------------------------------------------------------------------------------
def test_an_offset_within_a_batch_of_the_new_leader(servers: Cluster) -> None:
    """One replica takes ten batches as one; another has some of them and goes on with the first."""
    leader, b, to_b, c, to_c = star(servers)
    to_b.down.hold()
    for number in range(5):
        leader("TAPPEND", "s", "n", number)
    wait_until(lambda: c.offset == leader.offset, "c has five")
    to_c.down.hold()
    for number in range(5, 10):
        leader("TAPPEND", "s", "n", number)
    to_b.down.release()
    wait_until(lambda: b.offset == leader.offset, "b has ten")
    assert c.offset < b.offset
    leader.kill()
    b.lead()
    to_c.cut()
    c.follow(b.port)
    assert_same(b, c)
    assert b.syncs == (0, 1)
    assert [row[2] for row in c("TRANGE", "s", "-", "+")] == [b"%d" % number for number in range(10)]
    c.kill()
    c.start()
    assert_same(b, c)
    assert b.syncs == (0, 2)


def test_a_replica_that_has_more_than_the_new_leader(servers: Cluster) -> None:
    leader, b, to_b, c, _ = star(servers)
    to_b.down.hold()
    leader("TAPPEND", "s", "n", 1)
    wait_until(lambda: c.offset == leader.offset, "c has it")
    leader.kill()
    to_b.cut()
    b.lead()
    c.follow(b.port)
    assert_same(b, c)
    assert b.syncs == (1, 0)
    assert c("EXISTS", "s") == 0
    for number in range(3):
        b("TAPPEND", "s", "n", number)
    assert_same(b, c)


def test_a_leader_restored_from_a_backup_goes_its_own_way(servers: Cluster) -> None:
    """Same replication ID, and at last as many bytes: but others, which the replica's last bytes give away."""
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    leader.stop()
    backup = leader.directory.with_name("backup")
    shutil.copytree(leader.directory, backup)
    leader.start()
    for number in range(20):
        leader("SET", "n", number)
    assert_same(leader, replica)
    replica.freeze()
    leader.kill()
    shutil.rmtree(leader.directory)
    backup.rename(leader.directory)
    leader.start()
    for number in range(40):
        leader("SET", "m", number)
    assert leader.offset > replica_offset_of(replica)
    replica.thaw()
    assert_same(leader, replica)
    assert leader.syncs == (1, 0)
    assert replica("EXISTS", "n") == 0


def replica_offset_of(replica: Node) -> int:
    replica.thaw()
    try:
        return replica.offset
    finally:
        replica.freeze()


def boot_again(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Make a data directory look as if the machine had been started since."""
    with monkeypatch.context() as patch:
        patch.setattr(history, "boot_id", lambda: "00000000-another-boot")
        history.History.load(directory, "0" * 40).save(directory)


@pytest.mark.parametrize("lost", [False, True], ids=["nothing lost", "its end lost"])
def test_a_leader_whose_machine_went_down(servers: Cluster, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """It begins a new history; a replica that has more gives that up, one that hasn't goes on."""
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    leader.stop()
    backup = leader.directory.with_name("backup")
    shutil.copytree(leader.directory, backup)
    before = ""
    if lost:
        leader.start()
        leader("SET", "k", "w")
        assert_same(leader, replica)
        leader.kill()
    shutil.rmtree(leader.directory)
    backup.rename(leader.directory)
    boot_again(monkeypatch, leader.directory)
    before = history.History.load(leader.directory, "0" * 40).id
    leader.start()
    assert leader.info()["master_replid"] != before
    assert leader.info()["master_replid2"] == before
    assert_same(leader, replica)
    assert leader.syncs == ((1, 0) if lost else (0, 1))
    assert replica("GET", "k") == b"v"
    assert replica.info()["master_replid"] == leader.info()["master_replid"]


def test_everyone_restarts_and_nothing_is_copied(servers: Cluster) -> None:
    first, second = servers.pair()
    third = servers.node(of=second.port)
    first("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(500))
    assert_same(first, second, third)
    digest = first.digest()
    for node in (third, first, second):
        node.kill()
    for node in (second, third, first):
        node.start()
    assert_same(first, second, third)
    assert third.digest() == digest
    assert [node.syncs[0] for node in (first, second, third)] == [0, 0, 0]


# -- slow and large ----------------------------------------------------------------------------------------------
def test_a_copy_takes_longer_than_the_timeout(servers: Cluster) -> None:
    leader = servers.node(repl_timeout=2)
    leader("SET", "k", "x" * 280_000)
    leader("SAVE")
    proxy = servers.proxy(leader)
    proxy.down.rate = 100_000
    replica = servers.node(of=proxy.port, repl_timeout=2)
    assert_same(leader, replica)
    assert leader.syncs[0] == 1
    leader("SET", "k", "y" * 280_000)  # one batch
    assert_same(leader, replica)
    assert leader.syncs == (1, 0)


def test_a_copy_that_stands_still_is_given_up_by_both(servers: Cluster) -> None:
    leader = servers.node(repl_timeout=2)
    leader("SET", "k", "x" * 400_000)
    leader("SAVE")
    proxy = servers.proxy(leader)
    proxy.down.swallow(after=100_000)
    replica = servers.node(of=proxy.port, repl_timeout=2)
    wait_until(proxy.down.fired.is_set, "it stands still")
    assert_same(leader, replica)
    assert leader.syncs[0] == 2


@pytest.mark.timeout(110)
def test_a_huge_transaction(servers: Cluster) -> None:
    leader, replica = servers.pair(repl_timeout=20)
    with Raw(leader.port) as raw:
        raw.sock.settimeout(60)
        raw.pipeline(("MULTI",), *[("SET", f"k{number}", "x" * 16_000_000) for number in range(6)])
        assert raw("EXEC") == [b"OK"] * 6
        assert raw("WAIT", 1, 60_000) == 1
    assert replica("STRLEN", "k5") == 16_000_000
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


# -- clients while data is replaced ------------------------------------------------------------------------------
def unlike(servers: Cluster) -> tuple[Node, Node]:
    """Two leaders with other data under the same keys."""
    leader, other = servers.node(stream_node_max_entries=100), servers.node(stream_node_max_entries=100)
    for node, text in ((leader, b"new"), (other, b"old")):
        for _ in range(20):
            node("TMAPPEND", "big", "FIELDS", 1, "f", "VALUES", *[text + b"x" * 1000 for _ in range(1000)])
        node("SET", "k", text)
        node("SAVE")
    return leader, other


def test_a_long_reply_that_is_being_sent(servers: Cluster) -> None:
    """The reader of a range takes its time: it gets all of the old data, or its connection ends. Not a mixture."""
    leader, other = unlike(servers)
    other("CONFIG", "SET", "node-cache-size", "1mb")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", other.port))
        sock.sendall(pack("TRANGE", "big", "-", "+"))
        got = sock.recv(4096)
        other.follow(leader.port)
        wait_until(lambda: in_sync(leader, other), "the data is replaced")
        try:
            while b"new" not in got and got.count(b"old") < 20_000:
                data = sock.recv(1 << 20)
                if not data:
                    break
                got += data
        except ConnectionResetError:
            pass
    assert b"new" not in got
    assert other("GET", "k") == b"new"
    assert other("TLEN", "big") == 20_000
    assert not any("Traceback" in line for line in other.output)


def test_readers_stay_and_are_served_from_the_new_data(servers: Cluster) -> None:
    leader, other = unlike(servers)
    leader("TAPPEND", "news", "f", "v")
    with Raw(other.port) as waiting, Raw(other.port) as listening, Raw(other.port) as watching:
        waiting.send("TREAD", "news", "0", 10, "BLOCK", 0)
        listening("SUBSCRIBE", "channel")
        watching("WATCH", "k")
        watching("MULTI")
        watching("GET", "k")
        other.follow(leader.port)
        wait_until(lambda: in_sync(leader, other), "the data is replaced")
        assert waiting.read()[0][1:] == [b"f", b"v"]
        leader("PUBLISH", "channel", "hello")
        assert listening.read() == [b"message", b"channel", b"hello"]
        assert watching("EXEC") is None  # what it watched is another


def test_many_clients_while_data_is_replaced(servers: Cluster) -> None:
    """They get old data, new data, or LOADING; nothing else, and nobody is cut."""
    leader, other = unlike(servers)
    over = threading.Event()
    strange: list[object] = []

    def read() -> None:
        with Raw(other.port) as raw:
            while not over.is_set():
                value = raw("GET", "k")
                rows = raw("TREVRANGE", "big", "+", "-", "COUNT", 3)
                length = raw("TLEN", "big")
                info = raw("INFO")
                if not (value in (b"old", b"new") or str(value).startswith("LOADING")):
                    strange.append(value)
                if isinstance(rows, str):
                    if not rows.startswith("LOADING"):
                        strange.append(rows)
                elif len(rows) != 3 or {row[2][:3] for row in rows} - {b"old", b"new"}:
                    strange.append(rows)
                if not (length == 20_000 or str(length).startswith("LOADING")):
                    strange.append(length)
                if not isinstance(info, bytes):
                    strange.append(info)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            other.follow(leader.port)
            wait_until(lambda: in_sync(leader, other), "the data is replaced")
            other.lead()
            other("SET", "k", "old")  # so that it must be copied anew
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert not strange, strange[:3]


# -- an orderly end ----------------------------------------------------------------------------------------------
def test_a_leader_that_is_stopped_waits_for_its_replica(servers: Cluster) -> None:
    leader = servers.node()
    leader("SET", "k", "v")
    proxy = servers.proxy(leader)
    replica = servers.node(of=proxy.port)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    proxy.down.rate = 500_000
    for number in range(10):
        leader("SET", f"k{number}", "x" * 50_000)
    end = leader.offset
    leader.stop()
    assert replica.offset == end


def test_but_not_for_ever(servers: Cluster) -> None:
    leader = servers.node(shutdown_timeout=1)
    replica = servers.node(of=leader.port)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    replica.freeze()
    leader("SET", "k", "v")
    began = time.monotonic()
    leader.stop()
    assert 0.8 < time.monotonic() - began < 5
    replica.thaw()
