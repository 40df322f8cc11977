"""Keys with a clock that tests move: results that depend on time or chance, so that no other server is compared."""

from __future__ import annotations

import re

import pytest

from tests.commands.fakeserver import NOW, FakeServer
from tests.commands.keys.test_strings import Client, play


@pytest.fixture
def c() -> Client:
    return Client(FakeServer())


def page(reply: bytes) -> tuple[int, list[str]]:
    """A SCAN reply: cursor, keys."""
    words = re.findall(r"\$\d+\r\n(.*?)\r\n", reply.decode())
    return int(words[0]), words[1:]


def walk(c: Client, options: str = "") -> list[str]:
    cursor, found = page(c(f"SCAN 0 {options}"))
    while cursor:
        cursor, more = page(c(f"SCAN {cursor} {options}"))
        found += more
    return found


def test_scan_returns_each_key_once_if_nothing_changes(c: Client) -> None:
    names = sorted(f"key{n}" for n in range(57))
    for name in names:
        c(f"SET {name} v")
    assert sorted(walk(c)) == sorted(walk(c, "COUNT 1")) == sorted(walk(c, "COUNT 1000")) == names
    assert page(c("SCAN 0"))[0] == 48  # the number of the last of ten
    assert len(page(c("SCAN 0 COUNT 20"))[1]) == 20


def test_scan_filters_by_pattern_and_type(c: Client) -> None:
    c("MSET s:1 v s:2 v other v")
    c("TAPPEND s:3 f v")
    assert sorted(walk(c, "MATCH s:*")) == ["s:1", "s:2", "s:3"]
    assert walk(c, "TYPE STREAM") == ["s:3"]
    assert sorted(walk(c, "TYPE string MATCH s:*")) == ["s:1", "s:2"]
    assert walk(c, "TYPE hash") == []


def test_scan_does_not_miss_a_key_whose_type_changes(c: Client) -> None:
    for n in range(10):
        c(f"TAPPEND k{n} f v")
    cursor, seen = page(c("SCAN 0 COUNT 3"))
    for n in range(10):
        c(f"SET k{n} v")
    while cursor:
        cursor, more = page(c(f"SCAN {cursor} COUNT 3"))
        seen += more
    assert sorted(set(seen)) == [f"k{n}" for n in range(10)]


def test_expired_keys_are_never_returned(c: Client) -> None:
    c("MSET a v b v")
    c("PEXPIRE a 100")
    c.server.ms += 100
    assert c("KEYS *") == b"*1\r\n$1\r\nb\r\n"
    assert c("RANDOMKEY") == b"$1\r\nb\r\n"
    assert walk(c) == ["b"]
    play(c, """
        TYPE a -> +none
        TOUCH a b -> :1
        DEL a -> :0
        DBSIZE -> :1
    """)  # fmt: skip


def test_the_first_access_to_an_expired_key_deletes_it_and_logs_that(c: Client) -> None:
    c("SET a v PX 5")
    c.server.ks.take_batch()
    c.server.ms += 5
    assert c("DEL a") == b":0\r\n"
    assert c.server.ks.take_batch() != b""
    assert (c.server.ks.expired_keys, len(c.server.ks.keys), len(c.server.ks.index)) == (1, 0, 0)


def test_randomkey_ends_if_all_keys_have_expired(c: Client) -> None:
    for n in range(50):
        c(f"SET k{n} v PX 1")
    c.server.ms += 1
    assert c("RANDOMKEY") == b"$-1\r\n"
    assert c("DBSIZE") == b":0\r\n"


def test_idletime_counts_from_the_last_use(c: Client) -> None:
    c("SET a v")
    c("TAPPEND s f v")
    c.server.ms += 10_500
    play(c, """
        TTL a -> :-1
        EXISTS a -> :1
        TYPE a -> +string
        OBJECT ENCODING a -> int
    """.replace("int", "embstr"))  # none of these counts as use
    play(c, """
        OBJECT IDLETIME a -> :10
        OBJECT IDLETIME s -> :10
        TOUCH a nokey -> :1
        TLEN s -> :1
        OBJECT IDLETIME a -> :0
        OBJECT IDLETIME s -> :0
        OBJECT IDLETIME nokey -> nil
    """)  # fmt: skip
    c.server.ms += 3000
    c.server.ks.no_touch = True
    play(c, """
        GET a -> v
        OBJECT IDLETIME a -> :3
        TOUCH a -> :1
        OBJECT IDLETIME a -> :0
    """)  # fmt: skip
    c.server.ms -= 60_000  # a clock that goes back
    play(c, "OBJECT IDLETIME a -> :0")


@pytest.mark.parametrize("first", ["5-1", "*", "18446744073709551615-1"])
def test_idletime_of_a_stream_does_not_depend_on_its_ids(c: Client, first: str) -> None:
    c(f"XADD s {first} f v")
    play(c, "OBJECT IDLETIME s -> :0")
    c.server.ms += 10_500
    play(c, "OBJECT IDLETIME s -> :10")
    c("XADD s * f v")
    play(c, "OBJECT IDLETIME s -> :0")
    c.server.ms += 3000
    play(c, "OBJECT IDLETIME s -> :3")
    c("TAPPEND s f v")
    play(c, "OBJECT IDLETIME s -> :0")


def test_object_of_a_stream(c: Client) -> None:
    play(c, """
        TAPPEND s f v -> 1700000000000.0
        OBJECT ENCODING s -> stream
        OBJECT REFCOUNT s -> :1
        OBJECT FREQ nokey -> nil
    """)  # fmt: skip
    assert c("OBJECT FREQ s").startswith(b"-ERR An LFU maxmemory policy is not selected")
    assert c("OBJECT HELP").startswith(b"*11\r\n+OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n")


def test_del_of_a_stream_deletes_its_groups(c: Client) -> None:
    c("TAPPEND s f v")
    c("TREAD s 0 10 GROUP g 0 RETRY 1000 0")
    play(c, """
        DEL s s -> :1
        TYPE s -> +none
        TPENDING s g -> -NOGROUP No such key 's' or consumer group 'g'
    """)  # fmt: skip


def test_expiry_of_a_stream(c: Client) -> None:
    c("TAPPEND s f v")
    play(c, """
        PEXPIRE s 1500 -> :1
        TTL s -> :2
        PEXPIRETIME s -> :1700000001500
        EXPIRETIME s -> :1700000002
    """)  # fmt: skip
    c.server.ms = NOW + 1499
    play(c, """
        PTTL s -> :1
        TTL s -> :0
    """)  # fmt: skip
    c.server.ms = NOW + 1500
    play(c, """
        PTTL s -> :-2
        TLEN s -> :0
    """)  # fmt: skip
