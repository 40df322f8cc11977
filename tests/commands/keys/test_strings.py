"""Strings: vectors for what redis-server 7.0 does not have (IFEQ, IFNE, DELEX, DELIFEQ), expiry with a clock that tests
move, and the records in the log. tests/wire/test_differential_keys.py compares the rest with redis-server.
"""

from __future__ import annotations

import pytest

from commands.declare import lookup
from resp import reply
from resp.errors import CommandError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.nodes.pool import NodePool
from tests.commands.fakeserver import NOW, FakeServer

OK, NULL, NULL3 = b"+OK\r\n", b"$-1\r\n", b"_\r\n"
SYNTAX = b"-ERR syntax error\r\n"
WRONGTYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"


class Client:
    """Runs lines of words on a server with one session."""

    def __init__(self, server: FakeServer, proto: int = 2) -> None:
        self.server = server
        self.session = server.connect(proto=proto)

    def __call__(self, line: str) -> bytes:
        words = line.split()
        try:
            lookup([word.encode() for word in words])
        except CommandError as error:
            return reply.error(error.text)
        return self.server.run(self.session, *words)


@pytest.fixture
def c() -> Client:
    return Client(FakeServer())


def play(c: Client, script: str) -> None:
    """Lines ``command -> reply``; the reply without its line end, ``nil`` for null, bulk strings by their text."""
    for line in script.strip().splitlines():
        words, _, wanted = (part.strip() for part in line.partition("->"))
        got = c(words)
        text = got.decode().removesuffix("\r\n")
        if text.startswith("$") and text != "$-1":
            text = text.split("\r\n", 1)[1]
        assert text.replace("$-1", "nil") == wanted, words


def test_set_ifeq_and_ifne_as_in_redis_8_4(c: Client) -> None:
    play(c, """
        SET a v1 IFEQ x -> nil
        EXISTS a -> :0
        SET a v1 IFNE x -> +OK
        GET a -> v1
        SET a v2 IFNE v1 -> nil
        GET a -> v1
        SET a v2 ifeq v1 PX 5000 -> +OK
        PTTL a -> :5000
        SET a v3 IFEQ v2 KEEPTTL -> +OK
        PTTL a -> :5000
        SET a v4 IFEQ v3 -> +OK
        PTTL a -> :-1
        SET a v5 IFEQ v4 NX -> -ERR syntax error
        SET a v5 NX IFEQ v4 -> -ERR syntax error
        SET a v5 IFEQ v4 XX -> -ERR syntax error
        SET a v5 IFEQ v4 IFNE v4 -> -ERR syntax error
        SET a v5 IFEQ -> -ERR syntax error
        GET a -> v4
        SET a v5 IFEQ v4 GET -> v4
        SET a v6 IFEQ v4 GET -> v5
        GET a -> v5
        SET b v1 IFEQ v GET -> nil
        SET b v1 IFNE v GET -> nil
        GET b -> v1
        SET n 10 -> +OK
        INCR n -> :11
        SET n 12 IFEQ 11 -> +OK
        TAPPEND s f v -> 1700000000000.0
        SET s x IFEQ v -> -WRONGTYPE Operation against a key holding the wrong kind of value
        SET s x IFNE v -> -WRONGTYPE Operation against a key holding the wrong kind of value
        SET s x GET -> -WRONGTYPE Operation against a key holding the wrong kind of value
        TYPE s -> +stream
        SET s x XX -> +OK
        TYPE s -> +string
    """)  # fmt: skip


