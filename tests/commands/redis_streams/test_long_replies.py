"""Replies that are streamed while other commands run."""

from __future__ import annotations

import hiredis

from commands import registry  # noqa: F401  (fills the command table)
from commands.context import Chunks, Context
from commands.redis_streams.pending import xpending
from tests.commands.fakeserver import FakeServer

MANY = 2500


def test_xpending_while_its_consumers_are_deleted() -> None:
    server = FakeServer()
    session = server.connect()
    server.run(session, "TMAPPEND", "s", "FIELDS", "1", "f", "VALUES", *map(str, range(MANY)))
    server.run(session, "XGROUP", "CREATE", "s", "g", "0")
    server.run(session, "XREADGROUP", "GROUP", "g", "c", "COUNT", "2000", "STREAMS", "s", ">")
    server.run(session, "XREADGROUP", "GROUP", "g", "d", "STREAMS", "s", ">")
    answer = xpending(Context(server.ks, server, session, server.ms), [b"XPENDING", b"s", b"g", b"-", b"+", b"9999"])
    assert isinstance(answer, Chunks)
    reader = hiredis.Reader()
    for number, piece in enumerate(answer.pieces):
        reader.feed(piece)
        if not number:
            server.run(session, "XGROUP", "DELCONSUMER", "s", "g", "c")
            server.run(session, "XGROUP", "DELCONSUMER", "s", "g", "d")
    rows = reader.gets()
    assert [row[1] for row in rows] == [b"c"] * 2000 + [b"d"] * (MANY - 2000)
