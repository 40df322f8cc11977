"""The handlers of MULTI, EXEC, DISCARD, WATCH and UNWATCH. The dispatcher queues commands (test_dispatch)."""

from __future__ import annotations

import pytest

from commands.session import Session
from tests.commands.fakeserver import NOW, FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def queue(session: Session, *words: bytes) -> None:
    session.queued.append(list(words))


def clean(session: Session, server: FakeServer) -> bool:
    return (
        not (session.multi or session.exec_abort or session.dirty_cas or session.queued or session.watching)
        and session.plain
        and not server.ks.watchers
    )


def test_exec_runs_in_order_and_ends_the_transaction(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "MULTI") == b"+OK\r\n"
    assert (me.multi, me.plain) == (True, False)
    queue(me, b"PING")
    queue(me, b"SELECT", b"9")
    queue(me, b"ECHO", b"x")
    assert server.run(me, "EXEC") == b"*3\r\n+PONG\r\n-ERR DB index is out of range\r\n$1\r\nx\r\n"
    assert clean(me, server)


def test_exec_of_an_empty_transaction(server: FakeServer) -> None:
    me = server.connect()
    server.run(me, "MULTI")
    assert server.run(me, "EXEC") == b"*0\r\n"
    assert clean(me, server)


def test_commands_outside_their_place(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "EXEC") == b"-ERR EXEC without MULTI\r\n"
    assert server.run(me, "DISCARD") == b"-ERR DISCARD without MULTI\r\n"
    server.run(me, "MULTI")
    assert server.run(me, "MULTI") == b"-ERR MULTI calls can not be nested\r\n"
    assert server.run(me, "WATCH", "k") == b"-ERR WATCH inside MULTI is not allowed\r\n"
    assert me.multi
    assert server.run(me, "DISCARD") == b"+OK\r\n"
    assert clean(me, server)


def test_a_wrong_command_aborts_the_transaction(server: FakeServer) -> None:
    me = server.connect()
    server.run(me, "WATCH", "k")
    server.run(me, "MULTI")
    queue(me, b"PING")
    me.exec_abort = me.dirty_cas = True
    assert server.run(me, "EXEC") == b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    assert clean(me, server)


@pytest.mark.parametrize(("proto", "null"), [(2, b"*-1\r\n"), (3, b"_\r\n")])
def test_exec_returns_null_if_a_watched_key_changed(server: FakeServer, proto: int, null: bytes) -> None:
    me = server.connect(proto=proto)
    server.run(me, "WATCH", "k", "other")
    server.ks.set_string(b"k", b"new")
    server.run(me, "MULTI")
    queue(me, b"PING")
    assert server.run(me, "EXEC") == null
    assert clean(me, server)


def test_unwatch_and_discard_forget_changes(server: FakeServer) -> None:
    me = server.connect()
    for forget in (["UNWATCH"], ["MULTI"]):
        server.run(me, "WATCH", "k")
        server.ks.set_string(b"k", b"new")
        assert me.dirty_cas
        server.run(me, *forget)
        if forget == ["MULTI"]:
            server.run(me, "DISCARD")
        server.run(me, "MULTI")
        assert server.run(me, "EXEC") == b"*0\r\n"


def test_expiry_between_watch_and_exec_counts_as_a_change(server: FakeServer) -> None:
    me = server.connect()
    server.ks.set_string(b"k", b"v", NOW + 50)
    server.run(me, "WATCH", "k")
    server.run(me, "MULTI")
    server.ms += 50
    assert server.run(me, "EXEC") == b"*-1\r\n"
    assert b"k" not in server.ks.keys


def test_a_key_that_expired_before_watch_counts_as_missing(server: FakeServer) -> None:
    me = server.connect()
    server.ks.set_string(b"k", b"v", NOW - 1)
    server.run(me, "WATCH", "k")
    server.run(me, "MULTI")
    assert server.run(me, "EXEC") == b"*0\r\n"
