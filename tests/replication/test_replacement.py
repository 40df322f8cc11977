"""What clients of a replica see while its data is replaced by a copy of its leader's."""

from __future__ import annotations

import socket
import threading

from tests.replication.cluster import Cluster, Node, in_sync, wait_until
from tests.wire.rawclient import Raw, pack


def two_leaders(servers: Cluster, entries: int = 1000) -> tuple[Node, Node]:
    """Two leaders with different data under the same keys."""
    leader, other = servers.node(stream_node_max_entries=100), servers.node(stream_node_max_entries=100)
    for node, text in ((leader, b"new"), (other, b"old")):
        for _ in range(entries // 500):
            node("TMAPPEND", "big", "FIELDS", 1, "f", "VALUES", *[text + b"x" * 1000 for _ in range(500)])
        node("SET", "k", text)
        node("SAVE")
    return leader, other


def test_a_long_reply_that_is_being_sent(servers: Cluster) -> None:
    """A slow reader of a range gets all of the old data, or its connection is closed. It never gets a mixture."""
    leader, other = two_leaders(servers, 12_000)  # more than sockets and buffers hold
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
            while b"new" not in got and got.count(b"old") < 12_000:
                data = sock.recv(1 << 20)
                if not data:
                    break
                got += data
        except ConnectionResetError:
            pass
    assert b"new" not in got
    assert other("GET", "k") == b"new"
    assert other("TLEN", "big") == 12_000
    assert not any("Traceback" in line for line in other.output)


def test_readers_stay_and_are_served_from_the_new_data(servers: Cluster) -> None:
    leader, other = two_leaders(servers)
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
    """They get old data, new data, or LOADING; nothing else, and no connection is closed."""
    leader, other = two_leaders(servers)
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
                if not (length == 1000 or str(length).startswith("LOADING")):
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