def test_delex_as_in_redis_8_4(c: Client) -> None:
    play(c, """
        DELEX -> -ERR wrong number of arguments for 'delex' command
        DELEX nokey -> :0
        DELEX nokey IFEQ v -> :0
        DELEX nokey IFNE v -> :0
        SET b 1 -> +OK
        DELEX b IFEQ -> -ERR wrong number of arguments for 'delex' command
        DELEX b IFEQ 1 IFNE 2 -> -ERR wrong number of arguments for 'delex' command
        DELEX b LIKE 1 -> -ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE
        DELEX b IFEQ 2 -> :0
        DELEX b IFNE 1 -> :0
        DELEX b ifne 2 -> :1
        DELEX b -> :0
        SET b 1 -> +OK
        DELEX b IFEQ 1 -> :1
        EXISTS b -> :0
        TAPPEND s f v -> 1700000000000.0
        DELEX s IFEQ v -> -ERR Key should be of string type if conditions are specified
        DELEX s -> :1
        EXISTS s -> :0
    """)  # fmt: skip


def test_digests_as_in_redis_8_4(c: Client) -> None:
    play(c, """
        DIGEST nokey -> nil
        SET a hello -> +OK
        DIGEST a -> 9555e8555c62dcfd
        SET a v8lf0c11xh8ymlqztfd3eeq16kfn4sspw7fqmnuuq3k3t75em5wdizgcdw7uc26nnf961u2jkfzkjytls2kwlj7626sd -> +OK
        DIGEST a -> 00006c38adf31777
        SET a b IFDEQ 00006c38adf31778 -> nil
        SET a hello IFDEQ 00006C38ADF31777 PX 5000 -> +OK
        PTTL a -> :5000
        SET a b IFDNE 9555e8555c62dcfd -> nil
        SET a b IFDNE 9555e8555c62dcfd GET -> hello
        GET a -> hello
        SET a b IFDNE zzzzzzzzzzzzzzzz GET -> hello
        GET a -> b
        SET a c IFDEQ 123 -> -ERR must be exactly 16 hexadecimal characters
        SET a c IFDNE 123456789012345678 -> -ERR must be exactly 16 hexadecimal characters
        SET nokey c IFDEQ 123 -> nil
        SET a c IFDEQ 9555e8555c62dcfd IFEQ b -> -ERR syntax error
        SET a c IFDEQ 9555e8555c62dcfd NX -> -ERR syntax error
        SET a c IFDEQ -> -ERR syntax error
        SET n c IFDNE 123 -> +OK
        TAPPEND s f v -> 1700000000000.0
        DIGEST s -> -WRONGTYPE Operation against a key holding the wrong kind of value
        SET s x IFDEQ 1 -> -WRONGTYPE Operation against a key holding the wrong kind of value
        DIGEST a b -> -ERR wrong number of arguments for 'digest' command
        SET a hello -> +OK
        DELEX a IFDEQ 123 -> -ERR must be exactly 16 hexadecimal characters
        DELEX nokey IFDEQ 123 -> :0
        DELEX nokey LIKE 123 -> :0
        DELEX s LIKE 123 -> -ERR Key should be of string type if conditions are specified
        DELEX a IFDEQ 0000000000000000 -> :0
        DELEX a IFDNE 9555E8555C62DCFD -> :0
        DELEX a IFDEQ 9555E8555C62DCFD -> :1
        SET a hello -> +OK
        DELEX a ifdne 0000000000000000 -> :1
        EXISTS a -> :0
    """)  # fmt: skip


