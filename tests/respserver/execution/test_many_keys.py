"""Clients that wait for many keys at once: what ends their wait, who is served when, and what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands.context import Block, Context, Reply
from commands.streams import wait
from commands.streams.groupread import has_messages
from respserver.testing import nothing_waits
from storage.keyspace.keyspace import Keyspace
from tests.respserver.execution.test_blocking import GROUP, NULL, UNBLOCKED, append, value_of
from tests.respserver.local import LocalServer, Peer

RETRY = ("RETRY", 1000, 60_000)


def waiting(local: LocalServer, *words: str | int) -> Peer:
    """A new client that waits with TWAIT and these words."""
    peer = local.connect()
    assert peer.ask("TWAIT", *words) == b""
    assert peer.session.blocked
    return peer


def reader(local: LocalServer, *words: str | int) -> Peer:
    """A new client that blocks in TREAD s for a message of the group."""
    peer = local.connect()
    assert peer.ask("TREAD", "s", "", 1, "BLOCK", 0, *GROUP, *words) == b""
    return peer


def make_groups(writer: Peer, *keys: str, ttl: int = 60_000) -> None:
    for key in keys:
        assert writer.ask("TREAD", key, "", 0, "GROUP", "g", ttl) == b"*0\r\n"


def keys(*names: str) -> bytes:
    return b"*%d\r\n" % len(names) + b"".join([b"$%d\r\n%b\r\n" % (len(name), name.encode()) for name in names])


# -- what ends the wait -------------------------------------------------------------------------------------------
def test_a_deleted_key_is_an_empty_stream(local: LocalServer, writer: Peer) -> None:
    append(writer, 1)
    last = writer.ask("TAPPEND", "t", "f", 1).split(b"\r\n")[1].decode()
    waiter = waiting(local, 0, "s", "9999999999999.0", "t", last)
    assert writer.ask("DEL", "s", "t") == b":2\r\n"
    assert waiter.taken() == b""
    local.advance(1000)
    writer.ask("TAPPEND", "t", "f", 2)
    assert waiter.taken() == keys("t")
    assert nothing_waits(local.server)


@pytest.mark.parametrize("command", [("DEL", "t"), ("UNLINK", "t"), ("FLUSHALL",), ("TGROUP", "DESTROY", "t", "g")])
def test_the_end_of_one_group_ends_the_wait(local: LocalServer, writer: Peer, command: tuple[str, ...]) -> None:
    make_groups(writer, "s", "t")
    waiter = waiting(local, 0, "GROUP", "g", "s", "t")
    plain = waiting(local, 0, "s", 0, "t", 0)
    writer.ask(*command)
    assert waiter.taken().startswith(b"-NOGROUP No such key ")
    assert plain.taken() == b""
    writer.ask("TAPPEND", "t", "f", 1)
    assert plain.taken() == keys("t")
    assert nothing_waits(local.server)
    assert local.server.counters.errors == {"NOGROUP": 1}


def test_a_new_group_of_the_same_name_is_another_one(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    waiter = waiting(local, 0, "GROUP", "g", "s", "t")
    writer.pipeline(("MULTI",), ("DEL", "t"), ("TREAD", "t", "", 0, *GROUP), ("TAPPEND", "t", "f", 1), ("EXEC",))
    local.settle()
    assert waiter.taken() == b"-NOGROUP No such key 't' or consumer group 'g'\r\n"


def test_a_key_that_becomes_a_string_ends_the_wait(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "t")
    plain, group = waiting(local, 0, "s", 0, "t", 0), waiting(local, 0, "GROUP", "g", "t")
    writer.ask("SET", "t", "v")
    assert plain.taken().startswith(b"-WRONGTYPE ")
    assert group.taken().startswith(b"-NOGROUP ")
    assert nothing_waits(local.server)
    assert local.connect().ask("TWAIT", 0, "s", 0, "t", 0).startswith(b"-WRONGTYPE ")
    assert local.connect().ask("TWAIT", 0, "GROUP", "g", "t").startswith(b"-WRONGTYPE ")
    assert nothing_waits(local.server)


def test_a_key_that_expires_ends_the_wait_for_its_group(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    waiter = waiting(local, 0, "GROUP", "g", "s", "t")
    writer.ask("PEXPIRE", "s", 1000)
    local.advance(1100)
    assert waiter.taken().startswith(b"-NOGROUP No such key 's' ")
    assert nothing_waits(local.server)


def test_client_unblock(local: LocalServer, writer: Peer) -> None:
    one, two = waiting(local, 0, "s", 0, "t", 0), waiting(local, 0, "s", 0, "t", 0)
    assert writer.ask("CLIENT", "UNBLOCK", one.session.id) == b":1\r\n"
    assert writer.ask("CLIENT", "UNBLOCK", two.session.id, "ERROR") == b":1\r\n"
    assert (one.taken(), two.taken()) == (NULL, UNBLOCKED)
    assert nothing_waits(local.server)


def test_a_client_that_is_gone_waits_no_more(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    gone, killed = waiting(local, 1000, "GROUP", "g", "s", "t"), waiting(local, 0, "s", 0, "t", 0)
    assert writer.ask("INFO", "clients").count(b"blocked_clients:2\r\n") == 1
    assert writer.ask("INFO", "clients").count(b"total_blocking_keys:2\r\n") == 1
    gone.wire.abort()
    writer.ask("CLIENT", "KILL", "ID", killed.session.id)
    local.settle()
    assert nothing_waits(local.server)
    append(writer, 1)
    local.advance(2000)
    assert (gone.taken(), killed.taken()) == (b"", b"")


def test_a_client_that_shuts_down_its_side_waits_no_more(local: LocalServer) -> None:
    waiter = waiting(local, 0, "s", 0, "t", 0)
    waiter.conn.eof_received()
    local.settle()
    assert nothing_waits(local.server)


def test_forget_is_idempotent(local: LocalServer, writer: Peer) -> None:
    waiter, other = waiting(local, 0, "s", 0, "t", 0), waiting(local, 0, "t", 0)
    wait = waiter.conn.flow.wait
    assert wait is not None
    wait.forget()
    wait.forget()
    assert local.server.data.ks.waiting == {b"t": 1}
    writer.ask("TAPPEND", "t", "f", 1)
    assert other.taken() == keys("t")


def test_client_list_shows_the_wait(local: LocalServer, writer: Peer) -> None:
    waiter = waiting(local, 0, "s", 0, "t", 0)
    line = writer.ask("CLIENT", "LIST", "ID", waiter.session.id)
    assert b" flags=b " in line
    assert b" cmd=twait " in line


def test_what_waits_counts_as_memory(local: LocalServer, writer: Peer) -> None:
    peer = local.connect()
    idle = peer.conn.waiting_bytes()
    assert peer.ask("TWAIT", 0, *[word for n in range(1000) for word in (f"key:{n}", "0")]) == b""
    assert peer.conn.waiting_bytes() - idle > 500_000
    assert peer.conn.stats().wait > 500_000
    writer.ask("TAPPEND", "key:7", "f", 1)
    assert peer.taken() == keys("key:7")
    assert peer.conn.waiting_bytes() == idle


def test_too_many_keys_are_refused(local: LocalServer) -> None:
    peer = local.connect()
    text = b"-ERR TWAIT takes at most 10000 keys in one call, not 10001\r\n"
    assert peer.ask("TWAIT", 0, *["k", "0"] * 10_001) == text
    assert peer.ask("TWAIT", 0, "GROUP", "g", *["k"] * 10_001) == text
    assert peer.ask("TWAIT", 1, *["k", "0"] * 10_000) == b""
    local.advance(100)
    assert peer.taken() == NULL


def test_a_server_that_becomes_a_replica_ends_the_waits_for_groups(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t", "u")
    plain = waiting(local, 0, "s", 0, "t", 0)
    groups = [waiting(local, 0, "GROUP", "g", *names) for names in (("s", "t"), ("u",), ("u", "t"))]
    local.server.blocking.unblock_groups("UNBLOCKED the test says so")
    local.settle()
    assert [peer.taken() for peer in groups] == [b"-UNBLOCKED the test says so\r\n"] * 3
    assert local.server.counters.errors == {"UNBLOCKED": 3}, "once for a client, however many keys"
    append(writer, 1)
    assert plain.taken() == keys("s")
    assert nothing_waits(local.server)


def test_waits_go_on_after_the_data_was_replaced(tmp_path: Path) -> None:
    local = LocalServer(tmp_path, enable_debug_command="yes")
    try:
        writer = local.connect()
        make_groups(writer, "s", "t")
        plain, group = waiting(local, 0, "s", 0, "t", 0), waiting(local, 0, "GROUP", "g", "s", "t")
        before = local.server.data.ks
        assert writer.ask("DEBUG", "RELOAD") == b"+OK\r\n"
        ks = local.server.data.ks
        assert ks is not before
        assert ks.waiting == {b"s": 2, b"t": 2}
        groups = [ks.stream(key, local.clock.now()).groups[b"g"] for key in (b"s", b"t")]  # type: ignore[union-attr]
        assert [found.waiters for found in groups] == [1, 1]
        append(writer, "new")
        assert [peer.taken() for peer in (plain, group)] == [keys("s")] * 2
        assert [found.waiters for found in groups] == [0, 0]
        assert nothing_waits(local.server)
    finally:
        local.close()


# -- who is served ------------------------------------------------------------------------------------------------
def test_everyone_is_woken_and_readers_of_the_group_come_first(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    waits = [waiting(local, 0, "GROUP", "g", "t", "s"), waiting(local, 0, "GROUP", "g", "s")]
    first, second = reader(local), reader(local)
    plain = waiting(local, 0, "s", 0, "t", 0)
    append(writer, 1)
    assert value_of(first.taken()) == b"1"
    assert plain.taken() == keys("s")
    assert [peer.taken() for peer in (*waits, second)] == [b""] * 3, "the reader took all that there was"
    append(writer, 2)
    append(writer, 3)
    assert value_of(second.taken()) == b"2"
    assert [peer.taken() for peer in waits] == [keys("s")] * 2
    assert nothing_waits(local.server)


@pytest.mark.interpreted
def test_clients_that_wait_for_the_same_share_one_reply(
    local: LocalServer, writer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are looked at once, not for each client."""
    make_groups(writer, "s", "t", "u")
    same = [waiting(local, 0, "GROUP", "g", "s", "t", "u") for _ in range(20)]
    others = [waiting(local, 0, "GROUP", "g", *names) for names in (("u", "t", "s"), ("s", "u"))]
    looks = list[bytes]()

    def counted(ks: Keyspace, key: bytes, *rest: Any) -> bool:
        looks.append(key)
        return has_messages(ks, key, *rest)

    monkeypatch.setattr(wait, "has_messages", counted)
    writer.pipeline(("MULTI",), ("TAPPEND", "u", "f", 1), ("TAPPEND", "s", "f", 1), ("EXEC",))
    local.settle()
    assert [peer.taken() for peer in same] == [keys("s", "u")] * 20
    assert [peer.taken() for peer in others] == [keys("u", "s"), keys("s", "u")]
    assert len(looks) <= 3 * 4, "for each list of keys: the one with news, then all"
    assert nothing_waits(local.server)


