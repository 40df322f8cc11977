"""What moves the fields of INFO of a replica: each step, and the fields that then move."""

from __future__ import annotations

import os
import select
import socket
import time

from tests.waiting import eventually
from tests.wire.infoworld import Check, Step, World, became, changed, fields, grew


def follows(w: World) -> None:
    w.follow()
    w.me("SET", "k", "v")


def loses_its_end(w: World) -> None:
    w.follow()
    w.its("REPLICAOF", "NO", "ONE", "FORCE")
    w.its("SET", f"own{time.monotonic_ns()}", "v")
    w.follow()


def its_directives(w: World) -> None:
    w.follow()
    for name, value, back in (("replica-priority", "7", "100"), ("replica-announced", "no", "yes")):
        assert w.its("CONFIG", "SET", name, value) == b"OK"
        w.stack.callback(w.its, "CONFIG", "SET", name, back)


def leads(w: World) -> None:
    w.follow()
    w.me("SET", "more", "v" * 1000)  # it begins further on than where it led before
    eventually(lambda: fields(w.its)["slave_repl_offset"] == fields(w.me)["master_repl_offset"])
    w.its("REPLICAOF", "NO", "ONE", "FORCE")


def loses_its_leader(w: World) -> None:
    w.follow()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    w.its("REPLICAOF", "127.0.0.1", port)


def copies(w: World) -> None:
    """Follow the server through a proxy that stops in the middle of the copy."""
    values = [os.urandom(400) for _ in range(2000)]
    w.me("CONFIG", "SET", "min-replicas-to-write", 0)  # no replica is connected now
    w.me("TAPPEND", f"common{time.monotonic_ns()}", "f", "v")
    w.follow()
    w.its("REPLICAOF", "NO", "ONE", "FORCE")
    w.its("SET", f"own{time.monotonic_ns()}", "v")  # a history of its own
    eventually(lambda: w.its("SAVE") == b"OK")  # which its store includes: it needs a copy, except for equal nodes
    assert len(w.me("TMAPPEND", f"random{time.monotonic_ns()}", "FIELDS", 1, "f", "VALUES", *values)) == 2
    eventually(lambda: w.me("SAVE") == b"OK")  # one of its own may be running; what the log has comes as one piece
    listener = w.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.settimeout(10)
    w.stack.callback(w.its, "REPLICAOF", "NO", "ONE", "FORCE")
    w.its("REPLICAOF", "127.0.0.1", listener.getsockname()[1], "FORCE")
    near = w.stack.enter_context(listener.accept()[0])
    far = w.stack.enter_context(socket.create_connection(("127.0.0.1", w.hand.port)))
    for sock in (near, far):
        sock.settimeout(10)
    asked = b""
    while b"PSYNC" not in asked:
        asked = near.recv(1 << 16)
        far.sendall(asked)
        if b"PSYNC" not in asked:
            near.sendall(far.recv(1 << 16))
    passed = 0
    while passed < 600_000:  # of 800 KB or more; a piece may have 400 KB
        for sock in select.select([near, far], [], [], 10)[0]:
            data = sock.recv(10_000)
            (far if sock is near else near).sendall(data)
            passed += len(data) if sock is far else 0
    eventually(lambda: int(fields(w.its).get("master_sync_read_bytes", "0")) > 0)


ITS_MOVES: list[tuple[Step, dict[str, Check]]] = [
    (follows, {
        "role": became("slave"), "master_host": became("127.0.0.1"), "master_port": changed,
        "master_link_status": became("up"), "master_last_io_seconds_ago": changed, "slave_read_repl_offset": grew,
        "slave_repl_offset": grew, "total_net_repl_input_bytes": grew, "master_replid": changed,
    }),
    (loses_its_end, {"sync_truncated": grew}),
    (its_directives, {"slave_priority": became("7"), "replica_announced": became("0")}),
    (loses_its_leader, {"master_link_status": became("down"), "master_link_down_since_seconds": changed}),
    (copies, {
        "master_sync_in_progress": became("1"), "master_sync_total_bytes": grew,
        "master_sync_read_bytes": grew, "master_sync_left_bytes": grew, "master_sync_perc": grew,
        "master_sync_last_io_seconds_ago": changed, "master_sync_reused_bytes": grew,
    }),
    (leads, {
        "master_replid": changed, "master_replid2": changed, "second_repl_offset": grew,
    }),
]  # fmt: skip