def test_msetex_as_in_redis_8_4(c: Client) -> None:
    play(c, """
        MSETEX 2 a 1 b 2 -> :1
        MSETEX 2 b 3 c 4 NX -> :0
        EXISTS c -> :0
        MSETEX 2 b 3 c 4 XX EX 10 -> :0
        MSETEX 2 a 3 b 4 EX 10 xx -> :1
        GET b -> 4
        PTTL a -> :10000
        MSETEX 2 a 5 d 6 KEEPTTL -> :1
        PTTL a -> :10000
        PTTL d -> :-1
        MSETEX 1 a 7 -> :1
        PTTL a -> :-1
        MSETEX 1 a 7 PXAT 1700000000500 -> :1
        PTTL a -> :500
        MSETEX 2 e 1 e 2 NX PX 5 -> :1
        GET e -> 2
        MSETEX 2 a 1 b 1 EXAT 1 -> :1
        EXISTS a b -> :0
        MSETEX 0 a 1 -> -ERR invalid numkeys value
        MSETEX -1 a 1 -> -ERR invalid numkeys value
        MSETEX a 1 b -> -ERR invalid numkeys value
        MSETEX 2147483648 a 1 -> -ERR invalid numkeys value
        MSETEX 2147483647 a 1 -> -ERR wrong number of key-value pairs
        MSETEX 2 a 1 b -> -ERR wrong number of key-value pairs
        MSETEX 1 a 1 b -> -ERR syntax error
        MSETEX 1 a 1 NX XX -> -ERR syntax error
        MSETEX 1 a 1 EX 10 PX 5000 -> -ERR syntax error
        MSETEX 1 a 1 KEEPTTL EX 10 -> -ERR syntax error
        MSETEX 1 a 1 IFEQ x -> -ERR syntax error
        MSETEX 1 a 1 GET -> -ERR syntax error
        MSETEX 1 a 1 EX -> -ERR syntax error
        MSETEX 1 a 1 EX 0 -> -ERR invalid expire time in 'msetex' command
        MSETEX 1 a 1 EX x -> -ERR value is not an integer or out of range
        MSETEX 1 a -> -ERR wrong number of arguments for 'msetex' command
        TAPPEND s f v -> 1700000000000.0
        MSETEX 1 s v NX -> :0
        MSETEX 1 s v XX -> :1
        TYPE s -> +string
    """)  # fmt: skip


def test_delifeq_as_in_valkey_9(c: Client) -> None:
    play(c, """
        DELIFEQ k v -> :0
        SET k v -> +OK
        DELIFEQ k w -> :0
        GET k -> v
        DELIFEQ k v -> :1
        GET k -> nil
        TAPPEND s f v -> 1700000000000.0
        DELIFEQ s v -> -WRONGTYPE Operation against a key holding the wrong kind of value
    """)  # fmt: skip


def test_only_its_holder_extends_and_releases_a_lock(c: Client) -> None:
    play(c, """
        SET lock tokA NX EX 10 -> +OK
        SET lock tokB NX EX 10 -> nil
        SET lock tokB IFEQ tokX EX 30 -> nil
        SET lock tokA IFEQ tokA EX 30 -> +OK
        TTL lock -> :30
        DELEX lock IFEQ tokX -> :0
        DELEX lock IFEQ tokA -> :1
        SET lock tokB NX PX 10 -> +OK
    """)  # fmt: skip
    c.server.ms += 10  # the holder said nothing in time
    play(c, "SET lock tokC NX PX 10 -> +OK")


def test_expiry_is_exact_to_the_millisecond(c: Client) -> None:
    play(c, """
        SET a v PX 100 -> +OK
        SET b v EX 1 -> +OK
        SET d v PXAT 1700000000100 -> +OK
        SET e v EXAT 1700000001 -> +OK
    """)  # fmt: skip
    c.server.ms = NOW + 99
    play(c, "EXISTS a b d e -> :4")
    c.server.ms = NOW + 100
    play(c, "EXISTS a b d e -> :2")
    c.server.ms = NOW + 999
    play(c, "EXISTS a b d e -> :2")
    c.server.ms = NOW + 1000
    play(c, "EXISTS a b d e -> :0")


def test_an_expiry_in_the_past_deletes_the_key(c: Client) -> None:
    play(c, """
        SET a v -> +OK
        SET a w EXAT 1 -> +OK
        GET a -> nil
        DBSIZE -> :0
        SET a v -> +OK
        GETEX a PXAT 1 -> v
        GET a -> nil
        DBSIZE -> :0
    """)  # fmt: skip


def test_nulls_in_resp3() -> None:
    c = Client(FakeServer(), proto=3)
    for line in ("GET a", "SET a v XX", "SET a v IFEQ x GET", "GETDEL a", "GETEX a", "RANDOMKEY", "OBJECT ENCODING a"):
        assert c(line) == NULL3, line
    assert c("MGET a b") == b"*2\r\n_\r\n_\r\n"