def test_what_readers_take_from_one_key_is_no_news_for_who_is_woken_by_another(
    local: LocalServer, writer: Peer
) -> None:
    make_groups(writer, "s", "t")
    waiter, taker = waiting(local, 0, "GROUP", "g", "s", "t"), reader(local)
    writer.pipeline(("MULTI",), ("TAPPEND", "t", "f", 1), ("TAPPEND", "s", "f", 1), ("EXEC",))
    local.settle()
    assert value_of(taker.taken()) == b"1"
    assert waiter.taken() == keys("t")
    writer.ask("TREAD", "t", "", 1, *GROUP, *RETRY)
    writer.ask("TAPPEND", "s", "f", 2)
    writer.ask("TREAD", "s", "", 1, *GROUP, *RETRY)
    waiter, taker = waiting(local, 0, "GROUP", "g", "s", "t"), reader(local)
    local.advance(1000)
    assert value_of(taker.taken()) == b"2"
    assert waiter.taken() == keys("t")


def test_appends_in_one_pipeline_wake_the_wait_once(local: LocalServer, writer: Peer) -> None:
    waiter = waiting(local, 0, "s", 0, "t", 0)
    writer.pipeline(*[("TAPPEND", "s", "f", n) for n in range(50)], ("TAPPEND", "t", "f", 1))
    local.settle()
    assert waiter.taken() == keys("s")
    assert waiter.ask("TWAIT", 0, "s", "9999999999999.0", "t", 0) == keys("t")


