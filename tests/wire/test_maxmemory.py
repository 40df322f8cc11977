"""maxmemory: what is in memory counts, what can leave memory does, and deleting makes room at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw
from tidelog.testing import running_server

Connect = Callable[..., Raw]
OOM = "OOM command not allowed when used memory > 'maxmemory'."
MB = 1 << 20


def memory(c: Raw) -> dict[str, int]:
    lines = c("INFO", "memory").decode().splitlines()
    return {name: int(value) for name, _, value in (line.partition(":") for line in lines) if value.isdigit()}


def used(c: Raw) -> int:
    return memory(c)["used_memory"]


def limit(c: Raw, size: int) -> None:
    assert c("CONFIG", "SET", "maxmemory", size) == b"OK"


def fill(c: Raw, *, key: str = "k{}", size: int = 10_000) -> int:
    """SET keys until one is refused; returns their number."""
    for number in range(10_000):
        if c("SET", key.format(number), b"x" * size) == OOM:
            return number
    raise AssertionError("never full")


def test_deleting_makes_room_at_once(c: Raw) -> None:
    limit(c, MB)
    full = fill(c)
    assert 90 < full < 110
    gone = full * 9 // 10
    replies = c.pipeline(
        ("SET", "more", "x"), ("DEL", *[f"k{n}" for n in range(gone)]), ("SET", "more", "x"), ("TAPPEND", "s", "f", "v")
    )
    assert replies[:3] == [OOM, gone, b"OK"]
    assert b"." in replies[3]
    assert fill(c, key="again{}") == pytest.approx(gone, abs=2)


def test_eviction_is_a_way_out(c: Raw) -> None:
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[os.urandom(10_000) for _ in range(200)])
    limit(c, MB)
    assert c("TAPPEV", "s", "COUNT", 0, "f", "v") == OOM  # it appends as well
    assert c("TAPPEV", "s", "COUNT", 10) == 190
    assert c("TAPPEV", "s", "COUNT", 0, "f", "v") != OOM


def test_the_limit_holds_from_the_command_on(c: Raw) -> None:
    c("SET", "k", b"x" * MB)
    assert c.pipeline(
        *[step for size in (MB, 2 * MB, MB, 0) for step in (("CONFIG", "SET", "maxmemory", size), ("SET", "l", "x"))]
    ) == [b"OK", OOM, b"OK", b"OK"] * 2  # fmt: skip


def test_exec_checks_again(c: Raw, connect: Connect) -> None:
    other = connect()
    c("MULTI")
    assert c("SET", "k", "x") == c("GET", "k") == b"QUEUED"
    other("SET", "full", b"x" * MB)
    limit(other, MB)
    assert c("EXEC") == f"EXECABORT Transaction discarded because of: {OOM}"
    assert c("GET", "k") is None
    c("MULTI")
    assert c("GET", "k") == OOM  # what waits takes memory, too
    assert c("EXEC") == "EXECABORT Transaction discarded because of previous errors."
    limit(other, 0)
    c("MULTI")
    c("GET", "k")
    limit(other, MB)
    assert c("EXEC") == [None]  # it adds nothing
    c("MULTI")
    assert c("DISCARD") == b"OK"


GROWTH: dict[str, list[tuple[Any, ...]]] = {
    "strings": [("SET", f"k{n}", b"x" * 1000) for n in range(100)],
    "keys": [("SET", f"k{n}", "") for n in range(500)],
    "long keys of streams": [("TAPPEND", "k" * 1000 + str(n), "f", "v") for n in range(100)],
    "streams": [("TAPPEND", f"s{n}", "f", "v") for n in range(200)],
    "one stream's tail": [("TAPPEND", "s", "f", b"x" * 50_000)],
    "its nodes": [("TAPPEND", "s", "f", str(n).encode() * 5_000) for n in range(64)],
    "expiries": [("SET", f"k{n}", "", "EX", 1000) for n in range(300)],
    "groups": [("TREAD", "s", 0, 0, "GROUP", f"g{n}", 0) for n in range(200)],
    "pending messages": [
        ("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(5000)),
        ("TREAD", "s", 0, 5000, "GROUP", "g", 0, "RETRY", 1000, 0),
    ],
    "stages": [("TSTAGE", f"t{n}", 0, "s", "FIELDS", 1, "f", "VALUES", b"x" * 200) for n in range(50)],
}


@pytest.mark.parametrize("what", GROWTH)
def test_what_counts(c: Raw, what: str) -> None:
    """It is counted, and it is gone when it is gone: by DEL (TDROP for stages), by FLUSHALL."""
    empty = used(c)
    for drop in ("each", "all"):
        c.pipeline(*GROWTH[what])
        grown = used(c)
        assert grown > empty + 20_000
        c("SAVE")
        stored = used(c)
        assert stored <= grown
        assert c("DEBUG", "RELOAD") == b"OK"
        # a short stream from the store has an index, which takes more than the append list of a new one
        assert empty < used(c) <= 1.25 * stored
        if drop == "each":
            c.pipeline(("TDROP", *[f"t{n}" for n in range(50)]), *[("DEL", name) for name in c("KEYS", "*")])
        else:
            c("FLUSHALL")
        assert used(c) == empty


def test_a_stream_leaves_memory_before_writes_are_refused() -> None:
    """With 2 MB of memory, 20 MB of entries: nodes go to the store, and all of it can be read again."""
    with running_server(maxmemory="2mb", node_cache_size="1mb", save="", appendfsync="no") as server, \
            Raw(server.port) as c:  # fmt: skip
        done = refused = 0
        value = bytes(range(256)) * 40
        while done < 2000:
            reply = c("TAPPEND", "s", "f", b"%d" % done + value[done % 100 :])
            if reply == OOM:
                refused += 1
            else:
                done += 1
        assert c("TLEN", "s") == 2000
        assert len(c("TRANGE", "s", "-", "+")) == 2000
        assert used(c) < 3 * MB
        c("TAPPEND", "s", "f", "v")


def test_the_cache_gives_way(c: Raw) -> None:
    value = b"%064d" % 7 * 100
    for _ in range(4):
        c.pipeline(*[("TAPPEND", "s", "f", value)] * 100)
    c("SAVE")
    assert len(c("TRANGE", "s", "-", "+")) == 400
    cached = memory(c)["mem_node_cache"]
    before = used(c)
    limit(c, before - cached // 2)
    assert c("SET", "k", "v") == b"OK"
    assert memory(c)["mem_node_cache"] <= cached // 2 + 1000
    assert len(c("TRANGE", "s", "-", "+")) == 400


def test_clients_count(c: Raw, connect: Connect, hand: RunningServer) -> None:
    """As in Redis: what waits for the commands of clients and for their EXEC is memory."""
    limit(c, 8 * MB)
    hungry = connect()
    hungry("MULTI")
    hungry("SET", "k", b"x" * 9 * MB)
    hand.advance(1100)
    assert c("SET", "k", "v") == OOM
    assert used(c) > 9 * MB
    hungry.close()
    while c("SET", "k", "v") == OOM:
        pass


def test_a_replica_takes_everything() -> None:
    with ExitStack() as stack:
        leader = stack.enter_context(running_server())
        replica = stack.enter_context(running_server(replicaof=f"127.0.0.1 {leader.port}", maxmemory="20kb"))
        c, r = (stack.enter_context(Raw(server.port)) for server in (leader, replica))
        for number in range(100):
            c("SET", f"k{number}", b"x" * 100)
        while r("DBSIZE") != 100:
            pass
        assert r("SET", "k", "v").startswith("READONLY")
        r("REPLICAOF", "NO", "ONE")
        while r("SET", "k", "v") != OOM:  # from its next look at the clock on
            pass
        assert r("DEL", *[f"k{number}" for number in range(100)]) == 100
        assert r("SET", "k", "v") == b"OK"
