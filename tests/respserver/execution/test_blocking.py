"""Clients that wait: who is served next, when a wait ends, and what is left of it then."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.context import Await, Context, Reply
from respserver.execution import blocking
from respserver.testing import nothing_waits, retained_deadlines
from tests.respserver.local import LocalServer, Peer

NULL = b"*-1\r\n"
UNBLOCKED = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"
GROUP = ("GROUP", "g", 60_000)


def waiting(local: LocalServer, *words: str | int) -> Peer:
    """A new client that blocks with TREAD s and these words."""
    peer = local.connect()
    assert peer.ask("TREAD", "s", *words) == b""
    assert peer.session.blocked
    return peer


def group_readers(local: LocalServer, count: int, *words: str | int) -> list[Peer]:
    return [waiting(local, "", 1, "BLOCK", 0, *GROUP, *words) for _ in range(count)]


def append(writer: Peer, value: str | int) -> None:
    assert writer.ask("TAPPEND", "s", "f", value).startswith(b"$")


def value_of(reply: bytes) -> bytes:
    """The value of the one entry in a reply; empty for no reply."""
    return reply.rstrip(b"\r\n").rpartition(b"\r\n")[2]


# -- who is served ------------------------------------------------------------------------------------------------
def test_every_plain_reader_is_served_and_equal_ones_share_the_reply(local: LocalServer, writer: Peer) -> None:
    readers = [waiting(local, "0.0", 10, "BLOCK", 0) for _ in range(3)]
    assert local.server.data.ks.waiting == {b"s": 3}
    append(writer, "x")
    replies = [peer.wire.written for peer in readers]
    assert [len(pieces) for pieces in replies] == [1, 1, 1]
    assert value_of(replies[0][0]) == b"x"
    assert replies[0][0] is replies[1][0] is replies[2][0]
    assert not any(peer.session.blocked or peer.conn.flow.wait for peer in readers)
    assert nothing_waits(local.server)


def test_readers_of_different_kinds_get_replies_of_their_own(local: LocalServer, writer: Peer) -> None:
    append(writer, "a")
    plain = waiting(local, "", 10, "BLOCK", 0)
    informed = waiting(local, "", 10, "BLOCK", 0, "WITHINFO")
    resp3 = local.connect()
    resp3.ask("HELLO", 3)
    resp3.ask("TREAD", "s", "", 10, "BLOCK", 0, "WITHINFO")
    far = waiting(local, "9999999999999.0", 10, "BLOCK", 0)
    last = waiting(local, "", 10, "BLOCK", 0)
    append(writer, "b")
    replies = [peer.taken() for peer in (plain, informed, resp3, last)]
    assert [value_of(reply) for reply in replies] == [b"b"] * 4
    assert replies[0] == replies[3]
    assert replies[0].startswith(b"*1\r\n")
    assert replies[1] == replies[2]
    assert replies[1].startswith(b"*2\r\n*2\r\n")
    assert far.session.blocked
    assert (local.server.blocking.count, local.server.data.ks.waiting) == (1, {b"s": 1})


def test_readers_of_a_group_are_served_in_the_order_in_which_they_blocked(local: LocalServer, writer: Peer) -> None:
    first, second, third = group_readers(local, 3)
    append(writer, "a")
    assert [value_of(peer.taken()) for peer in (first, second, third)] == [b"a", b"", b""]
    assert first.ask("TREAD", "s", "", 1, "BLOCK", 0, *GROUP) == b""  # now the last one
    for value, winner in (("b", second), ("c", third), ("d", first)):
        append(writer, value)
        got = {peer: value_of(peer.taken()) for peer in (first, second, third)}
        assert got.pop(winner) == value.encode()
        assert set(got.values()) == {b""}
    assert nothing_waits(local.server)


def test_appends_of_one_pipeline_feed_as_many_readers(local: LocalServer, writer: Peer) -> None:
    readers = group_readers(local, 3)
    writer.pipeline(*[("TAPPEND", "s", "f", n) for n in range(2)])
    local.settle()
    assert [value_of(peer.taken()) for peer in readers] == [b"0", b"1", b""]


def test_one_reader_may_get_all_entries_of_one_append(local: LocalServer, writer: Peer) -> None:
    greedy = waiting(local, "", 100, "BLOCK", 0, *GROUP)
    modest = waiting(local, "", 100, "BLOCK", 0, *GROUP)
    writer.ask("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", "a", "b")
    assert greedy.taken().startswith(b"*2\r\n")
    assert modest.session.blocked


def test_each_group_has_a_queue_of_its_own(local: LocalServer, writer: Peer) -> None:
    one = waiting(local, "", 1, "BLOCK", 0, "GROUP", "one", 0)
    two = waiting(local, "", 1, "BLOCK", 0, "GROUP", "two", 0)
    plain = waiting(local, "", 1, "BLOCK", 0)
    append(writer, "x")
    assert [value_of(peer.taken()) for peer in (one, two, plain)] == [b"x"] * 3


def test_a_reply_leaves_when_the_entry_is_durable(local: LocalServer, writer: Peer) -> None:
    reader = waiting(local, "", 1, "BLOCK", 0)
    local.events.clear()
    writer.send("TAPPEND", "s", "f", "v")
    assert local.events == []
    local.settle()
    assert [event[0] for event in local.events] == ["append", "write", "write"]
    assert value_of(reader.taken()) == b"v"


def test_a_wake_without_data_keeps_the_place_in_the_queue(local: LocalServer, writer: Peer) -> None:
    first = waiting(local, "", 1, "BLOCK", 5000, *GROUP)
    second = waiting(local, "", 1, "BLOCK", 5000, *GROUP)
    local.server.data.ks.ready.append(b"s")
    local.server.tick()
    assert [peer.taken() for peer in (first, second)] == [b"", b""]
    append(writer, "a")
    assert value_of(first.taken()) == b"a"
    local.advance(5000)
    assert second.taken() == NULL


def test_a_key_that_becomes_a_string_ends_the_wait_with_an_error(local: LocalServer, writer: Peer) -> None:
    plain, reader = waiting(local, "", 1, "BLOCK", 0), group_readers(local, 1)[0]
    assert writer.ask("SET", "s", "v") == b"+OK\r\n"
    assert plain.taken().startswith(b"-WRONGTYPE ")
    assert reader.taken().startswith(b"-NOGROUP ")
    assert nothing_waits(local.server)
    assert set(local.server.counters.errors) == {"WRONGTYPE", "NOGROUP"}


def test_a_served_client_goes_on_with_what_it_sent_meanwhile(local: LocalServer, writer: Peer) -> None:
    reader = local.connect()
    reader.pipeline(("TREAD", "s", "", 1, "BLOCK", 0), ("ECHO", "a"))
    reader.send("ECHO", "b")
    local.settle()
    assert reader.taken() == b""
    append(writer, "x")
    assert reader.taken().endswith(b"x\r\n$1\r\na\r\n$1\r\nb\r\n")


# -- groups that end ----------------------------------------------------------------------------------------------
def test_readers_of_a_destroyed_group_get_an_error(local: LocalServer, writer: Peer) -> None:
    readers = group_readers(local, 2)
    assert writer.ask("TGROUP", "DESTROY", "s", "g") == b":1\r\n"
    assert [peer.taken()[:9] for peer in readers] == [b"-NOGROUP "] * 2
    assert nothing_waits(local.server)


def test_readers_do_not_move_to_a_new_group_of_the_same_name(local: LocalServer, writer: Peer) -> None:
    reader = group_readers(local, 1)[0]
    writer.pipeline(("MULTI",), ("TGROUP", "DESTROY", "s", "g"), ("TREAD", "s", "", 1, *GROUP), ("EXEC",))
    local.settle()
    assert reader.taken().startswith(b"-NOGROUP ")
    assert group_readers(local, 1)[0].session.blocked


def test_a_group_does_not_expire_while_a_reader_waits(local: LocalServer, writer: Peer) -> None:
    reader = waiting(local, "", 1, "BLOCK", 0, "GROUP", "g", 1000)
    local.advance(5000)
    group = local.server.data.ks.stream(b"s", local.clock.now()).groups[b"g"]  # type: ignore[union-attr]
    assert group.waiters == 1
    assert reader.session.blocked
    reader.wire.abort()
    local.settle()
    assert group.waiters == 0
    local.advance(900)
    assert writer.ask("TGROUP", "LIST", "s") != b"*0\r\n"
    local.advance(200)
    assert writer.ask("TGROUP", "LIST", "s") == b"*0\r\n"


# -- due messages -------------------------------------------------------------------------------------------------
def test_a_reader_is_woken_when_a_message_falls_due(local: LocalServer, writer: Peer) -> None:
    append(writer, "x")
    retry = ("RETRY", 1000, 60_000)
    assert value_of(writer.ask("TREAD", "s", "0.0", 1, *GROUP, *retry)) == b"x"
    reader = group_readers(local, 1, *retry)[0]
    blocking, clock = local.server.blocking, local.clock
    assert blocking.next_wake(clock.now(), clock.mono()) == 1000
    local.advance(900)
    assert reader.taken() == b""
    local.advance(100)
    assert b"x\r\n" in reader.taken()
    assert nothing_waits(local.server)


@pytest.mark.interpreted  # changes a constant
def test_readers_of_many_due_messages_are_served_some_at_a_time(
    local: LocalServer, writer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that fall due together do not hold up what others have sent."""
    writer.ask("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *"abcdef")
    retry = ("RETRY", 1000, 60_000)
    writer.ask("TREAD", "s", "0.0", 6, *GROUP, *retry)
    readers = group_readers(local, 6, *retry)
    monkeypatch.setattr(blocking, "SERVED_NS", -1)
    local.clock.move(1000)
    local.server.blocking.wake(local.clock.now(), local.clock.mono())
    assert sum(not reader.session.blocked for reader in readers) == 1
    local.settle()
    assert [value_of(reader.taken()) for reader in readers] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert nothing_waits(local.server)


# -- deadlines ----------------------------------------------------------------------------------------------------
def test_a_wait_ends_at_its_deadline(local: LocalServer, writer: Peer) -> None:
    late = waiting(local, "", 1, "BLOCK", 2000)
    early = waiting(local, "", 1, "BLOCK", 1000)
    forever = waiting(local, "", 1, "BLOCK", 0)
    blocking, clock = local.server.blocking, local.clock
    assert blocking.next_wake(clock.now(), clock.mono()) == 1000
    local.advance(1000)
    assert [peer.taken() for peer in (late, early, forever)] == [b"", NULL, b""]
    assert blocking.next_wake(clock.now(), clock.mono()) == 1000
    local.advance(1000)
    assert [peer.taken() for peer in (late, forever)] == [NULL, b""]
    assert blocking.next_wake(clock.now(), clock.mono()) is None
    assert blocking.count == 1


def test_a_deadline_does_not_move_with_the_wall_clock(local: LocalServer) -> None:
    reader = waiting(local, "", 1, "BLOCK", 1000)
    local.clock.move(-3_600_000)
    local.advance(900)
    assert reader.taken() == b""
    local.advance(100)
    assert reader.taken() == NULL


def test_the_deadline_of_a_wait_that_ended_wakes_nobody(local: LocalServer, writer: Peer) -> None:
    reader = waiting(local, "", 1, "BLOCK", 1000)
    append(writer, "x")
    reader.taken()
    assert local.server.blocking.next_wake(local.clock.now(), local.clock.mono()) is None
    reader.ask("TREAD", "s", "", 1, "BLOCK", 0)
    local.advance(2000)
    assert reader.session.blocked
    assert reader.taken() == b""


def test_deadlines_of_waits_that_ended_do_not_pile_up(local: LocalServer, writer: Peer) -> None:
    reader = local.connect()
    for number in range(200):
        assert reader.ask("TREAD", "s", "", 1, "BLOCK", 10**9) == b""
        append(writer, number)
        assert value_of(reader.taken()) == b"%d" % number
    assert retained_deadlines(local.server) <= 65


# -- waits that are ended -----------------------------------------------------------------------------------------
def test_client_unblock(local: LocalServer, writer: Peer) -> None:
    one, two, three = waiting(local, "", 1, "BLOCK", 0), waiting(local, "", 1, "BLOCK", 0), group_readers(local, 1)[0]
    assert writer.ask("CLIENT", "UNBLOCK", one.session.id) == b":1\r\n"
    assert writer.ask("CLIENT", "UNBLOCK", two.session.id, "ERROR") == b":1\r\n"
    assert writer.ask("CLIENT", "UNBLOCK", three.session.id, "TIMEOUT") == b":1\r\n"
    assert [peer.taken() for peer in (one, two, three)] == [NULL, UNBLOCKED, NULL]
    assert writer.ask("CLIENT", "UNBLOCK", one.session.id) == b":0\r\n"
    assert nothing_waits(local.server)


def test_a_client_that_is_gone_waits_no_more(local: LocalServer, writer: Peer) -> None:
    gone, killed = waiting(local, "", 1, "BLOCK", 1000), waiting(local, "", 1, "BLOCK", 0)
    left = group_readers(local, 1)[0]
    gone.wire.abort()
    writer.ask("CLIENT", "KILL", "ID", killed.session.id)
    local.settle()
    assert (local.server.blocking.count, local.server.data.ks.waiting) == (1, {b"s": 1})
    append(writer, "x")
    assert value_of(left.taken()) == b"x"
    assert (gone.taken(), killed.taken()) == (b"", b"")
    local.advance(2000)
    assert nothing_waits(local.server)


def test_the_next_reader_of_a_group_is_served_if_the_first_is_gone(local: LocalServer, writer: Peer) -> None:
    first, second = group_readers(local, 2)
    first.conn.kill()
    append(writer, "x")
    assert value_of(second.taken()) == b"x"


def test_forget_is_idempotent(local: LocalServer) -> None:
    reader, other = waiting(local, "", 1, "BLOCK", 0), waiting(local, "", 1, "BLOCK", 0)
    wait = reader.conn.flow.wait
    assert wait is not None
    wait.forget()
    wait.forget()
    assert (local.server.blocking.count, local.server.data.ks.waiting) == (1, {b"s": 1})
    assert other.session.blocked


def test_a_server_that_becomes_a_replica_ends_the_waits_that_only_a_leader_serves(
    local: LocalServer, writer: Peer
) -> None:
    plain, readers = waiting(local, "", 1, "BLOCK", 0), group_readers(local, 2)
    replicas = local.connect()
    replicas.ask("WAIT", 1, 0)
    local.server.blocking.unblock_groups("UNBLOCKED the test says so")
    local.settle()
    assert [peer.taken() for peer in (*readers, replicas)] == [b"-UNBLOCKED the test says so\r\n"] * 3
    assert plain.session.blocked
    assert local.server.counters.errors == {"UNBLOCKED": 3}
    append(writer, "x")
    assert value_of(plain.taken()) == b"x"
    assert nothing_waits(local.server)


def test_waits_go_on_after_the_data_was_replaced(tmp_path: Path) -> None:
    local = LocalServer(tmp_path, enable_debug_command="yes")
    try:
        writer = local.connect()
        append(writer, "old")
        plain, readers = waiting(local, "", 1, "BLOCK", 0), group_readers(local, 2)
        before = local.server.data.ks
        assert writer.ask("DEBUG", "RELOAD") == b"+OK\r\n"
        ks = local.server.data.ks
        assert ks is not before
        assert ks.waiting == {b"s": 3}
        assert ks.stream(b"s", local.clock.now()).groups[b"g"].waiters == 2  # type: ignore[union-attr]
        append(writer, "new")
        assert [value_of(peer.taken()) for peer in (plain, *readers)] == [b"new", b"new", b""]
        readers[1].conn.kill()
        assert nothing_waits(local.server)
    finally:
        local.close()


def test_readers_get_news_that_came_with_the_new_data(local: LocalServer) -> None:
    reader, ks = waiting(local, "0.0", 1, "BLOCK", 0), local.server.data.ks
    ks.append(b"s", ks.create_stream(b"s"), 1, 1, b"*2\r\n$3\r\n1.1\r\n*0\r\n")
    ks.ready.clear()  # as if no reader had been woken
    local.server.blocking.recount()
    local.server.tick()
    assert reader.taken() == b"*1\r\n*2\r\n$3\r\n1.1\r\n*0\r\n"


# -- bugs ---------------------------------------------------------------------------------------------------------
@pytest.mark.interpreted
def test_a_bug_while_serving_one_reader_does_not_concern_the_others(
    local: LocalServer, writer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = group_readers(local, 2)
    wait = first.conn.flow.wait

    def serve(block: object, ctx: Context, key: bytes) -> bytes:
        if ctx.session is first.session:
            raise ValueError("the test says so")
        return b"+served\r\n"

    monkeypatch.setattr(type(wait.block), "serve", serve)  # type: ignore[union-attr]
    append(writer, "x")
    assert first.taken().startswith(b"-ERR internal error")
    assert second.taken() == b"+served\r\n"
    assert "Bug while running a blocked read" in local.log()


# -- waits for replicas and the disk ------------------------------------------------------------------------------
class Caught:
    """A command that waits until ``reply`` is set."""

    def __init__(self, local: LocalServer) -> None:
        self.reply: bytes | None = None
        self.asked = 0
        local.declare("CATCHUP", self.handle, "blocking")

    def handle(self, ctx: Context, argv: list[bytes]) -> Reply:
        timeout = int(argv[1])
        return Await(ctx.now + timeout if timeout else 0, self.check, lambda: b":0\r\n")

    def check(self) -> bytes | None:
        self.asked += 1
        return self.reply


def test_a_wait_is_checked_after_its_tick(local: LocalServer) -> None:
    caught, one = Caught(local), local.connect()
    one.send("CATCHUP", 0)
    assert caught.asked == 0
    caught.reply = b":1\r\n"
    local.settle()
    assert one.taken() == b":1\r\n"
    assert caught.asked == 1
    assert nothing_waits(local.server)


def test_a_wait_is_checked_when_a_replica_acknowledges_and_as_time_passes(local: LocalServer) -> None:
    caught, one = Caught(local), local.connect()
    one.ask("CATCHUP", 0)
    asked = caught.asked
    local.server.blocking.acknowledged()
    assert caught.asked == asked + 1
    local.server.blocking.wake(local.clock.now(), local.clock.mono())
    assert caught.asked == asked + 2
    caught.reply = b":2\r\n"
    local.server.blocking.acknowledged()
    local.settle()
    assert one.taken() == b":2\r\n"
    assert not one.session.blocked


def test_a_wait_for_replicas_times_out(local: LocalServer) -> None:
    caught, one = Caught(local), local.connect()
    one.ask("CATCHUP", 500)
    assert local.server.blocking.next_wake(local.clock.now(), local.clock.mono()) == 500
    local.advance(400)
    assert one.taken() == b""
    local.advance(100)
    assert one.taken() == b":0\r\n"
    assert nothing_waits(local.server)
    asked = caught.asked
    local.server.blocking.acknowledged()
    assert caught.asked == asked


def test_waits_for_replicas_are_answered_in_the_order_in_which_they_came(local: LocalServer) -> None:
    caught, peers = Caught(local), [local.connect() for _ in range(3)]
    for peer in peers:
        peer.ask("CATCHUP", 0)
    local.events.clear()
    caught.reply = b":1\r\n"
    local.server.blocking.acknowledged()
    local.settle()
    assert [event[1] for event in local.events] == [peer.session.id for peer in peers]


def test_client_unblock_of_a_wait_for_replicas(local: LocalServer, writer: Peer) -> None:
    Caught(local)
    one, two = local.connect(), local.connect()
    one.ask("CATCHUP", 0)
    two.ask("CATCHUP", 0)
    writer.ask("CLIENT", "UNBLOCK", one.session.id)
    writer.ask("CLIENT", "UNBLOCK", two.session.id, "ERROR")
    assert (one.taken(), two.taken()) == (b":0\r\n", UNBLOCKED)
    assert nothing_waits(local.server)