def test_other_groups_and_other_keys_do_not_end_the_wait(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    writer.ask("TREAD", "s", "", 0, "GROUP", "other", 0)
    append(writer, 1)
    writer.ask("TREAD", "s", "", 10, *GROUP)
    waiter = waiting(local, 0, "GROUP", "g", "s", "t")
    writer.ask("TGROUP", "SETID", "s", "other", 0)
    writer.ask("TAPPEND", "u", "f", 1)
    assert waiter.taken() == b""
    writer.ask("TGROUP", "SETID", "s", "g", 0)
    assert waiter.taken() == keys("s")


# -- pending messages ---------------------------------------------------------------------------------------------
def delivered(writer: Peer, key: str, *words: str | int) -> str:
    """Append to the key and deliver that with RETRY; returns the message's ID."""
    made = writer.ask("TAPPEND", key, "f", 1).split(b"\r\n")[1].decode()
    assert writer.ask("TREAD", key, "", 1, *GROUP, *(words or RETRY)).startswith(b"*1\r\n")
    return made


def test_a_message_that_falls_due_ends_the_wait(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    delivered(writer, "s")
    local.advance(500)
    delivered(writer, "t")
    waits = [waiting(local, 0, "GROUP", "g", "s", "t"), waiting(local, 0, "GROUP", "g", "t")]
    blocking, clock = local.server.blocking, local.clock
    assert blocking.next_wake(clock.now(), clock.mono()) == 500
    local.advance(400)
    assert [peer.taken() for peer in waits] == [b"", b""]
    local.advance(100)
    assert [peer.taken() for peer in waits] == [keys("s"), b""]
    assert blocking.next_wake(clock.now(), clock.mono()) == 500
    local.advance(500)
    assert waits[1].taken() == keys("t")
    assert nothing_waits(local.server)


def test_a_due_message_that_a_reader_takes_wakes_the_wait_when_it_is_due_again(
    local: LocalServer, writer: Peer
) -> None:
    make_groups(writer, "s")
    delivered(writer, "s")
    waiter, taker = waiting(local, 0, "GROUP", "g", "s"), reader(local, *RETRY)
    local.advance(1000)
    assert taker.taken().startswith(b"*1\r\n")
    assert waiter.taken() == b""
    local.advance(900)
    assert waiter.taken() == b""
    local.advance(100)
    assert waiter.taken() == keys("s")


def test_messages_given_back(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t")
    made = delivered(writer, "t")
    waiter = waiting(local, 0, "GROUP", "g", "s", "t")
    writer.ask("TNACK", "t", "g", "DELAY", 300, made)
    assert waiter.taken() == b""
    local.advance(300)
    assert waiter.taken() == keys("t")
    writer.ask("TTOUCH", "t", "g", 5000, made)
    assert waiter.ask("TWAIT", 0, "GROUP", "g", "s", "t") == b""
    writer.ask("TNACK", "t", "g", made)
    assert waiter.taken() == keys("t")


def test_messages_that_are_given_up_wake_nobody(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s")
    delivered(writer, "s", "RETRY", 1000, 500)
    delivered(writer, "s", "RETRY", 1000, 0, "MAXDELIVERIES", 1)
    waiter = waiting(local, 0, "GROUP", "g", "s")
    local.advance(3000)
    assert waiter.taken() == b""
    assert writer.ask("TPENDING", "s", "g").startswith(b"*4\r\n:0\r\n")


def test_a_message_that_cannot_become_a_dead_letter_does_not_keep_the_server_busy(
    local: LocalServer, writer: Peer
) -> None:
    make_groups(writer, "s")
    delivered(writer, "s", "RETRY", 1000, 2500, "DEADLETTER", "dead")
    writer.ask("SET", "dead", "a string")
    waiter = waiting(local, 0, "GROUP", "g", "s")
    local.advance(1000)
    assert waiter.taken() == keys("s")
    assert writer.ask("TREAD", "s", "", 1, *GROUP).startswith(b"*1\r\n")
    assert waiter.ask("TWAIT", 0, "GROUP", "g", "s") == b""
    local.advance(1000)
    assert waiter.taken() == keys("s")
    local.advance(1000)
    assert waiter.ask("TWAIT", 0, "GROUP", "g", "s") == b"", "it is over, though nothing can take it"
    local.advance(5000)
    assert waiter.taken() == b""
    assert writer.ask("TPENDING", "s", "g").startswith(b"*4\r\n:1\r\n")


def test_the_null_of_an_evicted_message_is_something(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s")
    delivered(writer, "s")
    writer.ask("TAPPEV", "s", "COUNT", 0)
    waiter = waiting(local, 0, "GROUP", "g", "s")
    local.advance(1000)
    assert waiter.taken() == keys("s")
    assert writer.ask("TREAD", "s", "", 1, "BLOCK", 1, *GROUP) == b"*1\r\n*-1\r\n"


# -- signs of life ------------------------------------------------------------------------------------------------
def test_groups_do_not_expire_while_a_client_waits(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t", ttl=1000)
    waiter = waiting(local, 0, "GROUP", "g", "s", "t")
    plain = waiting(local, 0, "s", "9999999999999.0", "t", 0)
    local.advance(5000)
    append(writer, 1)
    assert waiter.taken() == keys("s")
    local.advance(900)
    assert all(writer.ask("TGROUP", "LIST", key) != b"*0\r\n" for key in ("s", "t"))
    assert plain.session.blocked, "a wait for entries keeps no group alive"
    local.advance(200)
    assert all(writer.ask("TGROUP", "LIST", key) == b"*0\r\n" for key in ("s", "t"))


def test_a_call_is_a_sign_of_life_also_if_it_does_not_wait(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", "t", ttl=1000)
    append(writer, 1)
    for _ in range(3):
        local.advance(900)
        assert writer.ask("TWAIT", 0, "GROUP", "g", "s", "t") == keys("s")
    local.advance(1100)
    assert writer.ask("TWAIT", 0, "GROUP", "g", "s", "t").startswith(b"-NOGROUP No such key 's' ")


def test_a_call_that_fails_is_no_sign_of_life(local: LocalServer, writer: Peer) -> None:
    make_groups(writer, "s", ttl=1000)
    local.advance(900)
    assert writer.ask("TWAIT", 0, "GROUP", "g", "s", "missing").startswith(b"-NOGROUP No such key 'missing' ")
    local.advance(200)
    assert writer.ask("EXISTS", "s") == b":0\r\n"


# -- taking in turn, from many keys -------------------------------------------------------------------------------
@pytest.mark.interpreted
def test_takers_of_many_keys_are_served_in_turn(local: LocalServer, writer: Peer) -> None:
    class Taker(Block):
        """Takes one entry of a group from whichever of its streams has one."""

        def serve(self, ctx: Context, key: bytes) -> bytes | None:
            stream = ctx.ks.stream(key, ctx.now)
            assert stream is not None
            group = stream.groups[b"g"]
            if group.offset >= stream.last_id:
                return None
            group.offset = stream.id_at(stream.seek(group.offset + 1).ordinal)
            return b"+%b\r\n" % key

    def take(ctx: Context, argv: list[bytes]) -> Reply:
        return Taker(argv[1:], b"g", True, 0, NULL)

    local.declare("TAKE", take, "write blocking")
    make_groups(writer, "s", "t")
    peers = [local.connect() for _ in range(4)]
    for peer, names in zip(peers, (("s", "t"), ("t",), ("s", "t"), ("s",)), strict=True):
        assert peer.ask("TAKE", *names) == b""
    assert local.server.data.ks.waiting == {b"s": 3, b"t": 3}
    writer.pipeline(("TAPPEND", "s", "f", 1), ("TAPPEND", "t", "f", 1))
    local.settle()
    assert [peer.taken() for peer in peers] == [b"+s\r\n", b"+t\r\n", b"", b""]
    writer.pipeline(("MULTI",), ("TAPPEND", "t", "f", 2), ("TAPPEND", "s", "f", 2), ("EXEC",))
    local.settle()
    assert [peer.taken() for peer in peers] == [b"", b"", b"+t\r\n", b"+s\r\n"], "whoever is served leaves all lines"
    assert nothing_waits(local.server)
