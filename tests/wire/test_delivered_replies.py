"""Long replies of messages that are delivered again: they are made while they are sent, take little memory until then,
and have what was delivered, whatever becomes of it. Semantics [49], [51].
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw
from tests.wire.test_maxmemory import limit, used

Connect = Callable[..., Raw]
MB = 1 << 20
COUNT = 1200  # long reads have more than 1000
SIZE = 8_000  # bytes: 10 MB together, more than sockets hold
NEW = 5  # entries that were never delivered
GONE = (3, 700)


class Filled:
    """A stream with pending messages: half of the entries are stored, some are deleted."""

    def __init__(self, c: Raw, hand: RunningServer, connect: Connect) -> None:
        self.c = c
        self.connect = connect
        for half in (0, 1):
            c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[os.urandom(SIZE) for _ in range(COUNT // 2)])
            if not half:
                c("SAVE")
        self.entries = c("XRANGE", "s", "-", "+")
        self.ids = [entry[0] for entry in self.entries]
        c("XGROUP", "CREATE", "s", "g", 0)
        for _ in range(4):
            c("XREADGROUP", "GROUP", "g", "ann", "COUNT", COUNT // 4, "STREAMS", "s", ">")
            c("TREAD", "s", 0, COUNT // 4, "GROUP", "t", 0, "RETRY", 10, 0)
        for _ in range(NEW):
            self.entries.append([c("XADD", "s", "*", "f", "new"), [b"f", b"new"]])
        c("XDEL", "s", *[self.ids[at] for at in GONE])
        hand.advance(100)

    def reader(self) -> tuple[Raw, int]:
        """A client whose socket takes little, and its ID."""
        raw = self.connect()
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        return raw, raw("CLIENT", "ID")

    def living(self, ats: range | list[int]) -> list[Any]:
        return [self.entries[at] for at in ats if at not in GONE]


def history(case: Filled, count: int) -> tuple[tuple[Any, ...], Any]:
    told = [[case.ids[at], None if at in GONE else case.entries[at][1]] for at in range(count)]
    return ("XREADGROUP", "GROUP", "g", "ann", "COUNT", count, "STREAMS", "s", 0), [[b"s", told]]


def claimed(case: Filled, count: int) -> tuple[tuple[Any, ...], Any]:
    ats = [*range(count - 1, 300, -1), *range(300), 7]
    return ("XCLAIM", "s", "g", "bob", 0, *[case.ids[at] for at in ats]), case.living(ats)


def autoclaimed(case: Filled, count: int) -> tuple[tuple[Any, ...], Any]:
    cursor = b"0-0" if count == COUNT else case.ids[count]
    told = [cursor, case.living(range(count)), [case.ids[at] for at in GONE]]
    return ("XAUTOCLAIM", "s", "g", "bob", 0, 0, "COUNT", count), told


def claimed_by_read(case: Filled, count: int) -> tuple[tuple[Any, ...], Any]:
    count += NEW - len(GONE) if count == COUNT else 0
    old = [[*entry, 100, 1] for entry in case.living(range(COUNT))]
    told = [*old, *[[*entry, 0, 0] for entry in case.entries[COUNT:]]][:count]
    return ("XREADGROUP", "GROUP", "g", "bob", "COUNT", count, "CLAIM", 50, "STREAMS", "s", ">"), [[b"s", told]]


def due(case: Filled, count: int) -> tuple[tuple[Any, ...], Any]:
    count += NEW if count == COUNT else 0
    told: list[Any] = [None if at in GONE else _flat(case.entries[at]) for at in range(COUNT)]
    info = [case.ids[0].replace(b"-", b"."), case.entries[-1][0].replace(b"-", b".")]
    told += map(_flat, case.entries[COUNT:])
    return ("TREAD", "s", 0, count, "GROUP", "t", 0, "RETRY", 1000, 0, "WITHINFO"), [info, *told[:count]]


def _flat(entry: Any) -> Any:
    return [entry[0].replace(b"-", b"."), *entry[1]]


def nothing(_: Raw) -> None:
    pass


def trim(c: Raw) -> None:
    c("XTRIM", "s", "MAXLEN", 0)
    c("SAVE")


def delete(c: Raw) -> None:
    c("DEL", "s")
    c("TAPPEND", "s", "f", "another")
    c("SAVE")


def flush(c: Raw) -> None:
    c("FLUSHALL")
    c("TAPPEND", "s", "f", "another")


READS = [history, claimed, autoclaimed, claimed_by_read, due]


@pytest.mark.parametrize(("count", "after"), [(800, nothing), (800, trim), (COUNT, delete), (COUNT, flush)])
@pytest.mark.parametrize("read", READS)
def test_a_reply_has_what_was_delivered(
    c: Raw, hand: RunningServer, connect: Connect, read: Callable[[Filled, int], Any], count: int,
    after: Callable[[Raw], None],
) -> None:  # fmt: skip
    case = Filled(c, hand, connect)
    call, told = read(case, count)
    reader, number = case.reader()
    before = used(c)
    reader.send(*call)
    while b" oll=0 " in c("CLIENT", "LIST", "ID", number):
        pass
    assert used(c) - before < 3 * MB  # what the socket did not take, and some bytes for each message
    after(c)
    if after is not nothing:
        assert used(c) < before
    assert reader.read() == told
    while b" omem=0 " not in c("CLIENT", "LIST", "ID", number):
        pass
    assert hand.server.data.ks.pool.store.view.pins == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("read", READS)
def test_what_only_the_reply_has_is_counted_and_limited(
    c: Raw, hand: RunningServer, connect: Connect, read: Callable[[Filled, int], Any]
) -> None:
    case = Filled(c, hand, connect)
    call, _ = read(case, COUNT)
    reader, number = case.reader()
    c("CONFIG", "SET", "client-output-buffer-limit", "normal 4mb 0 0")
    reader.send(*call)
    while b" oll=0 " in c("CLIENT", "LIST", "ID", number):
        pass
    limit(c, 100 * MB)  # without a checkpoint
    hand.advance(1000)
    assert number in ids(c)
    c("DEL", "s")  # half of it was in memory only
    assert used(c) > 3 * MB
    hand.advance(1000)
    assert number not in ids(c)
    assert used(c) < MB
    assert hand.server.data.ks.pool.store.view.pins == 0  # type: ignore[attr-defined]


def ids(c: Raw) -> list[int]:
    return [int(line.split()[0].removeprefix(b"id=")) for line in c("CLIENT", "LIST").splitlines() if line]


def test_several_keys_in_one_reply(c: Raw, hand: RunningServer, connect: Connect) -> None:
    """A long history, a short one, and new entries."""
    case = Filled(c, hand, connect)
    for key in ("few", "new"):
        c("XADD", key, "1-1", "f", "v")
        c("XGROUP", "CREATE", key, "g", 0)
    c("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "few", ">")
    reader = connect(3)
    reader.send("XREADGROUP", "GROUP", "g", "ann", "COUNT", 900, "STREAMS", "few", "s", "new", 0, 0, ">")
    told = reader.read()
    short = [[b"1-1", [b"f", b"v"]]]
    assert told[b"few"] == told[b"new"] == short
    assert told[b"s"] == history(case, 900)[1][0][1]


def test_in_a_transaction(c: Raw, hand: RunningServer, connect: Connect) -> None:
    case = Filled(c, hand, connect)
    calls = [read(case, 800) for read in (history, due, claimed)]
    c("MULTI")
    for call, _ in calls:
        assert c(*call) == b"QUEUED"
    assert c("EXEC") == [told for _, told in calls]


def test_one_long_entry(c: Raw, hand: RunningServer) -> None:
    c("TAPPEND", "s", "f", b"x" * MB)
    [entry] = c("TREAD", "s", 0, 1, "GROUP", "g", 0, "RETRY", 10, 0)
    hand.advance(100)
    assert c("TREAD", "s", 0, 1, "GROUP", "g", 0) == [entry]


def test_a_long_reply_whose_client_leaves(c: Raw, hand: RunningServer, connect: Connect) -> None:
    case = Filled(c, hand, connect)
    for read in READS:
        hand.advance(2000)
        reader, number = case.reader()
        reader.send(*read(case, COUNT)[0])
        while b" oll=0 " in c("CLIENT", "LIST", "ID", number):
            pass
        reader.close()
        while number in ids(c):
            pass
    while hand.server.data.ks.pool.store.view.pins:  # type: ignore[attr-defined]
        pass
