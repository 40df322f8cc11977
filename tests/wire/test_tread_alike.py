"""Readers that ask alike: parsed once, answered together. Each must get what it would get alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw, pack

NOW = 1_700_000_000_000
Connect = Callable[..., Raw]
Words = tuple[str | int | bytes, ...]


def ident(seq: int) -> str:
    return f"{NOW}.{seq}"


def row(seq: int) -> list[bytes]:
    return [ident(seq).encode(), b"i", b"%d" % seq]


@pytest.fixture
def filled(c: Raw) -> Raw:
    c.pipeline(*[("TAPPEND", "s", "i", i) for i in range(6)])
    c("TAPPEV", "s", "COUNT", 4)
    c("SET", "string", "x")
    return c


PIPELINES: list[list[Words]] = [
    [("s", ident(5), 1)] * 5,
    [("s", ident(4), 1), ("s", ident(5), 1), ("s", ident(3), 10), ("s", 0, 2), ("s", "", 2), ("s", ident(0), 2)],
    [("s", ident(5), 1), ("s", "bad", 1), ("s", ident(4), -1), ("s", ident(4), "x"), ("s", ident(4), 1)],
    [("s", "bad", 1)] * 3,
    [("s", ident(3), 0), ("s", ident(3), 1), ("s", NOW + 1, 5), ("s", f"{NOW}-4", 5), ("s", f"{NOW}.0004", 5)],
    [("missing", 0, 1)] * 3,
    [("string", 0, 1)] * 3,
    [("s", ident(4), 1, "WITHINFO")] * 3,
    [("s", f"{2**64 - 1}.{2**64 - 1}", 1), ("s", f"{2**64}.0", 1), ("s", f".{5}", 1), ("s", f"{NOW}.", 1)],
]


@pytest.mark.parametrize("reads", PIPELINES)
def test_a_pipeline_of_reads_gets_what_each_gets_alone(filled: Raw, reads: list[Words]) -> None:
    alone = [filled("TREAD", *words) for words in reads]
    assert filled.pipeline(*[("TREAD", *words) for words in reads]) == alone


def test_large_replies_of_a_pipeline_are_all_there(c: Raw) -> None:
    for i in range(40):
        c("TAPPEND", "s", "i", i, "x", b"x" * 30_000)
    reads = [("TREAD", "s", 0, count) for count in (40, 1, 3, 40, 0, 7)] * 3
    assert [len(reply) for reply in c.pipeline(*reads)] == [40, 1, 3, 40, 0, 7] * 3


def test_every_read_of_a_pipeline_is_counted(filled: Raw) -> None:
    filled("CONFIG", "RESETSTAT")
    filled.pipeline(*[("TREAD", "s", ident(5), 1)] * 7, *[("TREAD", "none", 0, 1)] * 3)
    stats = filled("INFO", "stats", "commandstats").decode()
    assert "keyspace_hits:7\r\n" in stats
    assert "keyspace_misses:3\r\n" in stats
    assert "cmdstat_tread:calls=10," in stats


def test_blocked_readers_get_what_each_asked_for(connect: Connect, hand: RunningServer) -> None:
    """Of one stream, at several places, in both protocols, with other options; one still has nothing to get."""
    writer = connect()
    writer.pipeline(*[("TAPPEND", "s", "i", i) for i in range(3)])
    asked: list[tuple[int, Words, Any]] = [
        (2, (ident(2), 10), [row(3), row(4)]),
        (3, (ident(2), 10), [row(3), row(4)]),
        (2, (ident(2), 1), [row(3)]),
        (2, (ident(3), 10), [row(4)]),
        (2, ("", 10), [row(3), row(4)]),
        (2, (ident(2), 10, "WITHINFO"), [[ident(0).encode(), ident(4).encode()], row(3), row(4)]),
        (2, (ident(2), 10), [row(3), row(4)]),
        (2, (ident(4), 10), [row(5)]),
    ]
    readers = []
    for proto, words, _ in asked:
        readers.append(connect(proto))
        readers[-1].send("TREAD", "s", *words, "BLOCK", 0)
    for _ in range(2000):
        if hand.call(lambda: hand.server.blocking.count) == len(asked):
            break
    writer.sock.sendall(
        pack("MULTI") + pack("TAPPEND", "s", "i", 3) + pack("TAPPEND", "s", "i", 4) + pack("EXEC")
    )
    for _ in range(4):
        writer.read()
    assert [reader.read() for reader in readers[:-1]] == [reply for _, _, reply in asked[:-1]]
    assert hand.call(lambda: hand.server.blocking.count) == 1
    writer("TAPPEND", "s", "i", 5)
    assert readers[-1].read() == asked[-1][2]
    assert hand.call(lambda: (hand.server.blocking.count, dict(hand.server.data.ks.waiting))) == (0, {})


def test_a_missing_entry_is_told_to_those_who_missed_it(connect: Connect, hand: RunningServer) -> None:  # [17] (a)
    """Where they wait is the same, but only an explicit ID asks for the null."""
    readers = [connect() for _ in range(3)]
    for reader, last in zip(readers, ("0.1", "0.0", ""), strict=True):
        reader.send("TREAD", "s", last, 10, "BLOCK", 0)
    for _ in range(2000):
        if hand.call(lambda: hand.server.blocking.count) == 3:
            break
    writer = connect()
    writer.sock.sendall(
        pack("MULTI") + pack("TAPPEND", "s", "i", 0) + pack("TAPPEV", "s", "COUNT", 1, "i", 1) + pack("EXEC")
    )
    for _ in range(4):
        writer.read()
    assert [reader.read() for reader in readers] == [[None, row(1)], [row(1)], [row(1)]]


def test_readers_of_a_group_in_the_same_words(connect: Connect) -> None:
    """What is remembered of one reader's words must not be taken for another's: key and dead letters differ."""
    c = connect()
    words = (2, "GROUP", "g", 0, "RETRY", 1000, 0, "DEADLETTER", "d")
    for key in ("s", "t"):
        c.pipeline(*[("TAPPEND", key, "i", i) for i in range(3)])
    assert [reply[1] for reply in c("TREAD", "s", 0, *words)] == [b"i", b"i"]
    assert len(c("TREAD", "t", 0, *words)) == 2
    assert c("TREAD", "d", 0, *words) == "ERR DEADLETTER must name a key other than the stream's own"
    assert len(c("TREAD", "s", 0, *words)) == 1
    assert c("TACK", "s", "g", row(0)[0], row(2)[0], row(2)[0], f"{NOW}-1") == 3
    assert c("TPENDING", "s", "g")[0] == 0


def test_a_group_goes_on_where_its_last_read_ended(c: Raw) -> None:
    """Through eviction, a rewind and the end of the stream, as if each read looked its cursor up anew."""
    c.pipeline(*[("TAPPEND", "s", "i", i) for i in range(12)])
    read = ("TREAD", "s", 0, 2, "GROUP", "g", 0)
    assert c(*read) == [row(0), row(1)]
    assert c(*read) == [row(2), row(3)]
    c("TAPPEV", "s", "COUNT", 6)  # up to 5
    assert c(*read) == [None, row(6), row(7)]
    c("TAPPEV", "s", "COUNT", 4)  # up to 7: the group had read it all
    assert c(*read) == [row(8), row(9)]
    c("TGROUP", "SETID", "s", "g", ident(7))
    assert c(*read) == [row(8), row(9)]
    assert c(*read) == [row(10), row(11)]
    assert c(*read) == []
    c("TAPPEND", "s", "i", 12)
    assert c(*read) == [row(12)]
    c("TGROUP", "SETID", "s", "g", NOW * 2)  # ahead of the stream
    c("TAPPEND", "s", "i", 13)
    assert c(*read) == []