# -- the log -----------------------------------------------------------------------------------------------------
SCRIPT = """
    SET a 1|SET a 2 EX 100|INCRBY a 5|SET b x PX 50|GETEX a PX 7000|SET b y NX|GETEX a PERSIST|EXPIRE a 50|PERSIST a
    MSET d 1 e 2 f 3|DEL d e|GETDEL f|TAPPEND s f v|SET s now-a-string|SETNX g 1|DELEX g IFEQ 1|SETNX h 1|EXPIRE h -1
    EXPIREAT a 33000000000|SET a keep KEEPTTL|DECR n|DELIFEQ n -1|SET z v EXAT 1
    SETEX a 5 v|PSETEX b 5 v|GETSET a w|APPEND a x|APPEND c new|SETRANGE a 9 y|SETRANGE d 3 z|INCRBYFLOAT i 1.5
    MSETNX j 1 k 2|MSETEX 2 j 1 l 2 PX 700|RENAME j m|RENAMENX m o|RENAME s o|RENAME o s2|COPY a p|COPY l a REPLACE
    TAPPEND t f v|TREAD t 0 1 GROUP g 700 RETRY 5 0|RENAME t p|RENAME p p|RENAME l p|SET a v IFDNE 0000000000000000
    INCREX q|INCREX q EX 100|INCREX q ENX PX 5|INCREX q UBOUND 3 BYINT 9 SATURATE|INCREX q PERSIST|INCREX q BYFLOAT .5
    INCREX r BYFLOAT 1e3 PX 900|INCREX r BYFLOAT 1 LBOUND 2 EXAT 1
"""


def replayed(c: Client, batch: bytes) -> Keyspace:
    copy = Keyspace(NodePool(c.server.ks.pool.store, c.server.ks.pool.cache))
    replay(copy, batch)
    return copy


def test_the_log_replays_to_the_same_state(c: Client) -> None:
    batch = b""
    for line in SCRIPT.replace("|", "\n").strip().splitlines():
        assert not c(line).startswith(b"-"), line
        batch += c.server.ks.take_batch()
        copy = replayed(c, batch)
        assert copy.digest() == c.server.ks.digest(), line
        for ks in (copy, c.server.ks):  # SCAN walks over what is there
            assert sorted(ks.index.page(0, 1000)[1]) == sorted(ks.keys), line


@pytest.mark.parametrize(
    "line",
    [
        "GET a", "MGET a nokey", "STRLEN a", "SET a x NX", "SET nokey x XX", "SET a x IFEQ w", "SET a x IFNE v",
        "DELEX a IFEQ w", "DELIFEQ a w", "GETEX a", "GETDEL nokey", "SETNX a x", "EXPIRE nokey 5", "EXPIRE a 5 XX",
        "PERSIST a", "DEL nokey", "TTL a", "TYPE a", "OBJECT IDLETIME a", "INCR a", "SET a x EX 0", "SCAN 0", "KEYS *",
        "TOUCH a", "RANDOMKEY", "GETRANGE a 0 1", "SUBSTR a 0 1", "DIGEST a", "RENAME a a", "RENAMENX a a",
        "COPY nokey a", "MSETNX a 1 b 2", "MSETEX 1 a 1 NX", "COPY a a", "INCRBYFLOAT a 1", "SETEX a 0 v",
        "INCREX nokey UBOUND 0", "INCREX nokey BYFLOAT 1 UBOUND 0 EX 5", "INCREX a EX 5",
    ],
)  # fmt: skip
def test_commands_that_change_nothing_log_nothing(c: Client, line: str) -> None:
    c("SET a v")
    c.server.ks.take_batch()
    c(line)
    assert c.server.ks.take_batch() == b""
    assert c("GET a") == b"$1\r\nv\r\n"
