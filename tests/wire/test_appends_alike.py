"""Appends to one key that arrive together, of which only the first one's arguments are made: they do what they would do
one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw, pack
from tests.wire.test_alike import calls, counts

Connect = Callable[..., Raw]
Words = tuple[bytes | str | int, ...]

# how calls begin, and how often that comes
BEGINNINGS: list[tuple[Words, int]] = [
    (("TAPPEND", "s"), 6), (("TAPPEND", "t"), 2), (("tappend", "s"), 1), (("XADD", "s", "*"), 6),
    (("xadd", "t", "*"), 1), (("XADD", "s", "NOMKSTREAM", "*"), 1), (("XADD", "s", "MAXLEN", 9, "*"), 2),
    (("XADD", "s", "MAXLEN", "~", 9, "*"), 2), (("XADD", "t", "MINID", "=", "1700000000000-7", "*"), 1),
    (("XADD", "s", "MAXLEN", "x", "*"), 1), (("XADD", "s", "MAXLEN", "~", 5, "LIMIT", 2, "*"), 1),
    (("XADD", "s", "9-9"), 1), (("TAPPEV", "s", "COUNT", 9), 3), (("TAPPEV", "s", "COUNT", "x"), 1),
    (("TAPPEV", "t", "TIME", 5), 1), (("TAPPEV", "t", "MINID", "1700000000000-9"), 1), (("SET", "s"), 1),
    (("XADD",), 1), (("XADD", "s"), 1), (("TAPPEV", "s"), 1), (("TMAPPEND", "s", "FIELDS", 1), 1),
]  # fmt: skip
# what comes after that
ENDS: list[Words] = [
    ("f", "v"), ("f", "v"), ("field", "a longer value"), ("f", b"\r\n$1\r\nv\r\n"), ("", ""), ("f", "x" * 600),
    ("f", "v", "g", "w"), ("f",), ("f", "v", "g"), (),
]  # fmt: skip
OTHERS: list[Words] = [
    ("DEL", "s"), ("XDEL", "s", "1700000000000-3"), ("XLEN", "s"), ("SET", "t", "x"), ("DEL", "t"), ("MULTI",),
    ("EXEC",),
]  # fmt: skip


def program(rng: random.Random, length: int) -> list[Words]:
    commands: list[Words] = []
    for begin in rng.choices([words for words, _ in BEGINNINGS], [weight for _, weight in BEGINNINGS], k=length):
        ends = rng.choices(ENDS, k=rng.choice((1, 1, 2)))
        commands += [(*begin, *rng.choice(ends)) for _ in range(rng.choice((1, 2, 3, 20)))]
        if rng.random() < 0.1:
            commands.append(rng.choice(OTHERS))
    return [*commands, ("DISCARD",)]


def state(c: Raw) -> list[object]:
    return [c("DEBUG", "DIGEST"), *[c(*words) for key in "st" for words in (("TRANGE", key, "-", "+"), ("TYPE", key))]]


@pytest.mark.parametrize("node", [4, 512])
@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_pipeline_is_what_its_commands_are_one_by_one(
    c: Raw, connect: Connect, seed: int, events: bool, node: int
) -> None:
    """The clock stands still, so IDs are the same, too."""
    commands = program(random.Random(seed), 40)
    c("CONFIG", "SET", "stream-node-max-entries", node, "notify-keyspace-events", "KEA" if events else "")
    found = []
    for together in (False, True):
        c("FLUSHALL")
        c("CONFIG", "RESETSTAT")
        listener = connect()
        listener("PSUBSCRIBE", "__keyevent*")
        before = int(counts(c)[b"rdb_changes_since_last_save"])
        replies = c.pipeline(*commands) if together else [c(*words) for words in commands]
        c("PUBLISH", "__keyevent_end", "end")
        told = []
        while (message := listener.read())[-1] != b"end":
            told.append(message)
        after = counts(c)
        changes = int(after.pop(b"rdb_changes_since_last_save")) - before
        found.append((replies, told, after, calls(c), changes, state(c)))
    for one, other in zip(*found, strict=True):
        assert one == other
    assert c("DEBUG", "LOADAOF") == b"OK"
    assert state(c) == found[0][-1]


ROWS: list[Words] = [
    ("TAPPEND", "s"), ("XADD", "s", "*"), ("TAPPEV", "s", "COUNT", 100), ("XADD", "s", "MAXLEN", "~", 100, "*"),
]  # fmt: skip
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(map(str, row)))


def calls_of(row: Words, count: int = 5) -> list[Words]:
    return [(*row, "n", "x" * n) for n in range(count)]


@each_row
def test_each_append_has_its_reader(c: Raw, connect: Connect, row: Words) -> None:
    readers = [connect() for _ in range(3)]
    for reader in readers:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    while c("INFO", "clients").find(b"blocked_clients:3") < 0:
        pass
    ids = c.pipeline(*calls_of(row))
    for reader in readers:
        ((_, entries),) = reader.read()
        assert [entry[0].replace(b"-", b".") for entry in entries] == [ids[0].replace(b"-", b".")]


@each_row
def test_a_monitor_sees_each_call(c: Raw, connect: Connect, row: Words) -> None:
    monitor = connect()
    assert monitor("MONITOR") == b"OK"
    c.pipeline(*calls_of(row))
    shown = [monitor.read() for _ in range(5)]
    assert [line.rpartition(b" ")[2] for line in shown] == [b'"%b"' % (b"x" * n) for n in range(5)]


@each_row
def test_a_transaction_queues_each_call(c: Raw, row: Words) -> None:
    *queued, replies = c.pipeline(("MULTI",), *calls_of(row), ("EXEC",))
    assert queued == [b"OK", *[b"QUEUED"] * 5]
    assert len(replies) == c("XLEN", "s") == 5


@each_row
def test_a_watched_key_has_changed(c: Raw, connect: Connect, row: Words) -> None:
    other = connect()
    c("WATCH", "s")
    other.pipeline(*calls_of(row))
    assert c.pipeline(("MULTI",), ("PING",), ("EXEC",))[-1] is None


@each_row
def test_a_user_may_append_to_his_own_streams_only(c: Raw, connect: Connect, row: Words) -> None:
    c("ACL", "SETUSER", "ann", "on", ">pw", "~s", "+@all", "-debug")
    client = connect()
    assert client("AUTH", "ann", "pw") == b"OK"
    assert len(set(client.pipeline(*calls_of(row)))) == 5
    refused = client.pipeline(*calls_of((row[0], "other", *row[2:])))
    assert len(set(refused)) == 1
    assert refused[0].startswith("NOPERM")
    assert c("XLEN", "s") == 5


@each_row
def test_calls_wait_behind_a_blocked_one(c: Raw, connect: Connect, row: Words) -> None:
    c.sock.sendall(b"".join(pack(*words) for words in (("XREAD", "BLOCK", 0, "STREAMS", "other", "$"), *calls_of(row))))
    other = connect()
    while other("INFO", "clients").find(b"blocked_clients:1") < 0:
        pass
    other("XADD", "other", "*", "f", "v")
    assert c.read()[0][0] == b"other"
    assert len({c.read() for _ in range(5)}) == 5


@each_row
def test_a_long_pipeline(c: Raw, hand: RunningServer, row: Words) -> None:
    """More than are taken at once, and more than a millisecond's short sequence numbers."""
    ids = c.pipeline(*[(*row, "n", n % 7) for n in range(12_000)])
    assert len(set(ids)) == 12_000
    assert ids[-1].replace(b"-", b".") == b"1700000000000.11999"
    assert c("XLEN", "s") == 12_000 or 100 in row
    assert c("DEBUG", "LOADAOF") == b"OK"
    newest = c("TREVRANGE", "s", "+", "-", "COUNT", 3)
    assert [entry[-1] for entry in newest] == [b"%d" % (n % 7) for n in (11_999, 11_998, 11_997)]
