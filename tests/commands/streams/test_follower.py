"""A replica's keyspace: what is over is hidden, and nothing that reads logs anything."""

from __future__ import annotations

import pytest

from commands.declare import Command
from commands.registry import all_commands
from commands.session import Session
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages
from storage.streams.stream import Stream
from tests.commands.fakeserver import NOW, FakeServer
from tests.commands.test_grammar import argv_of

GONE = NOW - 1


@pytest.fixture
def server() -> FakeServer:
    """A replica with a string and a stream whose time is over, and a group whose time is over in one that lives."""
    server = FakeServer()
    ks = server.ks
    ks.set_string(b"key", b"v", GONE)
    ks.set_string(b"live", b"v", NOW + 1000)
    for name in (b"stream", b"alive"):
        stream = ks.create_stream(name)
        ks.append(name, stream, NOW - 5000, 0, b"*1\r\n$15\r\n1699999995000.0\r\n")
        group = groupmutators.set_group(ks, name, stream, b"group", 0, 10, NOW - 4000)
        reader = groupmutators.Reader(NOW - 5000, 10, NOW - 4000, 1, b"dead", 7)
        groupmutators.deliver(
            ks, name, stream, group, stream.last_id, reader, Messages([stream.last_id.to_bytes(16, "big")], [], [])
        )
    ks.set_expire(b"stream", GONE)
    ks.log.clear()
    ks.follower = True
    return server


@pytest.fixture
def me(server: FakeServer) -> Session:
    return server.connect()


READERS = [cmd for cmd in all_commands() if not cmd.bare and (cmd.name in ("tread", "twait") or not cmd.write)]


@pytest.mark.parametrize("key", [b"key", b"stream", b"alive"])
@pytest.mark.parametrize("cmd", READERS, ids=lambda cmd: cmd.name)
def test_nothing_that_reads_logs(server: FakeServer, me: Session, cmd: Command, key: bytes) -> None:
    argv = argv_of(cmd, None, lambda node: False)
    argv = [key if spec_at(cmd, argv, at) else word for at, word in enumerate(argv)]
    before = server.ks.digest()
    server.run(me, *argv, in_exec=True)  # nothing waits
    assert server.ks.log == []
    assert server.ks.digest() == before


def spec_at(cmd: Command, argv: list[bytes], at: int) -> bool:
    return any(at in spec.positions(argv) for spec in cmd.key_specs)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("GET key", b"$-1\r\n"),
        ("EXISTS key stream live", b":1\r\n"),
        ("TYPE stream", b"+none\r\n"),
        ("TTL key", b":-2\r\n"),
        ("TLEN stream", b":0\r\n"),
        ("TRANGE stream - +", b"*0\r\n"),
        ("TREAD stream 0 10", b"*0\r\n"),
        ("MGET key live", b"*2\r\n$-1\r\n$1\r\nv\r\n"),
        ("KEYS l*", b"*1\r\n$4\r\nlive\r\n"),
        ("SCAN 0 MATCH *e* COUNT 100 TYPE string", b"*2\r\n$1\r\n0\r\n*1\r\n$4\r\nlive\r\n"),
        ("SCAN 0 COUNT 100 TYPE stream", b"*2\r\n$1\r\n0\r\n*1\r\n$5\r\nalive\r\n"),
        ("OBJECT ENCODING key", b"$-1\r\n"),
        ("MEMORY USAGE stream", b"$-1\r\n"),
    ],
)
def test_what_is_over_is_hidden(server: FakeServer, me: Session, words: str, answer: bytes) -> None:
    assert server.run(me, *words.split()) == answer
    assert server.ks.expired_keys == 0


def test_the_same_keys_go_where_it_leads(server: FakeServer, me: Session) -> None:
    server.ks.follower = False
    server.run(me, "GET", "key")
    assert len(server.ks.log) == 1
    assert server.ks.expired_keys == 1


def test_a_random_key_lives(server: FakeServer, me: Session) -> None:
    assert server.run(me, "RANDOMKEY") in (b"$4\r\nlive\r\n", b"$5\r\nalive\r\n")
    for name in (b"live", b"alive"):
        server.ks.expires[name] = GONE
    assert server.run(me, "RANDOMKEY") == b"$-1\r\n", "and the search ends"
    assert server.ks.log == []


def test_the_end_of_a_watched_key_counts_as_a_change(server: FakeServer, me: Session) -> None:
    server.run(me, "WATCH", "live")
    server.run(me, "MULTI")
    server.ms = NOW + 2000
    assert server.run(me, "EXEC") == b"*-1\r\n"
    assert server.ks.log == []


def test_a_delete_finds_nothing_and_leaves_it_to_the_leader(server: FakeServer) -> None:
    assert server.ks.delete(b"key", NOW) is False
    assert isinstance(server.ks.keys[b"stream"], Stream)
    assert server.ks.log == []
